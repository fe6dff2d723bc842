-- What the gate asks of a queue that has policies: open_lanes() reads the switches, draw() takes jobs under them.
--
-- Everything that counts or is charged is read after the locks of lock_policies() were taken and before they are let go,
-- at the end of the call's transaction: two calls never decide about one limit, one class or one partitioned queue at
-- the same time. Settlements take no such lock: they only ever make room.

-- The lanes a worker may take from now. Paused ones, and those pinned to others, are left out as a whole.
create function headgate.open_lanes(p_worker text, p_queues text[], p_kinds text[], p_versions int[], p_now bigint)
returns table (id int, queue text, suspect boolean, is_gated boolean) language sql stable as $$
  select l.id, l.queue, l.suspect, l.is_gated
  from unnest(p_kinds, p_versions) known(kind, version)
  join headgate.lane l on l.kind = known.kind and l.version <= known.version and l.queue = any(p_queues)
  where l.is_open and (l.worker in ('', p_worker) or l.falls_back and not exists (
      select from headgate.worker w where w.id = l.worker and w.seen_at_ms + w.lease_ms > p_now))
$$;

-- One call at a time for each policy of these lanes, always in the order of the locks.
create function headgate.lock_policies(p_lanes int[]) returns void language plpgsql volatile as $$
begin
  perform pg_advisory_xact_lock(k.lock) from (
    select distinct k.lock from headgate.lane l cross join unnest(l.locks) k(lock) where l.id = any(p_lanes) order by k.lock
  ) k;
end $$;

-- The first p_limit pairs of partition and keys that have a ready job in these lanes, from partition p_from on and
-- before p_until, found by jumps through the index. Where lanes were cut short, nothing beyond the nearest cut is told.
create function headgate.groups(p_lanes int[], p_from text, p_until text, p_limit int)
returns table (lane_id int, partition_key text, keys text, is_cut boolean) language sql stable as $$
  with recursive found as (
    select l.id as lane_id, first.partition_key, first.keys, 1 as place from unnest(p_lanes) l(id)
    cross join lateral (
      select j.partition_key, j.keys from headgate.job j
      where j.lane_id = l.id and j.state = 'available' and j.partition_key >= p_from
      order by j.partition_key, j.keys limit 1
    ) first
    where p_until is null or first.partition_key < p_until
    union all
    select f.lane_id, next.partition_key, next.keys, f.place + 1 from found f
    cross join lateral (
      select j.partition_key, j.keys from headgate.job j
      where j.lane_id = f.lane_id and j.state = 'available'
        and (j.partition_key, j.keys) > (f.partition_key, f.keys)
      order by j.partition_key, j.keys limit 1
    ) next
    where f.place < p_limit and (p_until is null or next.partition_key < p_until)
  ), cut as (
    select min(f.partition_key) as at from found f where f.place = p_limit
  )
  select f.lane_id, f.partition_key, f.keys, cut.at is not null from found f cross join cut
  where cut.at is null or f.partition_key <= cut.at
$$;

-- Who counts in a slot of a limit: rows that run, whoever holds them and whether or not their lease has run out.
create function headgate.holders(p_limit text, p_slot text) returns table (id text, claimed_at_ms bigint)
language plpgsql stable as $$
declare
  v_scope text;
  v_lanes int[];
begin
  select c.scope, array_agg(l.id) into v_scope, v_lanes from headgate.concurrency_limit c join headgate.lane l
    on c.scope in ('queue', 'partition') and l.queue = c.subject or c.scope = 'kind' and l.kind = c.subject
      or c.scope = 'key' and c.name = any(l.limits)
    where c.name = p_limit group by c.scope;
  if v_scope = 'partition' then
    return query select j.id, j.claimed_at_ms from headgate.job j
      where j.lane_id = any(v_lanes) and j.state = 'running' and j.partition_key = p_slot;
  elsif v_scope = 'key' then
    -- The only key of a lane is found by index; among several it is looked for.
    return query select j.id, j.claimed_at_ms from headgate.lane l
      join headgate.job j on j.lane_id = l.id and j.state = 'running' and j.keys = p_slot
      where l.id = any(v_lanes) and cardinality(l.classes) + cardinality(l.limits) = 1;
    return query select j.id, j.claimed_at_ms from headgate.lane l
      join headgate.job j on j.lane_id = l.id and j.state = 'running'
        and headgate.key_at(j.keys, cardinality(l.classes) + array_position(l.limits, p_limit)) = p_slot
      where l.id = any(v_lanes) and cardinality(l.classes) + cardinality(l.limits) > 1;
  else
    return query select j.id, j.claimed_at_ms from headgate.job j
      where j.lane_id = any(v_lanes) and j.state = 'running';
  end if;
