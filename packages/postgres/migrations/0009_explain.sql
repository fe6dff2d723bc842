-- "Why is it not running?", answered by the gate's own functions for one job: explain(). It names one cause, the first
-- that the gate would meet:
--   schedule, quarantine, held_by_switch, held_by_routing, held_by_rate, held_by_limit, turn_of.
-- Each looks at a bounded number of groups and jobs, and says where it stopped: none costs more for a longer queue.

-- What is asked of a job, without its payload.
create type headgate.asked as (
  id text, state text, reason text, kind text, queue text, lane_id int, partition_key text, keys text, priority smallint,
  scheduled_at_ms bigint, weights int[], fingerprint text, crash_attempt int, crash_limit int, fall_back_at_ms bigint,
  ends_as text -- what the gate would archive it for, or null
);

-- blocked_by null: nothing holds it. estimate_ms null: nobody can know.
create type headgate.cause as (blocked_by text, detail jsonb, estimate_ms bigint);

create function headgate.asked_about(p_ids text[], p_now bigint) returns setof headgate.asked language sql stable as $$
  select j.id, j.state, j.reason, j.kind, j.queue, j.lane_id, j.partition_key, j.keys, j.priority, j.scheduled_at_ms,
    j.weights, j.fingerprint, j.crash_attempt, j.crash_limit, j.fall_back_at_ms,
    case when headgate.is_late(j, p_now) then case when j.deadline_at_ms <= p_now then 'deadline' else 'queue_timeout' end end
  from headgate.job j where j.id = any(p_ids)
$$;

-- Asked of each lane alone: as a condition the planner would join it with all ready jobs.
create function headgate.has_ready(p_lane int) returns boolean language sql stable as $$
  select (select true from headgate.job j where j.lane_id = p_lane and j.state = 'available' limit 1) is true
$$;

-- The switches that open_lanes() and draw() obey.
create function headgate.held_by_switch(p_job headgate.asked, p_lane headgate.lane) returns headgate.cause
language sql stable as $$
  select row(s.blocked_by, jsonb_build_object('switch', s.switch, 'name', s.name), null)::headgate.cause from (
    select 1 as place, 'queue_paused' as blocked_by, 'queue' as switch, q.name from headgate.queue q
      where q.name = p_lane.queue and q.is_paused
    union all select 2, 'paused', 'kind', k.name from headgate.kind k where k.name = p_lane.kind and k.is_paused
    union all select 3, 'paused', 'rate_class', r.name from headgate.rate_class r
      where r.name = any(p_lane.classes) and r.is_paused
    union all select 4, 'paused', 'concurrency_limit', c.name from headgate.concurrency_limit c
      where c.is_paused and (c.scope in ('queue', 'partition') and c.subject = p_lane.queue
        or c.scope = 'kind' and c.subject = p_lane.kind or c.scope = 'key' and c.name = any(p_lane.limits))
    union all select 5, 'paused', 'partition', p.partition_key from headgate.partition p
      where p.queue = p_lane.queue and p.partition_key = p_job.partition_key and p.is_paused
  ) s order by s.place, s.name limit 1
$$;

-- Whether a worker takes work at all: it is alive, and was not told otherwise.
create function headgate.takes_work(p_worker headgate.worker, p_now bigint) returns boolean language sql stable as $$
  select p_worker.seen_at_ms + p_worker.lease_ms > p_now and not p_worker.is_quiet and not p_worker.is_draining
$$;

-- Whether a live worker may take from the lane, as open_lanes() would tell it. A worker that jobs are pinned to may be
-- full; any other is as good as the next.
create function headgate.is_served(p_lane headgate.lane, p_now bigint) returns boolean language sql stable as $$
  select exists (
    select from headgate.worker w
    cross join unnest(w.kinds, w.versions) known(kind, version)
    cross join lateral headgate.open_lanes(w.id, array[p_lane.queue], array[known.kind], array[known.version], p_now) o
    where headgate.takes_work(w, p_now) and p_lane.queue = any(w.queues) and known.kind = p_lane.kind
      and o.id = p_lane.id and (w.id <> p_lane.worker or w.running < w.capacity)
  )
