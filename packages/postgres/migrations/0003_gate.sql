-- What the gate asks of a queue that has policies: open_lanes() reads the switches, draw() takes jobs under them.
--
-- Everything that counts or is charged is read after the locks of lock_policies() were taken and before they are let go,
-- at the end of the call's transaction: two calls never decide about one limit, one class or one partitioned queue at
-- the same time. Settlements take no such lock: they only ever make room.

-- The lanes a worker may take from now. Paused ones, and those pinned to others, are left out as a whole.
create function headgate.open_lanes(p_worker text, p_queues text[], p_kinds text[], p_versions int[], p_now bigint)
returns table (id int, queue text, suspect boolean, is_gated boolean, has_closed boolean) language sql stable as $$
  select l.id, l.queue, l.suspect, l.is_gated, l.has_closed
  from unnest(p_kinds, p_versions) known(kind, version)
  join headgate.lane l on l.kind = known.kind and l.version <= known.version and l.queue = any(p_queues)
  where l.is_open and (l.worker in ('', p_worker) or l.falls_back and not exists (
      select from headgate.worker w where w.id = l.worker and w.seen_at_ms + w.lease_ms > p_now))
$$;

-- Past its deadline, or longer in the queue than it allows. The time in the queue ends with the first start.
create function headgate.is_late(p_job headgate.job, p_now bigint) returns boolean language sql immutable as $$
  -- Most jobs have neither.
  select coalesce(p_job.deadline_at_ms, p_job.queue_timeout_ms) is not null
    and (coalesce(p_job.deadline_at_ms <= p_now, false)
      or coalesce(p_job.scheduled_at_ms + p_job.queue_timeout_ms <= p_now
        and (p_job.claimed_at_ms is null or p_job.scheduled_at_ms > p_job.claimed_at_ms), false))
$$;

create function headgate.is_closed(p_fingerprint text) returns boolean language sql stable as $$
  select exists (select from headgate.strike s where s.fingerprint = p_fingerprint and s.closed_at_ms is not null)
$$;