end $$;

-- What one policy leaves for the jobs of one group. A slot of a limit gives room for jobs, a bucket of a class units.
create type headgate.room as (
  place int,            -- of the group in the arrays asked about
  policy text,          -- a class or a limit
  key text,             -- of the bucket or slot; equal policy and key are shared
  room bigint,
  unit bigint,          -- what a job of weight 1 takes
  nth int,              -- of the weights of a job that counts here; null in a slot
  most bigint,          -- a full bucket, or the limit itself
  running int,
  on_saturated text     -- null for a class
);

create type headgate.cost as (class text, key text, units bigint);

-- The rooms of groups of one queue: lane, partition and keys of each.
create function headgate.rooms(p_queue text, p_lanes int[], p_partitions text[], p_keys text[], p_now bigint)
returns setof headgate.room
language plpgsql stable as $$
declare
  v_lanes int[] := array(select l.id from headgate.lane l where l.queue = p_queue);
begin
  return query
  with slot as materialized (
    select g.place::int as place, c.name, c.scope, c.max_concurrent, c.on_saturated, case c.scope
        when 'partition' then g.partition_key
        when 'key' then headgate.key_at(g.keys, cardinality(l.classes) + array_position(l.limits, c.name))
        else '' end as key
    from unnest(p_lanes, p_partitions, p_keys) with ordinality g(lane_id, partition_key, keys, place)
    join headgate.lane l on l.id = g.lane_id
    join headgate.concurrency_limit c on c.scope in ('queue', 'partition') and c.subject = p_queue
      or c.scope = 'kind' and c.subject = l.kind or c.scope = 'key' and c.name = any(l.limits)
  ), held as (
    select s.name, s.key, case s.scope
        when 'partition' then (select count(*) from headgate.job j
          where j.lane_id = any(v_lanes) and j.state = 'running' and j.partition_key = s.key)
        else (select count(*) from headgate.holders(s.name, s.key)) end::int as running
    from (select distinct s.name, s.key, s.scope from slot s) s
  )
  select s.place, s.name, s.key,
    case when s.on_saturated = 'cancel_running' then s.max_concurrent else greatest(s.max_concurrent - h.running, 0) end::bigint,
    1::bigint, null::int, s.max_concurrent::bigint, h.running, s.on_saturated
  from slot s join held h on h.name = s.name and h.key = s.key;

  return query
  select g.place::int, r.name, k.key, case when b.closed_until_ms > p_now then 0
      else greatest(headgate.refilled(b.units, b.at_ms, p_now, r.rate_limit, r.window_ms, r.burst), 0) end,
    r.window_ms, k.nth, r.burst * r.window_ms, null::int, null::text
  from unnest(p_lanes, p_partitions, p_keys) with ordinality g(lane_id, partition_key, keys, place)
  join headgate.lane l on l.id = g.lane_id
  cross join lateral (select c.class, c.nth::int as nth, headgate.key_at(g.keys, c.nth::int) as key
    from unnest(l.classes) with ordinality c(class, nth)) k
  join headgate.rate_class r on r.name = k.class
  left join headgate.bucket b on b.class = k.class and b.key = k.key;
end $$;

-- One pass over partitions of a queue, from where the last one ended. Answers the jobs it locked, charged and made room
-- for; the caller claims them before the next pass.
--
-- Partitions take turns (deficit round-robin, Shreedhar and Varghese 1995): in a round each gives as many jobs as its
-- quantum. A pass that sees all partitions makes as many rounds as the capacity asks for; one that does not makes one.
-- A turn that the capacity cut short is continued by the next pass. Where no quantum is set it is a quarter of the
-- capacity, at least 10, and 1 for a partition that has more than twice as many jobs in flight as the others on average.
create function headgate.draw(
  p_queue text, p_lanes int[], p_suspects boolean[], p_capacity int, p_quantum int, p_visits int, p_now bigint,
  out taken tid[], out late text[], out closed text[], out ended text[], out superseded text[],
  out visited int, out is_round boolean
) language plpgsql volatile as $$
declare
  v_turn text;            -- the partition whose turn was cut short, or ended last
  v_remaining int;
  v_from text;
  v_base int;
  v_auto int := greatest(10, p_capacity / 4);
  v_has_closed boolean;
  v_is_cut boolean;
  v_lanes int[];          -- of the groups seen, with the partitions and keys, and the places of the partitions
  v_partitions text[];
  v_keys text[];
  v_places int[];
  v_quanta int[];         -- of the partitions
  v_rooms headgate.room[];
  v_bounds int[];         -- of the groups
  v_rounds int;
  v_picks tid[];
  v_costs headgate.cost[];