$$;

-- Nobody who is alive may take it: asked only when no switch holds it.
create function headgate.held_by_routing(p_job headgate.asked, p_lane headgate.lane, p_now bigint) returns headgate.cause
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_pinned record;
  v_live int;
  v_serving int;
  v_quiet int;
  v_draining int;
  v_highest int;
begin
  if headgate.is_served(p_lane, p_now) then
    return null;
  end if;
  if p_lane.worker <> '' then
    select w.running, w.capacity, headgate.takes_work(w, p_now) and p_lane.queue = any(w.queues) and exists (
        select from unnest(w.kinds, w.versions) k(kind, version)
        where k.kind = p_lane.kind and k.version >= p_lane.version) as serves
      into v_pinned from headgate.worker w where w.id = p_lane.worker and w.seen_at_ms + w.lease_ms > p_now;
    if found or not p_lane.falls_back then
      return row('sticky_worker', jsonb_build_object('worker', p_lane.worker, 'is_alive', found,
          'serves', coalesce(v_pinned.serves, false), 'running', v_pinned.running, 'capacity', v_pinned.capacity,
          'falls_back_at_ms', p_job.fall_back_at_ms),
        greatest(p_job.fall_back_at_ms - p_now, case when p_job.fall_back_at_ms is not null then 0 end))::headgate.cause;
    end if;
  end if;
  select count(*), count(*) filter (where p_lane.queue = any(w.queues)), max(known.version)
    into v_live, v_serving, v_highest
    from headgate.worker w left join lateral (
      select max(k.version) as version from unnest(w.kinds, w.versions) k(kind, version)
      where k.kind = p_lane.kind and p_lane.queue = any(w.queues)
    ) known on true
    where headgate.takes_work(w, p_now);
  if v_serving = 0 then
    select count(*) filter (where not w.is_draining), count(*) filter (where w.is_draining) into v_quiet, v_draining
      from headgate.worker w where w.seen_at_ms + w.lease_ms > p_now and p_lane.queue = any(w.queues)
        and (w.is_quiet or w.is_draining);
    return row('no_worker', jsonb_build_object('queue', p_lane.queue, 'live_workers', v_live,
      'quiet_workers', v_quiet, 'draining_workers', v_draining), null)::headgate.cause;
  elsif v_highest is null then
    return row('unknown_kind', jsonb_build_object('kind', p_lane.kind, 'queue', p_lane.queue), null)::headgate.cause;
  end if;
  return row('version', jsonb_build_object('kind', p_lane.kind, 'needed', p_lane.version, 'highest_live', v_highest), null)::headgate.cause;
end $$;

-- The jobs of its own group that come first: at most 1,000.
create function headgate.line_before(p_job headgate.asked) returns table (weights int[])
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  return query
  select w.weights from (
    (select j.weights from headgate.job j
      where j.lane_id = p_job.lane_id and j.partition_key = p_job.partition_key and j.keys = p_job.keys
        and j.state = 'available' and j.priority > p_job.priority
      order by j.priority desc, j.scheduled_at_ms, j.id limit 1000)
    union all
    (select j.weights from headgate.job j
      where j.lane_id = p_job.lane_id and j.partition_key = p_job.partition_key and j.keys = p_job.keys
        and j.state = 'available' and j.priority = p_job.priority
        and (j.scheduled_at_ms, j.id) < (p_job.scheduled_at_ms, p_job.id)
      order by j.priority desc, j.scheduled_at_ms, j.id limit 1000)
  ) w limit 1000;
end $$;