-- The first jobs of one group (lane, partition, keys), locked, from its head on: before that place lie jobs that went, and
-- where an old snapshot is held they are a long walk. Without a head, from the start. Where nobody expects weights, a job that
-- has some was enqueued meanwhile.
create function headgate.take_group(
  p_lane int, p_partition text, p_keys text, p_priority smallint, p_at_ms bigint, p_id text,
  p_limit bigint, p_has_weights boolean, p_has_closed boolean, p_now bigint, out taken tid[], out late text[], out closed text[]
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  select array_agg(t.row) filter (where not t.is_late and not t.is_closed), array_agg(t.id) filter (where t.is_late),
      array_agg(t.id) filter (where t.is_closed and not t.is_late)
    into taken, late, closed
    from (
      select * from (
        select j.ctid as row, j.id, headgate.is_late(j, p_now) as is_late, p_has_closed and exists (select from headgate.strike s
          where s.fingerprint = j.fingerprint and s.closed_at_ms is not null) as is_closed
        from headgate.job j
        where j.lane_id = p_lane and j.partition_key = p_partition and j.keys = p_keys and j.state = 'available'
          and j.priority = p_priority and (j.scheduled_at_ms, j.id) >= (p_at_ms, p_id)
          and (p_has_weights or j.weights is null)
        order by j.scheduled_at_ms, j.id limit p_limit
        for no key update skip locked
      ) as_urgent
      union all
      select * from (
        select j.ctid, j.id, headgate.is_late(j, p_now), p_has_closed and exists (select from headgate.strike s
          where s.fingerprint = j.fingerprint and s.closed_at_ms is not null)
        from headgate.job j
        where j.lane_id = p_lane and j.partition_key = p_partition and j.keys = p_keys and j.state = 'available'
          and j.priority < coalesce(p_priority, 32768) and (p_has_weights or j.weights is null)
        order by j.priority desc, j.scheduled_at_ms, j.id limit p_limit
        for no key update skip locked
      ) less_urgent
      limit p_limit
    ) t;
end $$;

-- One call at a time for each policy of these lanes, always in the order of the locks. The lanes were read under the lock
-- that holds off changes of policies.
create function headgate.lock_policies(p_lanes int[]) returns void language plpgsql volatile as $$
declare
  v_locks bigint[] := array(select distinct k.lock from headgate.lane l cross join unnest(l.locks) k(lock)
    where l.id = any(p_lanes) order by k.lock);
begin
  perform pg_advisory_xact_lock(k.lock) from unnest(v_locks) k(lock);
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

-- The groups of one partition, by their keys, behind p_after. Where there are more of them, nothing beyond the nearest cut
-- is told.
create function headgate.groups_of(p_lanes int[], p_partition text, p_after text, p_limit int)
returns table (lane_id int, keys text, is_cut boolean) language sql stable as $$
  with recursive found as (
    select l.id as lane_id, first.keys, 1 as place from unnest(p_lanes) l(id)
    cross join lateral (
      select j.keys from headgate.job j
      where j.lane_id = l.id and j.partition_key = p_partition and j.state = 'available'
        and j.keys >= coalesce(p_after || chr(1), '')
      order by j.keys limit 1
    ) first
    union all
    select f.lane_id, next.keys, f.place + 1 from found f
    cross join lateral (
      select j.keys from headgate.job j
      where j.lane_id = f.lane_id and j.partition_key = p_partition and j.state = 'available' and j.keys > f.keys
      order by j.keys limit 1
    ) next
    where f.place < p_limit
  ), cut as (
    select min(f.keys) as at from found f where f.place = p_limit
  )
  select f.lane_id, f.keys, cut.at is not null from found f cross join cut
  where cut.at is null or f.keys <= cut.at order by f.keys, f.lane_id
$$;

-- Who counts in a slot of a limit: rows that run, whoever holds them and whether or not their lease has run out.
--
-- Statistics made while nothing ran promise a single row, and then any index looks as good as the right one, and any order
-- of joins. So the lanes come first, and the order by the keys, which may not be sorted, names the index.
create function headgate.holders(p_limit text, p_slot text) returns table (id text, claimed_at_ms bigint)
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
  set enable_sort = off as $$
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
    return query select j.id, j.claimed_at_ms from headgate.lane l cross join lateral (
        select r.id, r.claimed_at_ms from headgate.job r
        where r.lane_id = l.id and r.state = 'running' and r.keys <> '' and r.keys >= p_slot and r.keys <= p_slot
        order by r.keys offset 0
      ) j where l.id = any(v_lanes) and cardinality(l.classes) + cardinality(l.limits) = 1;
    return query select j.id, j.claimed_at_ms from headgate.job j
      where p_slot = '' and j.lane_id = any(v_lanes) and j.state = 'running' and j.keys = '';
    return query select j.id, j.claimed_at_ms from headgate.lane l cross join lateral (
        select r.id, r.claimed_at_ms, r.keys from headgate.job r
        where r.lane_id = l.id and r.state = 'running' and r.keys <> '' offset 0
      ) j where l.id = any(v_lanes) and cardinality(l.classes) + cardinality(l.limits) > 1
        and headgate.key_at(j.keys, cardinality(l.classes) + array_position(l.limits, p_limit)) = p_slot;
  else
    return query select j.id, j.claimed_at_ms from headgate.job j
      where j.lane_id = any(v_lanes) and j.state = 'running';
  end if;
end $$;

-- What a policy says of the jobs of one lane.
create type headgate.rule as (
  lane_id int,
  name text,            -- no other policy's
  policy text,          -- a class or a limit
  scope text,           -- of the limit, or 'class'
  nth int,              -- which of a job's keys counts; null where none does
  most bigint,          -- the limit, or a full bucket
  unit bigint,          -- what a job of weight 1 takes
  on_saturated text
);

create function headgate.rules(p_lanes int[]) returns setof headgate.rule language sql stable as $$
  select l.id, 'limit ' || c.name || chr(31), c.name, c.scope,
    case c.scope when 'key' then cardinality(l.classes) + array_position(l.limits, c.name) end,
    c.max_concurrent::bigint, 1::bigint, c.on_saturated
  from headgate.lane l join headgate.concurrency_limit c on c.scope in ('queue', 'partition') and c.subject = l.queue
    or c.scope = 'kind' and c.subject = l.kind or c.scope = 'key' and c.name = any(l.limits)
  where l.id = any(p_lanes)
  union all
  select l.id, 'class ' || r.name || chr(31), r.name, 'class', c.nth::int, r.burst * r.window_ms, r.window_ms, null
  from headgate.lane l cross join unnest(l.classes) with ordinality c(class, nth)
  join headgate.rate_class r on r.name = c.class
  where l.id = any(p_lanes)
$$;

-- Which slot of a limit, or bucket of a class.
create function headgate.slot_key(p_rule headgate.rule, p_partition text, p_keys text) returns text
language sql immutable parallel safe as $$
  select case when p_rule.nth is not null then split_part(p_keys, chr(31), p_rule.nth)
    when p_rule.scope = 'partition' then p_partition else '' end
$$;

-- A partition, the first job of its first group there, and what is known of it before it gives any.
create type headgate.waiting as (
  partition_key text, keys text, priority smallint, scheduled_at_ms bigint, id text,
  is_split boolean,     -- not all its jobs have these keys; asked about one lane only
  quantum int,
  is_paused boolean,
  held bigint           -- jobs in flight
);

-- Greater than any key there can be.
create function headgate.behind_all() returns text language sql immutable parallel safe as $$
  select repeat(chr(1114111), 65)
$$;

-- The first p_limit partitions that have a ready job in these lanes, from p_from on and before p_until.
create function headgate.waiting_partitions(
  p_queue text, p_lanes int[], p_queue_lanes int[], p_from text, p_until text, p_limit int, p_is_counted boolean, p_has_keys boolean
) returns setof headgate.waiting language sql stable as $$
  with recursive found as (
    select n.*, 1 as place from (
      select f.* from unnest(p_lanes) l(id) cross join lateral (
        select j.partition_key, j.keys, j.priority, j.scheduled_at_ms, j.id from headgate.job j
        where j.lane_id = l.id and j.state = 'available' and j.partition_key >= p_from and j.partition_key < p_until
        order by j.partition_key, j.keys, j.priority desc, j.scheduled_at_ms, j.id limit 1
      ) f order by f.partition_key limit 1
    ) n
    union all
    select n.*, p.place + 1 from found p cross join lateral (
      select f.* from unnest(p_lanes) l(id) cross join lateral (
        select j.partition_key, j.keys, j.priority, j.scheduled_at_ms, j.id from headgate.job j
        where j.lane_id = l.id and j.state = 'available' and j.partition_key > p.partition_key and j.partition_key < p_until
        order by j.partition_key, j.keys, j.priority desc, j.scheduled_at_ms, j.id limit 1
      ) f order by f.partition_key limit 1
    ) n where p.place < p_limit
  )
  select f.partition_key, f.keys, f.priority, f.scheduled_at_ms, f.id,
    p_has_keys and f.keys <> (select j.keys from headgate.job j
      where j.lane_id = p_lanes[1] and j.partition_key = f.partition_key and j.state = 'available' order by j.keys desc limit 1),
    p.quantum, coalesce(p.is_paused, false), case when p_is_counted then (select count(*) from headgate.job j
      where j.lane_id = any(p_queue_lanes) and j.state = 'running' and j.partition_key = f.partition_key) end
  from found f left join headgate.partition p on p.queue = p_queue and p.partition_key = f.partition_key
  order by f.place
$$;

-- What a policy leaves of one slot or bucket. p_held: jobs in flight in the partition.
create function headgate.room(p_rule headgate.rule, p_key text, p_held bigint, p_now bigint) returns bigint
language plpgsql volatile as $$
declare
  v_running bigint;
begin
  if p_rule.scope = 'class' then
    return (
      select case when b.closed_until_ms > p_now then 0
        else greatest(headgate.refilled(b.units, b.at_ms, p_now, r.rate_limit, r.window_ms, r.burst), 0) end
      from headgate.rate_class r left join headgate.bucket b on b.class = r.name and b.key = p_key
      where r.name = p_rule.policy);
  elsif p_rule.on_saturated = 'cancel_running' then
    -- Newcomers may take the places of all that can be told to go now, but not from one another.
    v_running := (select count(*) from headgate.holders(p_rule.policy, p_key));
    return greatest(p_rule.most - v_running
      + cardinality(headgate.lock_oldest(p_rule.policy, p_key, v_running::int, p_now)), 0);
  elsif p_rule.scope = 'partition' then
    return greatest(p_rule.most - p_held, 0);
  end if;
  return greatest(p_rule.most - (select count(*) from headgate.holders(p_rule.policy, p_key)), 0);
end $$;

-- Jobs of partitions of one lane, that have no keys, turn by turn, where nothing bounds them but p_limit, the turns and
-- p_ceiling: one statement for all. Answers whose turn it was at the end, and how much of that was left.
create function headgate.take_turns(
  p_lane int, p_partitions headgate.waiting[], p_rounds int, p_remaining int, p_ceiling bigint, p_limit int, p_now bigint,
  out taken tid[], out late text[], out turn text, out remaining int
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_places int[];
  v_last int;
begin
  select array_agg(t.row) filter (where not t.is_late), array_agg(t.id) filter (where t.is_late),
      array_agg(t.place) filter (where not t.is_late)
    into taken, late, v_places
    from (
      select h.*, p.place::int from (
        select w.*, least(headgate.turn(w.quantum, p_rounds, case when w.place = 1 then p_remaining end),
          p_ceiling - w.held) as bound
        from unnest(p_partitions) with ordinality
          w(partition_key, keys, priority, scheduled_at_ms, id, is_split, quantum, is_paused, held, place)
      ) p
      cross join lateral (
        -- From its head on, as take_group() does.
        select * from (
          select j.ctid as row, j.id, headgate.is_late(j, p_now) as is_late from headgate.job j
          where j.lane_id = p_lane and j.partition_key = p.partition_key and j.keys = '' and j.state = 'available'
            and j.priority = p.priority and (j.scheduled_at_ms, j.id) >= (p.scheduled_at_ms, p.id)
          order by j.scheduled_at_ms, j.id limit p.bound
          for no key update skip locked
        ) as_urgent
        union all
        select * from (
          select j.ctid, j.id, headgate.is_late(j, p_now) from headgate.job j
          where j.lane_id = p_lane and j.partition_key = p.partition_key and j.keys = '' and j.state = 'available'
            and j.priority < p.priority
          order by j.priority desc, j.scheduled_at_ms, j.id limit p.bound
          for no key update skip locked
        ) less_urgent
        limit p.bound
      ) h
      limit p_limit
    ) t;
  if taken is not null then
    v_last := v_places[cardinality(v_places)];
    turn := p_partitions[v_last].partition_key;
    remaining := headgate.turn(p_partitions[v_last].quantum, p_rounds, case when v_last = 1 then p_remaining end)
      - cardinality(array_positions(v_places, v_last));
  end if;
end $$;

-- How many jobs a turn of so many rounds gives; one that goes on has p_remaining in the first. None has saved up more than
-- four quanta.
create function headgate.turn(p_quantum int, p_rounds int, p_remaining int) returns int
language sql immutable parallel safe as $$
  select p_quantum * p_rounds
    + case when p_remaining > 0 then least(p_remaining, 4 * p_quantum) - p_quantum else 0 end
$$;

-- Which partitions are next: p_wanted of them, if there are so many, without those that are paused or at their ceiling;
-- each with its quantum. from_key and until_key say where to look, and then where to look on; `visited` counts what was
-- looked at, and with is_round it was all up to p_start, where the round began.
--
-- Where no quantum is set it is p_auto, and 1 for a partition that has more than twice as many jobs in flight as those
-- looked at with it on average.
create function headgate.next_partitions(
  p_queue text, p_lanes int[], p_queue_lanes int[], p_start text, p_wanted int, p_visits int, p_ceiling bigint,
  p_quantum int, p_auto int, p_is_counted boolean, p_has_keys boolean, inout from_key text, inout until_key text,
  out partitions headgate.waiting[], out visited int, out last_key text, out is_round boolean
) language plpgsql volatile as $$
declare
  v_next headgate.waiting;
  v_look int := p_wanted;
  v_seen int;
  v_peers bigint := 0;
  v_held bigint[];
  v_total bigint := 0;
begin
  partitions := '{}';
  visited := 0;
  is_round := false;
  while cardinality(partitions) < p_wanted and visited < p_visits and not is_round loop
    v_look := least(v_look, p_visits - visited);
    v_seen := 0;
    for v_next in select * from headgate.waiting_partitions(
      p_queue, p_lanes, p_queue_lanes, from_key, until_key, v_look, p_is_counted, p_has_keys)
    loop
      v_seen := v_seen + 1;
      last_key := v_next.partition_key;
      continue when v_next.is_paused;
      v_peers := v_peers + 1;
      v_total := v_total + v_next.held;
      continue when v_next.held >= p_ceiling;
      v_next.quantum := coalesce(v_next.quantum, p_quantum);
      partitions := partitions || v_next;
    end loop;
    visited := visited + v_seen;
    if v_seen < v_look then
      is_round := until_key = p_start;
      from_key := '';
      until_key := p_start;
    else
      from_key := last_key || chr(1);
    end if;
    v_look := 4 * v_look;
  end loop;
  -- Who is alone is compared with nobody: where an old snapshot is held, counting is a long walk.
  if p_quantum is null and v_peers > 1 and not p_is_counted then
    select array_agg(c.held order by p.place), sum(c.held) into v_held, v_total
      from unnest(partitions) with ordinality
        p(partition_key, keys, priority, scheduled_at_ms, id, is_split, quantum, is_paused, held, place)
      cross join lateral (select count(*) as held from headgate.job j
        where j.lane_id = any(p_queue_lanes) and j.state = 'running' and j.partition_key = p.partition_key) c;
  end if;
  for n in 1..cardinality(partitions) loop
    v_next := partitions[n];
    if v_next.quantum is null then
      v_next.held := coalesce(v_next.held, v_held[n]);
      v_next.quantum := case
        when v_next.held >= 2 and v_next.held * (v_peers - 1) > 2 * (v_total - v_next.held) then 1 else p_auto end;
      partitions[n] := v_next;
    end if;
  end loop;
end $$;

-- The first group of each lane in one partition, and whether a lane has others there.
create function headgate.first_groups(
  p_lanes int[], p_partition text, out lanes int[], out keys text[], out is_split boolean
) language plpgsql volatile as $$
begin
  select array_agg(g.lane_id), array_agg(g.keys), bool_or(g.keys <> g.last_keys) into lanes, keys, is_split
    from (
      select l.id as lane_id, (
          select j.keys from headgate.job j where j.lane_id = l.id and j.partition_key = p_partition and j.state = 'available'
          order by j.keys limit 1
        ) as keys, (
          select j.keys from headgate.job j where j.lane_id = l.id and j.partition_key = p_partition and j.state = 'available'
          order by j.keys desc limit 1
        ) as last_keys
      from unnest(p_lanes) l(id)
    ) g where g.keys is not null;
end $$;

-- The first p_most jobs of several groups of a partition, by priority, age and id over all of them, none from a group beyond
-- the first that a policy refuses. p_names are the slots and buckets of draw(), of which rooms and fulls tell.
create function headgate.take_one_by_one(
  p_rules headgate.rule[], p_names text[], p_lanes int[], p_keys text[], p_bounds bigint[], p_suspects boolean[],
  p_partition text, p_most bigint, p_has_closed boolean, p_now bigint,
  inout rooms bigint[], inout fulls bigint[], inout has_suspect boolean,
  out taken tid[], out late text[], out closed text[], out is_shared boolean
) language plpgsql volatile as $$
declare
  v_job record;
  v_rule headgate.rule;
  v_place int;
  v_cost bigint;
  v_got int := 0;
  v_blocked int[] := '{}';
begin
  is_shared := false;
  <<jobs>>
  for v_job in
    select g.no, h.* from unnest(p_lanes, p_keys, p_bounds) with ordinality g(lane_id, keys, bound, no)
    cross join lateral (
      select j.ctid as row, j.id, j.priority, j.scheduled_at_ms, j.weights, headgate.is_late(j, p_now) as is_late,
        p_has_closed and exists (select from headgate.strike s
          where s.fingerprint = j.fingerprint and s.closed_at_ms is not null) as is_closed
      from headgate.job j
      where j.lane_id = g.lane_id and j.partition_key = p_partition and j.keys = g.keys and j.state = 'available'
      -- A few more, for those that others hold.
      order by j.priority desc, j.scheduled_at_ms, j.id limit g.bound + 100 / cardinality(p_lanes)
    ) h
    where g.bound > 0
    order by h.priority desc, h.scheduled_at_ms, h.id
  loop
    exit when v_got >= p_most;
    continue when v_job.no = any(v_blocked) or p_suspects[v_job.no] and has_suspect;
    for pass in 1..2 loop
      foreach v_rule in array p_rules loop
        continue when v_rule.lane_id <> p_lanes[v_job.no];
        v_place := array_position(p_names, v_rule.name || headgate.slot_key(v_rule, p_partition, p_keys[v_job.no]));
        v_cost := v_rule.unit * case when v_rule.scope = 'class' then coalesce(v_job.weights[v_rule.nth], 1) else 1 end;
        if pass = 2 then
          rooms[v_place] := rooms[v_place] - v_cost;
        elsif rooms[v_place] < least(v_cost, v_rule.most) then
          v_blocked := v_blocked || v_job.no::int;
          is_shared := is_shared or v_rule.scope <> 'partition';
          if v_rule.scope = 'class' then
            -- It saves up: who comes later does not take what it waits for.
            fulls[v_place] := fulls[v_place] - rooms[v_place];
            rooms[v_place] := 0;
          end if;
          continue jobs;
        end if;
      end loop;
      if pass = 1 then
        perform from headgate.job j where j.ctid = v_job.row and j.state = 'available' for no key update skip locked;
        continue jobs when not found;
        if v_job.is_late then
          late := late || v_job.id;
        elsif v_job.is_closed then
          closed := closed || v_job.id;
        end if;
        continue jobs when v_job.is_late or v_job.is_closed;
        taken := taken || v_job.row;
        v_got := v_got + 1;
        has_suspect := has_suspect or p_suspects[v_job.no];
      end if;
    end loop;
  end loop;
end $$;

-- One pass over partitions of a queue, from where the last one ended. Answers the jobs it locked, charged and made room
-- for; the caller claims them before the next pass.
--
-- Partitions take turns (deficit round-robin, Shreedhar and Varghese 1995): in a round each gives as many jobs as its
-- quantum, or where none is set a quarter of the capacity, at least 10 (see next_partitions). A turn that the capacity, or a
-- policy it shares with others, cut short is continued by the next pass.
--
-- Within a partition jobs come by priority, age and id over all its groups (lane and keys); what a policy refuses is never
-- locked.
create function headgate.draw(
  p_queue text, p_lanes int[], p_suspects boolean[], p_capacity int, p_quantum int, p_visits int, p_now bigint,
  out taken tid[], out late text[], out closed text[], out ended text[], out superseded text[],
  out visited int, out is_round boolean
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_rest int := p_capacity;
  v_auto int := greatest(10, p_capacity / 4);
  v_base int;
  v_queue_lanes int[];
  v_rules headgate.rule[];
  v_has_closed boolean;
  v_is_counted boolean := false;   -- a policy asks how many jobs of a partition are in flight
  v_ceiling bigint;       -- partitions with so many are passed over
  v_is_lone boolean := cardinality(p_lanes) = 1;
  v_varies boolean;       -- jobs of the only lane have keys or weights
  v_is_easy boolean;
  -- The turns.
  v_turn text;
  v_remaining int;
  v_start text;
  v_from text;
  v_cuts jsonb;           -- partitions whose groups were too many to look at: behind which to go on
  v_held_turn text;       -- the first turn that a shared policy cut short
  v_held_remaining int;
  -- Partitions looked at together.
  v_next headgate.waiting;
  v_partitions headgate.waiting[];
  v_wanted int := 0;
  v_passed int := 0;      -- partitions that were asked for jobs
  v_found record;
  v_until text := headgate.behind_all();
  v_last text;
  v_rounds int;           -- more than one where all partitions are looked at together, and have room for it
  v_at text;
  v_allowed int;
  -- The groups of one.
  v_lane_ids int[];
  v_keys text[];
  v_is_split boolean;
  v_is_cut boolean;
  v_bounds bigint[];
  v_is_weighed boolean;
  v_is_shared boolean;    -- a policy that others share was the bound
  v_rule headgate.rule;
  v_key text;
  v_place int;
  v_job record;
  v_got int;
  -- The slots and buckets met so far: what was and is left of each, and who is in it.
  v_names text[] := '{}';
  v_slot_rules headgate.rule[] := '{}';
  v_slot_keys text[] := '{}';
  v_full bigint[] := '{}';
  v_rooms bigint[] := '{}';
  v_common int[];         -- slots and buckets that all jobs of a pass share
  v_has_suspect boolean := false;
begin
  visited := 0;
  is_round := false;
  taken := '{}';
  select array(select l.id from headgate.lane l where l.queue = p_queue), array(select r from headgate.rules(p_lanes) r),
      exists (select from headgate.strike s where s.closed_at_ms is not null),
      coalesce(t.partition_key, ''), coalesce(t.remaining, 0), coalesce(t.cuts, '{}'), coalesce(p_quantum, q.quantum),
      (select l.varies from headgate.lane l where l.id = p_lanes[1])
    into v_queue_lanes, v_rules, v_has_closed, v_turn, v_remaining, v_cuts, v_base, v_varies
    from (select p_queue as name) n
    left join headgate.queue_turn t on t.queue = n.name left join headgate.queue q on q.name = n.name;
  foreach v_rule in array v_rules loop
    if v_rule.scope = 'partition' then
      v_is_counted := true;
      if v_rule.on_saturated = 'queue' and v_is_lone then
        v_ceiling := least(v_ceiling, v_rule.most);
      end if;
    end if;
  end loop;
  v_start := case when v_remaining > 0 then v_turn else v_turn || chr(1) end;
  v_from := v_start;

  while v_rest > 0 and visited < p_visits and not is_round loop
    -- As many partitions as the capacity asks for, and then by what those before them gave.
    v_wanted := case when v_passed = 0 then v_rest / coalesce(v_base, v_auto) + 1
      else least(4 * v_wanted, v_rest * v_passed / greatest(p_capacity - v_rest, 1) + 1) end;
    select n.* into v_found from headgate.next_partitions(p_queue, p_lanes, v_queue_lanes, v_start, v_wanted,
      p_visits - visited, v_ceiling, v_base, v_auto, v_is_counted, v_is_lone and v_varies, v_from, v_until) n;
    v_partitions := v_found.partitions;
    visited := visited + v_found.visited;
    is_round := v_found.is_round;
    v_from := v_found.from_key;
    v_until := v_found.until_key;
    v_last := coalesce(v_found.last_key, v_last);
    v_rounds := 1;
    if is_round and visited = cardinality(v_partitions) and visited > 0 then
      v_rounds := greatest(v_rest / (select sum(p.quantum) from unnest(v_partitions) p), 1);
    end if;
    v_passed := v_passed + cardinality(v_partitions);

    -- The common pass, all at once: nothing but the turns and the partitions' own ceilings stands in the way.
    v_is_easy := v_is_lone and not (v_varies or p_suspects[1] or v_has_closed) and v_partitions <> '{}';
    v_common := '{}';
    foreach v_rule in array v_rules loop
      exit when not v_is_easy;
      if coalesce(v_rule.on_saturated, 'queue') <> 'queue' then
        v_is_easy := false;
      elsif v_rule.scope <> 'partition' then
        v_place := array_position(v_names, v_rule.name);
        if v_place is null then
          v_place := cardinality(v_names) + 1;
          v_names[v_place] := v_rule.name;
          v_slot_rules[v_place] := v_rule;
          v_slot_keys[v_place] := '';
          v_rooms[v_place] := headgate.room(v_rule, '', null, p_now);
          v_full[v_place] := v_rooms[v_place];
        end if;
        v_common := v_common || v_place;
        v_is_easy := v_rooms[v_place] / v_rule.unit >= v_rest;
      end if;
    end loop;
    if v_is_easy then
      select t.taken, t.late, t.turn, t.remaining into v_job from headgate.take_turns(p_lanes[1], v_partitions, v_rounds,
        case when v_partitions[1].partition_key = v_start then v_remaining end, v_ceiling, v_rest, p_now) t;
      taken := taken || v_job.taken;
      late := late || v_job.late;
      v_got := coalesce(cardinality(v_job.taken), 0);
      foreach v_place in array v_common loop
        v_rooms[v_place] := v_rooms[v_place] - v_got * v_slot_rules[v_place].unit;
      end loop;
      v_rest := v_rest - v_got;
      if v_rest = 0 then
        v_turn := v_job.turn;
        v_remaining := v_job.remaining;
      end if;
      continue;
    end if;

    foreach v_next in array v_partitions loop
      exit when v_rest = 0;
      v_at := v_next.partition_key;
      v_allowed := headgate.turn(v_next.quantum, v_rounds, case when v_at = v_start then v_remaining end);

      -- Its groups, and what their policies leave for each.
      if v_is_lone then
        v_lane_ids := p_lanes;
        v_keys := array[v_next.keys];
        v_is_split := v_next.is_split;
      else
        select f.lanes, f.keys, f.is_split into v_lane_ids, v_keys, v_is_split
          from headgate.first_groups(p_lanes, v_at) f;
      end if;
      v_is_cut := false;
      if v_is_split then
        select array_agg(g.lane_id), array_agg(g.keys), bool_or(g.is_cut) into v_lane_ids, v_keys, v_is_cut
          from headgate.groups_of(p_lanes, v_at, v_cuts ->> v_at, greatest(p_visits - visited, 10)) g;
        visited := visited + coalesce(cardinality(v_lane_ids), 0);
        v_cuts := case when v_is_cut then v_cuts || jsonb_build_object(v_at, v_keys[cardinality(v_keys)]) else v_cuts - v_at end;
      end if;
      v_bounds := '{}';
      v_is_shared := false;
      v_is_weighed := false;
      for m in 1..coalesce(cardinality(v_lane_ids), 0) loop
        v_bounds[m] := least(v_allowed, v_rest);
        if p_suspects[array_position(p_lanes, v_lane_ids[m])] then
          v_bounds[m] := case when v_has_suspect then 0 else 1 end;
        end if;
        foreach v_rule in array v_rules loop
          continue when v_rule.lane_id <> v_lane_ids[m];
          v_is_weighed := v_is_weighed or v_rule.scope = 'class' and v_varies;
          v_key := headgate.slot_key(v_rule, v_at, v_keys[m]);
          v_place := array_position(v_names, v_rule.name || v_key);
          if v_place is null then
            v_place := cardinality(v_names) + 1;
            v_names[v_place] := v_rule.name || v_key;
            v_slot_rules[v_place] := v_rule;
            v_slot_keys[v_place] := v_key;
            v_rooms[v_place] := headgate.room(v_rule, v_key, v_next.held, p_now);
            v_full[v_place] := v_rooms[v_place];
          end if;
          if v_rooms[v_place] / v_rule.unit < v_bounds[m] then
            v_bounds[m] := greatest(v_rooms[v_place] / v_rule.unit, 0);
            v_is_shared := v_is_shared or v_rule.scope <> 'partition';
          end if;
          if v_rooms[v_place] < v_rule.unit and v_rule.on_saturated in ('discard', 'cancel_incoming') then
            ended := ended || headgate.end_waiting(v_lane_ids[m], v_at, v_keys[m], v_rule.on_saturated, p_now);
          end if;
        end loop;
      end loop;

      -- The jobs. Those of an only group that cost 1 each are taken at once, others one by one.
      v_got := 0;
      if v_is_weighed and v_is_lone and not v_is_split then
        v_is_weighed := exists (
          select from (
            select j.weights from headgate.job j
            where j.lane_id = v_lane_ids[1] and j.partition_key = v_at and j.keys = v_keys[1] and j.state = 'available'
            order by j.priority desc, j.scheduled_at_ms, j.id limit v_bounds[1]
          ) h where h.weights is not null);
      end if;
      if v_bounds not in ('{}', array[0::bigint]) then
        if v_is_lone and not v_is_split and not v_is_weighed then
          select t.taken, t.late, t.closed into v_job from headgate.take_group(v_lane_ids[1], v_at, v_keys[1],
            v_next.priority, v_next.scheduled_at_ms, v_next.id, v_bounds[1], not v_varies, v_has_closed, p_now) t;
          v_got := coalesce(cardinality(v_job.taken), 0);
          v_has_suspect := v_has_suspect or v_got > 0 and p_suspects[1];
          foreach v_rule in array v_rules loop
            v_place := array_position(v_names, v_rule.name || headgate.slot_key(v_rule, v_at, v_keys[1]));
            v_rooms[v_place] := v_rooms[v_place] - v_got * v_rule.unit;
          end loop;
        else
          select t.* into v_job from headgate.take_one_by_one(v_rules, v_names, v_lane_ids, v_keys, v_bounds,
            array(select s.suspect from unnest(v_lane_ids) with ordinality g(id, no)
              join unnest(p_lanes, p_suspects) s(id, suspect) on s.id = g.id order by g.no),
            v_at, least(v_allowed, v_rest), v_has_closed, p_now, v_rooms, v_full, v_has_suspect) t;
          v_got := coalesce(cardinality(v_job.taken), 0);
          v_rooms := v_job.rooms;
          v_full := v_job.fulls;
          v_has_suspect := v_job.has_suspect;
          v_is_shared := v_is_shared or v_job.is_shared;
        end if;
        taken := taken || v_job.taken;
        late := late || v_job.late;
        closed := closed || v_job.closed;
      end if;
      v_rest := v_rest - v_got;

      -- Whose turn it is after this.
      v_turn := v_at;
      v_remaining := case when v_rest = 0 then greatest(v_allowed - v_got, 0) else 0 end;
      if v_is_shared and v_held_turn is null and v_got < v_allowed then
        v_held_turn := v_at;
        v_held_remaining := v_allowed - v_got;
      end if;
      is_round := is_round and not coalesce(v_is_cut, false);
    end loop;
  end loop;
  -- Also behind partitions that were only looked at.
  if v_rest > 0 and v_last is not null then
    v_turn := v_last;
    v_remaining := 0;
  end if;
  -- Where the policy was the bound, and not the capacity: others must not wait for what this one waits for.
  if v_held_turn is not null and is_round and v_rest > 0 then
    v_turn := v_held_turn;
    v_remaining := v_held_remaining;
  end if;
  if visited > 0 then
    perform headgate.end_turn(p_queue, v_turn, v_remaining, v_cuts);
  end if;
  if v_names <> '{}' then
    superseded := headgate.make_room(v_slot_rules, v_slot_keys, v_full, v_rooms, p_now);
    perform headgate.charge(v_slot_rules, v_slot_keys, v_full, v_rooms, p_now);
  end if;
  taken := nullif(taken, '{}');
  ended := nullif(ended, '{}');
end $$;

create function headgate.end_turn(p_queue text, p_turn text, p_remaining int, p_cuts jsonb) returns void
language plpgsql volatile as $$
begin
  insert into headgate.queue_turn as t (queue, partition_key, remaining, cuts) values (p_queue, p_turn, p_remaining, p_cuts)
    on conflict (queue) do update
    set partition_key = excluded.partition_key, remaining = excluded.remaining, cuts = excluded.cuts
    where (t.partition_key, t.remaining, t.cuts) <> (excluded.partition_key, excluded.remaining, excluded.cuts);
end $$;

-- Of what draw() met: the holders that go for the newcomers. Before the charges, since settlements lock jobs first.
create function headgate.make_room(p_rules headgate.rule[], p_keys text[], p_full bigint[], p_rooms bigint[], p_now bigint)
returns text[] language plpgsql volatile as $$
declare
  v_superseded text[];
begin
  for place in 1..cardinality(p_rules) loop
    if p_rules[place].on_saturated = 'cancel_running' and p_rooms[place] < p_full[place] then
      v_superseded := v_superseded || headgate.supersede_oldest(p_rules[place].policy, p_keys[place],
        (p_full[place] - p_rooms[place])::int, p_rules[place].most::int, p_now);
    end if;
  end loop;
  return nullif(v_superseded, '{}');
end $$;

-- Of what draw() met: what was taken from buckets, in the order in which settlements lock them, too. An overdraft is paid
-- back by the refill: a weight beyond the burst is admitted by a full bucket.
create function headgate.charge(p_rules headgate.rule[], p_keys text[], p_full bigint[], p_rooms bigint[], p_now bigint)
returns void language plpgsql volatile as $$
begin
  insert into headgate.bucket as b (class, key, units, at_ms)
    select r.name, s.key, r.burst * r.window_ms - (s.was - s.room), p_now
    from unnest(p_rules, p_keys, p_full, p_rooms)
      s(lane_id, name, policy, scope, nth, most, unit, on_saturated, key, was, room)
    join headgate.rate_class r on r.name = s.policy
    where s.scope = 'class' and s.room <> s.was
    order by r.name, s.key collate "C"
    -- As it is under the row's lock: a settlement that corrects a charge holds no lock of the gate.
    on conflict (class, key) do update set at_ms = greatest(b.at_ms, p_now), units = (
      select headgate.refilled(b.units, b.at_ms, p_now, r.rate_limit, r.window_ms, r.burst)
        - (r.burst * r.window_ms - excluded.units)
      from headgate.rate_class r where r.name = b.class);
end $$;

-- The oldest holders of a slot that came before this moment, but for those that other transactions are writing.
create function headgate.lock_oldest(p_limit text, p_slot text, p_count int, p_now bigint) returns text[]
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  return array(
    select j.id from headgate.job j
    where j.id = any(array(select h.id from headgate.holders(p_limit, p_slot) h where h.claimed_at_ms < p_now
      order by h.claimed_at_ms, h.id)) and j.state || '' = 'running'
    order by j.claimed_at_ms, j.id limit p_count
    for no key update skip locked);
end $$;

-- Newest wins: as many of the oldest holders of a slot go as so many newcomers need.
create function headgate.supersede_oldest(p_limit text, p_slot text, p_newcomers int, p_most int, p_now bigint) returns text[]
language plpgsql volatile as $$
declare
  v_excess int := (select count(*) from headgate.holders(p_limit, p_slot)) + p_newcomers - p_most;
begin
  return array(select s.job_id from headgate.supersede(
    headgate.lock_oldest(p_limit, p_slot, greatest(v_excess, 0), p_now)) s);
end $$;

-- Waiting jobs of a full slot whose limit does not let them wait: a bounded number a call.
create function headgate.end_waiting(p_lane int, p_partition text, p_keys text, p_how text, p_now bigint) returns text[]
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_ids text[] := array(
    select j.id from (
      select j.id, j.fingerprint, headgate.is_late(j, p_now) as is_late from headgate.job j
      where j.lane_id = p_lane and j.partition_key = p_partition and j.keys = p_keys and j.state = 'available'
      order by j.priority desc, j.scheduled_at_ms, j.id limit 100
      for no key update skip locked
    ) j where not j.is_late and not headgate.is_closed(j.fingerprint));
begin
  if p_how = 'discard' then
    return array(select d.job_id from headgate.discard(v_ids) d);
  end if;
  return array(select c.job_id from headgate.cancel_incoming(v_ids) c);
end $$;

-- What each job costs, by bucket.
create function headgate.charges(p_ids text[]) returns table (id text, class text, key text, weight bigint)
language sql stable as $$
  select j.id, c.class, headgate.key_at(j.keys, c.nth::int), coalesce(j.weights[c.nth], 1)::bigint
  from headgate.job j join headgate.lane l on l.id = j.lane_id
  cross join unnest(l.classes) with ordinality c(class, nth)
  where j.id = any(p_ids)
$$;