begin
  select t.partition_key, t.remaining into v_turn, v_remaining from headgate.queue_turn t where t.queue = p_queue;
  v_turn := coalesce(v_turn, '');
  v_remaining := coalesce(v_remaining, 0);
  v_from := case when v_remaining > 0 then v_turn else v_turn || chr(1) end;
  v_base := coalesce(p_quantum, (select q.quantum from headgate.queue q where q.name = p_queue));

  -- Which groups are seen.
  with ahead as materialized (
    select 1 as lap, g.* from headgate.groups(p_lanes, v_from, null, p_visits) g
  ), around as materialized (
    select 2 as lap, g.* from headgate.groups(p_lanes, '', v_from, p_visits) g
    where not exists (select from ahead a where a.is_cut)
  ), seen as (
    select s.*, dense_rank() over (order by s.lap, s.partition_key) as place
    from (select * from ahead union all select * from around) s
  )
  select array_agg(s.lane_id order by s.place), array_agg(s.partition_key order by s.place),
    array_agg(s.keys order by s.place), array_agg(s.place::int order by s.place), count(*)::int, bool_or(s.is_cut)
    into v_lanes, v_partitions, v_keys, v_places, visited, v_is_cut
    from seen s
    where not exists (select from headgate.partition p
      where p.queue = p_queue and p.partition_key = s.partition_key and p.is_paused);
  is_round := not coalesce(v_is_cut, false);
  if visited = 0 then
    return;
  end if;

  -- What the policies leave for each.
  v_rooms := array(select r from headgate.rooms(p_queue, v_lanes, v_partitions, v_keys, p_now) r)
    -- Of suspects, one.
    || array(select (g.place, ' suspect', '', 1, 1, null, 1, 0, null)::headgate.room
      from unnest(v_lanes) with ordinality g(lane_id, place)
      join unnest(p_lanes, p_suspects) o(lane_id, suspect) on o.lane_id = g.lane_id and o.suspect);
  select array_agg(coalesce(b.bound, 2147483647)::int order by g.no) into v_bounds
    from generate_subscripts(v_lanes, 1) g(no)
    left join (select r.place, min(r.room / r.unit) as bound from unnest(v_rooms) r group by r.place) b on b.place = g.no;
  ended := headgate.end_saturated(v_rooms, v_lanes, v_partitions, v_keys);

  -- How much each partition gives in a round.
  with part as (
    select p.place, p.partition_key from (
      select distinct u.place, u.partition_key from unnest(v_places, v_partitions) u(place, partition_key)) p
  ), flight as (
    select p.place, count(r.*) as held from part p left join lateral (
      select from headgate.job j where j.lane_id in (select l.id from headgate.lane l where l.queue = p_queue)
        and j.state = 'running' and j.partition_key = p.partition_key limit 1000
    ) r on true
    where v_base is null and v_places[cardinality(v_places)] > 1 group by p.place
  ), total as (
    select sum(f.held) as held, count(*) as peers from flight f
  )
  select array_agg(coalesce(o.quantum, v_base,
      case when f.held >= 2 and f.held * (t.peers - 1) > 2 * (t.held - f.held) then 1 else v_auto end) order by p.place)
    into v_quanta
    from part p cross join total t left join flight f on f.place = p.place
    left join headgate.partition o on o.queue = p_queue and o.partition_key = p.partition_key;
  v_rounds := case when is_round then greatest(ceil(p_capacity::numeric / (
    select sum(v_quanta[u.place]) from (
      select distinct s.place from unnest(v_places, v_bounds) s(place, bound) where s.bound > 0) u)), 1) else 1 end;

  -- Whose turn is how long; each policy's room is given away in that order.
  with head as (
    select h.*, g.no, g.place, g.partition_key, v_quanta[g.place] as quantum,
      case when g.place = 1 and v_remaining > 0 then least(v_remaining, 4 * v_quanta[1]) else v_quanta[g.place] end as first,
      row_number() over (partition by g.place order by h.priority desc, h.scheduled_at_ms, h.id) as nth
    from unnest(v_lanes, v_partitions, v_keys, v_places, v_bounds) with ordinality
      g(lane_id, partition_key, keys, place, bound, no)
    cross join lateral (
      select j.ctid as row, j.id, j.priority, j.scheduled_at_ms, j.weights from headgate.job j
      where j.lane_id = g.lane_id and j.partition_key = g.partition_key and j.keys = g.keys and j.state = 'available'
      order by j.priority desc, j.scheduled_at_ms, j.id
      limit least(g.bound, p_capacity, v_quanta[g.place] * v_rounds)
    ) h
    where g.bound > 0
  ), turn as (
    select h.*, case when h.nth <= h.first then 1 else 2 + (h.nth - h.first - 1) / h.quantum end as round
    from head h
  ), candidate as materialized (
    select t.*, row_number() over (order by t.round, t.place, t.nth) as rank
    from turn t where t.round <= v_rounds order by t.round, t.place, t.nth limit p_capacity
  ), tight as materialized (
    -- The policies that may not have room for all of them.
    select r.policy, r.key from (
      select c.no, count(*) as jobs, bool_or(c.weights is not null) as is_weighed from candidate c group by c.no
    ) c join unnest(v_rooms) r on r.place = c.no
    group by r.policy, r.key having sum(c.jobs * r.unit) > min(r.room) or bool_or(c.is_weighed and r.nth is not null)
  ), refused as (
    select s.rank from (
      select c.rank, r.room,
        sum(least(r.unit * coalesce(c.weights[r.nth], 1), r.most)) over (partition by r.policy, r.key order by c.rank) as spent
      from tight t join unnest(v_rooms) r on r.policy = t.policy and r.key = t.key join candidate c on c.no = r.place
    ) s where s.spent > s.room
  ), chosen as (
    select c.* from candidate c where c.rank not in (select r.rank from refused r)
  )
  select array(select c.row from chosen c), array(
      select (r.policy, r.key, sum(r.unit * coalesce(c.weights[r.nth], 1)))::headgate.cost
      from chosen c join unnest(v_rooms) r on r.place = c.no where r.nth is not null group by r.policy, r.key
    ), l.partition_key, l.first + (l.round - 1) * l.quantum - l.nth
    into v_picks, v_costs, v_turn, v_remaining
    from (select count(*) = p_capacity or exists (select from refused) as is_short from candidate) c
    left join lateral (select * from chosen order by rank desc limit 1) l on c.is_short;

  -- The turn of a pass that was not cut short ended with the last partition seen.
  if v_turn is null then
    v_turn := v_partitions[visited];
    v_remaining := 0;
  end if;
  insert into headgate.queue_turn as t (queue, partition_key, remaining) values (p_queue, v_turn, v_remaining)
    on conflict (queue) do update set partition_key = excluded.partition_key, remaining = excluded.remaining
    where (t.partition_key, t.remaining) <> (excluded.partition_key, excluded.remaining);

  v_has_closed := exists (select from headgate.strike s where s.closed_at_ms is not null);
  select array_agg(j.row) filter (where not j.is_late and not j.is_closed), array_agg(j.id) filter (where j.is_late),
    array_agg(j.id) filter (where j.is_closed and not j.is_late) into taken, late, closed
    from (
      select j.ctid as row, j.id, headgate.is_late(j, p_now) as is_late, v_has_closed and exists (select from headgate.strike s
        where s.fingerprint = j.fingerprint and s.closed_at_ms is not null) as is_closed
      from headgate.job j where j.ctid = any(v_picks) and j.state = 'available'
      for no key update skip locked
    ) j;
  if taken is null or v_rooms = '{}' then
    return;
  end if;
  if cardinality(taken) < cardinality(v_picks) then
    v_costs := array(select (c.class, c.key, sum(c.weight * r.window_ms))::headgate.cost
      from headgate.charges(array(select j.id from headgate.job j where j.ctid = any(taken))) c
      join headgate.rate_class r on r.name = c.class group by c.class, c.key);
  end if;
  if v_costs <> '{}' then
    perform headgate.charge(v_costs, p_now);
  end if;
  if exists (select from unnest(v_rooms) r where r.on_saturated = 'cancel_running') then
    superseded := headgate.supersede_for(taken, v_rooms, v_lanes, v_partitions, v_keys);
  end if;