-- How much jobs of other groups are charged to a bucket before it is the job's turn, which comes after p_ahead of its own
-- group: in its partition by the order of the queue, of the others as many as take their turns before. Null when it
-- cannot be told: there are too many of them, some wait in another queue, or one has the quantum of the noisy.
create function headgate.rivals_before(
  p_job headgate.asked, p_lane headgate.lane, p_class text, p_key text, p_ahead int, p_now bigint
) returns bigint
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_lanes int[];
  v_queues text[];
  v_partitions text[];
  v_keys text[];
  v_nths int[];
  v_is_cut boolean;
  v_same bigint;
  v_count int;
  v_quantum int := (select q.quantum from headgate.queue q where q.name = p_lane.queue);
  v_auto int := (select greatest(10, max(w.capacity) / 4) from headgate.worker w
    where w.seen_at_ms + w.lease_ms > p_now and p_lane.queue = any(w.queues));
  v_queue_lanes int[] := array(select l.id from headgate.lane l where l.queue = p_lane.queue);
  v_from text;
  v_turn text;
  v_remaining int;
  v_others bigint;
begin
  -- The groups with ready jobs. One that names nothing else is known by its key, the rest are looked for.
  with lane as materialized (
    select l.*, count(*) over () > 50 as is_cut from headgate.lane l
    where p_class = any(l.classes) and headgate.has_ready(l.id)
    limit 51
  ), alone as (
    select l.id, l.queue, ''::text as partition_key, p_key as keys, 1::bigint as nth, l.is_cut from lane l
    where not l.is_partitioned and cardinality(l.classes) + cardinality(l.limits) = 1
  ), jumped as (
    select l.id, l.queue, g.partition_key, g.keys, c.nth, l.is_cut or g.is_cut from lane l
    cross join lateral headgate.groups(array[l.id], '', null, 200) g
    cross join unnest(l.classes) with ordinality c(class, nth)
    where (l.is_partitioned or cardinality(l.classes) + cardinality(l.limits) > 1)
      and c.class = p_class and headgate.key_at(g.keys, c.nth::int) = p_key
  )
  select array_agg(g.id), array_agg(g.queue), array_agg(g.partition_key), array_agg(g.keys), array_agg(g.nth::int),
      coalesce(bool_or(g.is_cut), false)
    into v_lanes, v_queues, v_partitions, v_keys, v_nths, v_is_cut
    from (select * from alone union all select * from jumped) g
    where (g.id, g.partition_key, g.keys) <> (p_job.lane_id, p_job.partition_key, p_job.keys);
  if v_is_cut or exists (
    select from unnest(v_lanes, v_queues, v_partitions, v_keys) g(lane_id, queue, partition_key, keys)
    where g.queue <> p_lane.queue and (select true from headgate.job j where j.lane_id = g.lane_id
      and j.partition_key = g.partition_key and j.keys = g.keys and j.state = 'available' limit 1)
  ) then
    return null;
  end if;

  select coalesce(sum(coalesce(w.weights[w.nth], 1)), 0), count(*) into v_same, v_count
    from (
      select j.weights, g.nth from unnest(v_lanes, v_partitions, v_keys, v_nths) g(lane_id, partition_key, keys, nth)
      cross join lateral (
        select j.weights from headgate.job j
        where j.lane_id = g.lane_id and j.partition_key = g.partition_key and j.keys = g.keys and j.state = 'available'
          and (j.priority > p_job.priority
            or j.priority = p_job.priority and (j.scheduled_at_ms, j.id) < (p_job.scheduled_at_ms, p_job.id))
        order by j.priority desc, j.scheduled_at_ms, j.id limit 1000
      ) j
      where g.partition_key = p_job.partition_key limit 1000
    ) w;
  if v_count = 1000 or v_quantum is null and exists (
    select from (
      select f.held, sum(f.held) over () as total, count(*) over () as peers
      from (select p_job.partition_key union select unnest(v_partitions)) p
      cross join lateral (
        select count(*) as held from headgate.job j
        where j.lane_id = any(v_queue_lanes) and j.state = 'running' and j.partition_key = p.partition_key
      ) f
    ) n where n.held >= 2 and n.held * (n.peers - 1) > 2 * (n.total - n.held) and n.peers > 1
  ) then
    return null;
  end if;

  select t.partition_key, t.remaining into v_turn, v_remaining from headgate.queue_turn t where t.queue = p_lane.queue;
  v_turn := coalesce(v_turn, '');
  v_remaining := coalesce(v_remaining, 0);
  v_from := case when v_remaining > 0 then v_turn else v_turn || chr(1) end;
  with part as (
    select p.partition_key, coalesce(o.quantum, v_quantum, v_auto) as quantum,
      case when p.partition_key >= v_from then 1 else 2 end as lap,
      case when v_remaining > 0 and p.partition_key = v_turn then v_remaining
        else coalesce(o.quantum, v_quantum, v_auto) end as first
    from (select p_job.partition_key union select unnest(v_partitions)) p
    left join headgate.partition o on o.queue = p_lane.queue and o.partition_key = p.partition_key
    where not coalesce(o.is_paused, false)
  ), own as (
    select p.*, case when p_ahead + v_count < p.first then 0
        else 1 + (p_ahead + v_count - p.first) / p.quantum end as rounds
    from part p where p.partition_key = p_job.partition_key
  ), allowed as (
    select p.partition_key, case when (p.lap, p.partition_key) < (own.lap, own.partition_key)
        then p.first + own.rounds * p.quantum
        when own.rounds = 0 then 0 else p.first + (own.rounds - 1) * p.quantum end as jobs
    from part p cross join own where p.partition_key <> own.partition_key
  )
  select case when (select coalesce(sum(a.jobs), 0) from allowed a) <= 20000
      then coalesce(sum(coalesce(w.weights[w.nth], 1)), 0) end into v_others
    from allowed a cross join lateral (
    select j.weights, g.nth from unnest(v_lanes, v_partitions, v_keys, v_nths) g(lane_id, partition_key, keys, nth)
    cross join lateral (
      select j.weights, j.priority, j.scheduled_at_ms, j.id from headgate.job j
      where j.lane_id = g.lane_id and j.partition_key = g.partition_key and j.keys = g.keys and j.state = 'available'
      order by j.priority desc, j.scheduled_at_ms, j.id limit a.jobs
    ) j
    where g.partition_key = a.partition_key order by j.priority desc, j.scheduled_at_ms, j.id limit a.jobs
  ) w where (select coalesce(sum(a.jobs), 0) from allowed a) <= 20000;
  return v_same + v_others;