end $$;

-- Takes the costs from the buckets. An overdraft is paid back by the refill: a weight beyond the burst is admitted by a
-- full bucket.
create function headgate.charge(p_costs headgate.cost[], p_now bigint) returns void language plpgsql volatile as $$
begin
  insert into headgate.bucket as b (class, key, units, at_ms)
    select c.class, c.key, r.burst * r.window_ms - c.units, p_now
    from unnest(p_costs) c join headgate.rate_class r on r.name = c.class
    order by c.class, c.key
    -- As it is under the row's lock: a settlement that corrects a charge holds no lock of the gate.
    on conflict (class, key) do update set at_ms = p_now, units = (
      select headgate.refilled(b.units, b.at_ms, p_now, r.rate_limit, r.window_ms, r.burst)
        - (r.burst * r.window_ms - excluded.units)
      from headgate.rate_class r where r.name = excluded.class);
end $$;

-- What each job costs, by bucket.
create function headgate.charges(p_ids text[]) returns table (id text, class text, key text, weight bigint)
language sql stable as $$
  select j.id, c.class, headgate.key_at(j.keys, c.nth::int), coalesce(j.weights[c.nth], 1)::bigint
  from headgate.job j join headgate.lane l on l.id = j.lane_id
  cross join unnest(l.classes) with ordinality c(class, nth)
  where j.id = any(p_ids)