end $$;

-- What the policies leave for one group. A slot of a limit has room for jobs, a bucket for units.
create type headgate.room_left as (
  policy text, key text, scope text, nth int, unit bigint, most bigint, room bigint, running int, on_saturated text
);

create function headgate.rooms_left(p_lane int, p_partition text, p_keys text, p_now bigint) returns setof headgate.room_left
language sql stable as $$
  select r.policy, k.key, r.scope, r.nth, r.unit, r.most, case
      when r.scope <> 'class' then case when r.on_saturated = 'cancel_running' then r.most
        else greatest(r.most - h.running, 0) end
      when b.closed_until_ms > p_now then 0
      else greatest(headgate.refilled(b.units, b.at_ms, p_now, c.rate_limit, c.window_ms, c.burst), 0) end,
    h.running, r.on_saturated
  from headgate.rules(array[p_lane]) r
  cross join lateral (select headgate.slot_key(r, p_partition, p_keys) as key) k
  left join headgate.rate_class c on r.scope = 'class' and c.name = r.policy
  left join headgate.bucket b on r.scope = 'class' and b.class = r.policy and b.key = k.key
  cross join lateral (select case when r.scope <> 'class'
    then (select count(*) from headgate.holders(r.policy, k.key))::int end as running) h
$$;

-- A bucket holds less than the job and those before it in its group take. Of several, the one that will have enough last.
create function headgate.held_by_rate(
  p_job headgate.asked, p_lane headgate.lane, p_rooms headgate.room_left[], p_now bigint, p_is_timed boolean
) returns headgate.cause
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_found record;
begin
  with line as materialized (
    select l.weights from headgate.line_before(p_job) l
  ), line_length as (
    select count(*)::int as jobs from line
  ), bucket as (
    select r.policy, r.key, r.room, c.rate_limit, c.window_ms, c.burst, s.jobs,
      coalesce(p_job.weights[r.nth], 1) as weight, least(r.unit * coalesce(p_job.weights[r.nth], 1), r.most) as own,
      coalesce((select sum(least(r.unit * coalesce(l.weights[r.nth], 1), r.most)) from line l), 0) as before,
      coalesce((select sum(coalesce(l.weights[r.nth], 1)) from line l), 0)::bigint as charged,
      nullif(greatest(b.closed_until_ms, p_now), p_now) as closed_until_ms,
      headgate.refilled(b.units, b.at_ms, p_now, c.rate_limit, c.window_ms, c.burst) as units,
      headgate.refilled(b.units, b.at_ms, greatest(b.closed_until_ms, p_now), c.rate_limit, c.window_ms, c.burst) as opens_with
    from unnest(p_rooms) r
    join headgate.rate_class c on c.name = r.policy
    left join headgate.bucket b on b.class = r.policy and b.key = r.key
    cross join line_length s
    where r.scope = 'class'
  )
  select b.*, case when rival.weight is not null then coalesce(b.closed_until_ms - p_now, 0)
      + (greatest(b.window_ms * (b.charged + rival.weight) + b.own - b.opens_with, 0) + b.rate_limit - 1) / b.rate_limit
      end as wait_ms
    into v_found
    from bucket b
    cross join lateral (
      select case when p_is_timed and b.jobs < 1000
        then headgate.rivals_before(p_job, p_lane, b.policy, b.key, b.jobs, p_now) end as weight) rival
    where b.own + b.before > b.room
    order by wait_ms desc nulls first, b.policy, b.key limit 1;
  if not found then
    return null;
  end if;
  return row('rate_class', jsonb_build_object('class', v_found.policy, 'key', v_found.key,
      'tokens', trunc(v_found.units::numeric / v_found.window_ms, 3), 'needed', v_found.weight,
      'limit', v_found.rate_limit, 'window_ms', v_found.window_ms, 'burst', v_found.burst,
      'closed_until_ms', v_found.closed_until_ms, 'ahead', v_found.jobs, 'is_at_least', v_found.jobs = 1000),
    -- Whoever is full as well makes it a guess.
    case when not exists (select from unnest(p_rooms) r where r.scope <> 'class' and r.room <= 0)
      then v_found.wait_ms end)::headgate.cause;