$$;

-- Newest wins: of each slot under cancel_running, as many of the oldest holders go as the newcomers need.
create function headgate.supersede_for(
  p_taken tid[], p_rooms headgate.room[], p_lanes int[], p_partitions text[], p_keys text[]
) returns text[] language plpgsql volatile as $$
declare
  v_slot record;
  v_ids text[];
  v_gone text[] := '{}';
begin
  for v_slot in
    select r.policy, r.key, count(*) + max(r.running) - max(r.most) as excess
    from headgate.job j
    join unnest(p_lanes, p_partitions, p_keys) with ordinality g(lane_id, partition_key, keys, place)
      on g.lane_id = j.lane_id and g.partition_key = j.partition_key and g.keys = j.keys
    join unnest(p_rooms) r on r.place = g.place and r.on_saturated = 'cancel_running'
    where j.ctid = any(p_taken) group by r.policy, r.key order by r.policy, r.key
  loop
    continue when v_slot.excess <= 0;
    v_ids := array(select h.id from headgate.holders(v_slot.policy, v_slot.key) h
      where h.id <> all(v_gone) order by h.claimed_at_ms, h.id limit v_slot.excess);
    v_gone := v_gone || array(select s.job_id from headgate.supersede(v_ids) s);
  end loop;
  return v_gone;
end $$;

-- Waiting jobs of a full slot whose limit does not let them wait: a bounded number a call.
create function headgate.end_saturated(p_rooms headgate.room[], p_lanes int[], p_partitions text[], p_keys text[])
returns text[] language plpgsql volatile as $$
declare
  v_discarded text[];
  v_cancelled text[];
begin
  if not exists (select from unnest(p_rooms) r where r.room <= 0 and r.on_saturated in ('discard', 'cancel_incoming')) then
    return null;
  end if;
  select array_agg(w.id) filter (where w.is_discarded), array_agg(w.id) filter (where not w.is_discarded)
    into v_discarded, v_cancelled
    from (
      select j.id, full_group.is_discarded from (
        select r.place, bool_or(r.on_saturated = 'discard') as is_discarded from unnest(p_rooms) r
        where r.room <= 0 and r.on_saturated in ('discard', 'cancel_incoming') group by r.place
      ) full_group
      cross join lateral (
        select j.id from headgate.job j
        where j.lane_id = p_lanes[full_group.place] and j.partition_key = p_partitions[full_group.place]
          and j.keys = p_keys[full_group.place] and j.state = 'available'
        order by j.priority desc, j.scheduled_at_ms, j.id limit 100
        for no key update skip locked
      ) j
      limit 100
    ) w;
  return array(select d.job_id from headgate.discard(v_discarded) d)
    || array(select c.job_id from headgate.cancel_incoming(v_cancelled) c);
end $$;

-- Past its deadline, or longer in the queue than it allows. The time in the queue ends with the first start.
create function headgate.is_late(p_job headgate.job, p_now bigint) returns boolean language sql immutable as $$
  select coalesce(p_job.deadline_at_ms <= p_now, false)
    or coalesce(p_job.scheduled_at_ms + p_job.queue_timeout_ms <= p_now
      and (p_job.claimed_at_ms is null or p_job.scheduled_at_ms > p_job.claimed_at_ms), false)
$$;

create function headgate.is_closed(p_fingerprint text) returns boolean language sql stable as $$
  select exists (select from headgate.strike s where s.fingerprint = p_fingerprint and s.closed_at_ms is not null)
$$;