end $$;

create function headgate.held_by_limit(p_rooms headgate.room_left[]) returns headgate.cause language sql stable as $$
  select row('concurrency_limit', jsonb_build_object('limit', r.policy, 'key', r.key, 'in_use', r.running, 'max', r.most,
    'strategy', r.on_saturated, 'holders', (select coalesce(jsonb_agg(h.id order by h.claimed_at_ms, h.id), '[]') from (
      select h.id, h.claimed_at_ms from headgate.holders(r.policy, r.key) h order by h.claimed_at_ms, h.id limit 10) h)),
    null)::headgate.cause
  from unnest(p_rooms) r where r.scope <> 'class' and r.room <= 0 order by r.policy limit 1
$$;

-- Nothing holds it but that others come first.
create function headgate.turn_of(p_job headgate.asked, p_lane headgate.lane, p_now bigint) returns headgate.cause
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_ahead int := (select count(*) from headgate.line_before(p_job));
  -- A worker that runs a suspect takes no other.
  v_is_suspect boolean := p_lane.suspect and not exists (
    select from headgate.worker w
    where headgate.takes_work(w, p_now) and p_lane.queue = any(w.queues) and p_lane.kind = any(w.kinds)
      and (p_lane.worker in ('', w.id) or p_lane.falls_back)
      and not exists (select from headgate.job r where r.state = 'running' and r.worker = w.id
        and r.lane_id = any(array(select l.id from headgate.lane l where l.suspect))));
  v_groups int;
begin
  if v_ahead = 0 and not v_is_suspect then
    return null;
  end if;
  select count(*) into v_groups from (
    select from headgate.groups(array(
      select l.id from headgate.lane l where l.queue = p_lane.queue and headgate.has_ready(l.id) limit 50), '', null, 50)
    limit 100
  ) g;
  return row('fairness', jsonb_build_object('position', v_ahead + 1, 'is_at_least', v_ahead = 1000, 'groups', v_groups,
    'is_groups_at_least', v_groups >= 50, 'suspect_waits', v_is_suspect), null)::headgate.cause;
end $$;

-- What holds it, other than its turn; without p_is_timed nothing is said of when a bucket will have enough.
create function headgate.cause_of(p_job headgate.asked, p_lane headgate.lane, p_now bigint, p_is_timed boolean) returns headgate.cause
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_cause headgate.cause;
  v_rooms headgate.room_left[];
begin
  if p_job.state in ('pending', 'scheduled', 'retryable') then
    return row('schedule', jsonb_build_object('due_at_ms', case when p_job.state <> 'pending' then p_job.scheduled_at_ms end),
      case when p_job.state <> 'pending' then greatest(p_job.scheduled_at_ms - p_now, 0) end)::headgate.cause;
  elsif p_job.state = 'quarantined' and p_job.reason = 'crash_limit' then
    return row('quarantine', jsonb_build_object('crashes', p_job.crash_attempt, 'limit', p_job.crash_limit,
      'fingerprint', null), null)::headgate.cause;
  elsif p_job.state = 'quarantined' or p_job.state = 'available' and headgate.is_closed(p_job.fingerprint) then
    return row('quarantine', jsonb_build_object('crashes', coalesce(
      (select s.strikes from headgate.strike s where s.fingerprint = p_job.fingerprint), 0),
      'limit', headgate.setting('strike_limit', 3), 'fingerprint', p_job.fingerprint), null)::headgate.cause;
  elsif p_job.state <> 'available' then
    return null;
  elsif p_job.ends_as is not null then
    return row(null, jsonb_build_object('ends_as', p_job.ends_as), null)::headgate.cause;
  end if;
  v_cause := headgate.held_by_switch(p_job, p_lane);
  if v_cause.blocked_by is null then
    v_cause := headgate.held_by_routing(p_job, p_lane, p_now);
  end if;
  if v_cause.blocked_by is null then
    v_rooms := array(select r from headgate.rooms_left(p_job.lane_id, p_job.partition_key, p_job.keys, p_now) r);
    v_cause := headgate.held_by_rate(p_job, p_lane, v_rooms, p_now, p_is_timed);
  end if;
  if v_cause.blocked_by is null then
    v_cause := headgate.held_by_limit(v_rooms);
  end if;
  return v_cause;
end $$;

-- No row when there is no such job.
create function headgate.explain(p_id text)
returns table (state text, admissible boolean, blocked_by text, detail jsonb, estimate_ms bigint)
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_job headgate.asked;
  v_lane headgate.lane;
  v_cause headgate.cause;
begin
  select * into v_job from headgate.asked_about(array[p_id], v_now);
  if not found then
    return;
  end if;
  select * into v_lane from headgate.lane l where l.id = v_job.lane_id;
  v_cause := headgate.cause_of(v_job, v_lane, v_now, true);
  if v_cause.blocked_by is null and v_job.state = 'available' and v_job.ends_as is null then
    v_cause := headgate.turn_of(v_job, v_lane, v_now);
    admissible := v_cause.blocked_by is null;
  end if;
  -- Here and not in cause_of(), which a sweep asks of many jobs.
  if v_cause.blocked_by = 'schedule' then
    v_cause.detail := v_cause.detail || jsonb_build_object('last_error_tag', (
      select coalesce(a.error_tag, case when a.error_message is not null then a.outcome end)
      from headgate.job j join headgate.attempt a on a.job_id = j.id and a.fence = j.fence
      where j.id = p_id and j.state = 'retryable'));
  end if;
  state := v_job.state;
  admissible := coalesce(admissible, false);
  blocked_by := v_cause.blocked_by;
  detail := v_cause.detail;
  estimate_ms := v_cause.estimate_ms;
  return next;
end $$;
