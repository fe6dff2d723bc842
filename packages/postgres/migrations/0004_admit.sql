-- The gate. admit() answers "what may this worker run now?" in one call:
--   open_lanes     which lanes this worker can take from now (queue, kind, version, switches). An only lane without
--                  policies is taken from and claimed in one statement, unless a fingerprint is closed; everything else
--                  goes in rounds:
--   queue_shares   how much of the free capacity each queue gets, where several have work;
--   take, or draw  the jobs themselves, locked, passing over what rivals hold: from the heads of a queue's lanes where
--                  no policy applies, by draw() where one does;
--   claim          the lease written on exactly the rows taken. What waited past its deadline or its time in the queue,
--                  or whose fingerprint is closed, leaves the queue instead, and its place goes to the next job.
-- Rounds are repeated while there is room and one of them may have left something.

-- How much of the capacity each lane gets. Each lane shows its head up to a number of jobs; a lane that wins all it has
-- shown may hold more winners, so it shows more and the draw is repeated.
create function headgate.share(p_lanes int[], p_suspects boolean[], p_capacity int)
returns table (lanes int[], shares int[])
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_shown int[];
  v_more boolean;
begin
  select array_agg(case when s then 1 else least(p_capacity, 2 * p_capacity / cardinality(p_lanes) + 2) end order by n)
    into v_shown from unnest(p_suspects) with ordinality u(s, n);
  loop
    select array_agg(w.lane_id), array_agg(w.won) into lanes, shares from (
      select n.lane_id, count(*)::int as won from (
        select head.* from unnest(p_lanes, v_shown) lane(id, shown)
        cross join lateral (
          select j.lane_id, j.priority, j.scheduled_at_ms, j.id from headgate.job j
          where j.lane_id = lane.id and j.partition_key = '' and j.keys = '' and j.state = 'available'
          order by j.priority desc, j.scheduled_at_ms, j.id limit lane.shown
        ) head
        order by head.priority desc, head.scheduled_at_ms, head.id limit p_capacity
      ) n group by n.lane_id
    ) w;
    exit when lanes is null;

    select array_agg(case when w.won = l.shown and not l.suspect then least(p_capacity, 8 * l.shown) else l.shown end
        order by l.n), bool_or(w.won = l.shown and l.shown < p_capacity and not l.suspect)
      into v_shown, v_more
      from unnest(p_lanes, p_suspects, v_shown) with ordinality l(id, suspect, shown, n)
      left join unnest(lanes, shares) w(lane_id, won) on w.lane_id = l.id;
    exit when not coalesce(v_more, false);
  end loop;
  if lanes is not null then
    return next;
  end if;
end $$;

-- A worker holds one suspect at a time. Two calls of one worker must not take one each: the lock makes them see one another.
create function headgate.may_have_suspect(p_worker text) returns boolean language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  return pg_try_advisory_xact_lock(hashtextextended('headgate suspect ' || p_worker, 0)) and not exists (
    select from headgate.job r where r.worker = p_worker and r.state = 'running'
      and r.lane_id in (select l.id from headgate.lane l where l.suspect));
end $$;

-- Of the lanes of suspects only that of the first in the queue stays.
create function headgate.first_suspect(p_lanes int[], p_suspects boolean[], out lanes int[], out suspects boolean[])
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_lane int;
begin
  select head.lane_id into v_lane from unnest(p_lanes, p_suspects) lane(id, suspect)
    cross join lateral (
      select j.lane_id, j.priority, j.scheduled_at_ms, j.id from headgate.job j
      where j.lane_id = lane.id and j.partition_key = '' and j.keys = '' and j.state = 'available'
      order by j.priority desc, j.scheduled_at_ms, j.id limit 1
    ) head
    where lane.suspect order by head.priority desc, head.scheduled_at_ms, head.id limit 1;
  select array_agg(l.id), array_agg(l.suspect) into lanes, suspects
    from unnest(p_lanes, p_suspects) l(id, suspect) where not l.suspect or l.id = v_lane;
end $$;

-- How much of the capacity each queue gets, of those that have a ready job. Strict ones go first, the heaviest before the
-- others, each until it is empty. The rest share by weight (virtual-time fair queuing): the next job always comes from the
-- queue that was served least for its weight, by name where several were; that one also comes first to what they share, as
-- a rate class. What a queue could not use is nobody's debt: none is further behind the most served than one job.
create function headgate.queue_shares(p_lanes int[], p_queues text[], p_capacity int)
returns table (queue text, share int)
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_scale constant bigint := 1000000;
  v_queues text[] := array(select distinct l.queue from unnest(p_lanes, p_queues) l(id, queue)
    where exists (select from headgate.job j where j.lane_id = l.id and j.state = 'available') order by l.queue);
begin
  if cardinality(v_queues) > 1 then
    v_queues := coalesce((select array[q.name] from headgate.queue q where q.name = any(v_queues) and q.is_strict
      order by q.weight desc, q.name limit 1), v_queues);
  end if;
  if cardinality(v_queues) < 2 then
    return query select q.name, p_capacity from unnest(v_queues) q(name);
    return;
  end if;
  insert into headgate.queue_turn (queue) select q.name from unnest(v_queues) q(name)
    where not exists (select from headgate.queue_turn t where t.queue = q.name) order by 1 on conflict do nothing;
  perform from headgate.queue_turn t where t.queue = any(v_queues) order by t.queue for update;
  update headgate.queue_turn t set served = most.served - v_scale
    from (select max(m.served) as served from headgate.queue_turn m where m.queue = any(v_queues)) most
    where t.queue = any(v_queues) and t.served < most.served - v_scale;
  return query
    select o.queue, count(n.queue)::int from headgate.queue_turn o left join (
      select t.queue from headgate.queue_turn t
      left join headgate.queue q on q.name = t.queue
      cross join generate_series(1, p_capacity) n
      where t.queue = any(v_queues)
      order by t.served + n * v_scale / coalesce(q.weight, 1), t.queue limit p_capacity
    ) n on n.queue = o.queue
    where o.queue = any(v_queues) group by o.queue, o.served order by o.served, o.queue;
end $$;

-- Jobs of lanes without policies, in queue order over all of them. A lane that gave less than its share is dry, and so
-- is one that gave a suspect.
create function headgate.take(
  p_lanes int[], p_suspects boolean[], p_capacity int, p_now bigint,
  out taken tid[], out late text[], out closed text[], out dry int[]
) language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_has_closed boolean := exists (select from headgate.strike s where s.closed_at_ms is not null);
  v_lanes int[];
  v_shares int[];
  v_given int[];
begin
  select s.lanes, s.shares into v_lanes, v_shares from headgate.share(p_lanes, p_suspects, p_capacity) s;
  select array_agg(t.row) filter (where not t.is_late and not t.is_closed), array_agg(t.id) filter (where t.is_late),
      array_agg(t.id) filter (where t.is_closed and not t.is_late), array_agg(lane.id)
    into taken, late, closed, v_given
    from unnest(v_lanes, v_shares) lane(id, share)
    cross join lateral (
      select j.ctid as row, j.id, headgate.is_late(j, p_now) as is_late,
        v_has_closed and exists (select from headgate.strike s
            where s.fingerprint = j.fingerprint and s.closed_at_ms is not null) as is_closed
      from headgate.job j
      where j.lane_id = lane.id and j.partition_key = '' and j.keys = '' and j.state = 'available'
      order by j.priority desc, j.scheduled_at_ms, j.id limit lane.share
      for no key update skip locked
    ) t;
  if v_lanes is null then
    dry := p_lanes;
    return;
  end if;
  dry := array(select s.id from unnest(v_lanes, v_shares) s(id, share)
    left join (select g.id, count(*) as jobs from unnest(v_given) g(id) group by g.id) given on given.id = s.id
    where coalesce(given.jobs, 0) < s.share
      or given.jobs > 0 and s.id in (select l.id from unnest(p_lanes, p_suspects) l(id, suspect) where l.suspect));
end $$;

-- The same for the only lane of a queue. While an old snapshot is held somewhere, claimed jobs stay in the index, and each
-- call has to pass all of them before it comes to the head. When that takes long, the place of the head is remembered
-- for a second of real time, and the next calls begin there; one that finds too little looks from the start again.
-- Meanwhile a job that comes in before that place (of higher priority, handed back, or committed late) waits so long.
create function headgate.take_one(
  p_lane int, p_capacity int, p_now bigint, out taken tid[], out late text[], out closed text[], out dry int[]
) language plpgsql volatile as $$
declare
  v_started timestamptz := clock_timestamp();
  v_looked bigint := headgate.looked_at();
  v_lane record;
  v_given int := 0;
begin
  select l.head_until, l.head_priority, l.head_at_ms, l.head_id,
      exists (select from headgate.strike s where s.closed_at_ms is not null) as has_closed
    into v_lane from headgate.lane l where l.id = p_lane;
  if v_lane.head_until > v_started then
    select t.taken, t.late, t.closed into taken, late, closed from headgate.take_group(p_lane, '', '',
      v_lane.head_priority, v_lane.head_at_ms, v_lane.head_id, p_capacity, true, v_lane.has_closed, p_now) t;
    v_given := coalesce(cardinality(taken), 0) + coalesce(cardinality(late), 0) + coalesce(cardinality(closed), 0);
  end if;
  if v_given < p_capacity then
    select t.taken, t.late, t.closed into taken, late, closed
      from headgate.take_group(p_lane, '', '', null, null, null, p_capacity, true, v_lane.has_closed, p_now) t;
    v_given := coalesce(cardinality(taken), 0) + coalesce(cardinality(late), 0) + coalesce(cardinality(closed), 0);
    v_lane.head_until := v_started + interval '1 second';
  end if;
  if v_given < p_capacity then
    dry := array[p_lane];
  end if;
  if taken is not null and headgate.is_slow(v_started, v_looked, p_capacity) then
    perform headgate.remember_head(p_lane, taken, v_lane.head_until);
  end if;
end $$;

-- Slow, and for a reason that the head's place would mend: it has looked at many more jobs than it was to claim. On a busy
-- machine every call takes long.
create function headgate.is_slow(p_started timestamptz, p_looked bigint, p_capacity int) returns boolean
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  return clock_timestamp() > p_started + interval '5 ms' + p_capacity * interval '20 microseconds'
    and headgate.looked_at() > p_looked + 2 * p_capacity + 2000;
end $$;

-- How many ready jobs this session has looked at, those among them that are gone.
create function headgate.looked_at() returns bigint language sql volatile as $$
  select pg_stat_get_xact_tuples_returned('headgate.job_ready'::regclass)
$$;

-- The last of these jobs, unless they were of several priorities; a rival that remembers it now knows as much.
create function headgate.remember_head(p_lane int, p_taken tid[], p_until timestamptz) returns void
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  update headgate.lane l set head_until = p_until, head_priority = last.priority, head_at_ms = last.scheduled_at_ms,
      head_id = last.id
    from (
      select j.priority, j.scheduled_at_ms, j.id, min(j.priority) over () as lowest, max(j.priority) over () as highest
      from headgate.job j where j.ctid = any(p_taken) order by j.scheduled_at_ms desc, j.id desc limit 1
    ) last
    where l.id = (select o.id from headgate.lane o where o.id = p_lane for no key update skip locked)
      and last.lowest = last.highest;
end $$;

-- A row of an answer. Without a fence it is no claim: the job left the queue, and `reason` says why. Without a job too it
-- says that the call stopped at its budget of groups to look at, and another call would see more.
create type headgate.admission as (
  id text, fence bigint, kind text, schema_version int, queue text, partition_key text, payload bytea,
  priority smallint, attempt int, max_attempts int, crash_attempt int, streak int, enqueued_at_ms bigint, scheduled_at_ms bigint,
  claimed_at_ms bigint, timeout_ms bigint, deadline_at_ms bigint, retention_ms bigint, headers bytea,
  has_checkpoint boolean, reason text
);

-- Without settings of its own, which cost as much as a table: those of the store's sessions are meant. A session that does
-- not have them, as behind a pooler, is lent them.
create function headgate.admit(
  p_worker text, p_lease_id uuid, p_queues text[], p_kinds text[], p_versions int[], p_capacity int, p_lease_ms bigint,
  p_quantum int default null
) returns setof headgate.admission language plpgsql volatile as $$
declare
  v_now bigint;
  v_started timestamptz;
  v_looked bigint := headgate.looked_at();
  v_claimed int;
begin
  if current_setting('plan_cache_mode') <> 'force_generic_plan' then
    return query select * from headgate.admit_with_settings(
      p_worker, p_lease_id, p_queues, p_kinds, p_versions, p_capacity, p_lease_ms, p_quantum);
    return;
  end if;
  -- No policy changes while a call is under way. As a condition: a PERFORM would be a statement more in every call.
  if pg_advisory_xact_lock_shared(hashtextextended('headgate.policies', 0)) is null then end if;
  v_now := headgate.now_ms();
  v_started := clock_timestamp();
  -- The common case in one statement: the jobs at the head of an only lane without policies. Each table that a statement
  -- opens costs a call for few jobs as much as one of them, so the lane says itself whether there is more to look at.
  return query
    update headgate.job j set state = 'running', fence = j.fence + 1, lease_id = p_lease_id,
      lease_expires_at_ms = v_now + p_lease_ms, worker = p_worker, claimed_at_ms = v_now
    -- By their places, which cannot change while the rows are locked.
    where j.ctid = any(array(
      select t.row from (
        select h.ctid as row, headgate.is_late(h, v_now) as is_late
        from headgate.job h
        where h.partition_key = '' and h.keys = '' and h.state = 'available' and h.lane_id = (
          -- As open_lanes(), without asking who is alive.
          select min(l.id) from headgate.lane l
          where l.queue = any(p_queues) and l.kind = any(p_kinds)
            and l.version <= p_versions[array_position(p_kinds, l.kind)]
            and l.is_open and (l.worker in ('', p_worker) or l.falls_back)
          having count(*) = 1
            and not bool_or(l.is_gated or l.suspect or l.falls_back or l.has_closed or l.head_until > v_started))
        order by h.priority desc, h.scheduled_at_ms, h.id limit p_capacity
        for no key update skip locked
      ) t where not t.is_late))
    returning j.id, j.fence, j.kind, j.schema_version, j.queue, j.partition_key, j.payload, j.priority,
      j.attempt, j.max_attempts, j.crash_attempt, j.streak, j.enqueued_at_ms, j.scheduled_at_ms,
      j.claimed_at_ms, j.timeout_ms, j.deadline_at_ms, j.retention_ms, j.headers,
      j.has_steps or j.in_progress_step is not null or j.cursor_step is not null, null::text;
  get diagnostics v_claimed = row_count;
  if clock_timestamp() > v_started + interval '5 ms' and headgate.is_slow(v_started, v_looked, p_capacity) then
    update headgate.lane l set head_until = v_started + interval '1 second', head_priority = null
      where l.id = (select o.id from headgate.lane o where o.id = (
          select min(l.id) from headgate.open_lanes(p_worker, p_queues, p_kinds, p_versions, v_now) l having count(*) = 1)
        for no key update skip locked);
  end if;
  if v_claimed < p_capacity then
    return query select * from headgate.admit_in_rounds(p_worker, p_lease_id, p_queues, p_kinds, p_versions,
      p_capacity - v_claimed, p_lease_ms, p_quantum, v_now);
  end if;
end $$;

create function headgate.admit_with_settings(
  p_worker text, p_lease_id uuid, p_queues text[], p_kinds text[], p_versions int[], p_capacity int, p_lease_ms bigint,
  p_quantum int
) returns setof headgate.admission language sql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
  select * from headgate.admit(
    p_worker, p_lease_id, p_queues, p_kinds, p_versions, p_capacity, p_lease_ms, p_quantum)
$$;

-- The rest: lanes of several kinds or queues, policies, and what the one statement of admit() left.
create function headgate.admit_in_rounds(
  p_worker text, p_lease_id uuid, p_queues text[], p_kinds text[], p_versions int[], p_capacity int, p_lease_ms bigint,
  p_quantum int, p_now bigint
) returns setof headgate.admission language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_free int := p_capacity;
  v_visits int := 600;    -- partitions looked at under policies, in the whole call
  v_writes int := 0;
  v_is_short boolean := false;   -- the call stops at its budget
  v_lanes int[];
  v_lane_queues text[];
  v_suspects boolean[];
  v_gated text[];
  v_queues text[];
  v_shares int[];
  v_own int[];
  v_own_suspects boolean[];
  v_dry int[];
  v_taken tid[];
  v_late text[];
  v_closed text[];
  v_ended text[];
  v_superseded text[];
  v_visited int;
  v_is_round boolean;
  v_count int;
  v_has_closed boolean;
begin
  select array_agg(l.id), array_agg(l.queue), array_agg(l.suspect), array_agg(l.queue) filter (where l.is_gated),
      bool_or(l.has_closed)
    into v_lanes, v_lane_queues, v_suspects, v_gated, v_has_closed
    from headgate.open_lanes(p_worker, p_queues, p_kinds, p_versions, p_now) l;
  if v_gated is not null then
    perform headgate.lock_policies(array(select l.id from unnest(v_lanes, v_lane_queues) l(id, queue)
      where l.queue = any(v_gated)));
  end if;
  if true = any(v_suspects) and not headgate.may_have_suspect(p_worker) then
    select array_agg(l.id), array_agg(l.queue), array_agg(l.suspect) into v_lanes, v_lane_queues, v_suspects
      from unnest(v_lanes, v_lane_queues, v_suspects) l(id, queue, suspect) where not l.suspect;
  end if;

  -- A bounded number of rounds that write; each of the others finds a lane at least that has nothing to give.
  for round in 1..1000 loop
    exit when v_free <= 0 or cardinality(v_lanes) = 0 or v_lanes is null or v_writes >= 20;
    if v_lane_queues[1] = all(v_lane_queues) then
      v_queues := v_lane_queues[1:1];
      v_shares := array[v_free];
    else
      select array_agg(s.queue), array_agg(s.share) into v_queues, v_shares
        from headgate.queue_shares(v_lanes, v_lane_queues, v_free) s;
      if v_queues is null then
        v_lanes := null;
        exit;
      end if;
    end if;

    for n in 1..cardinality(v_queues) loop
      continue when v_shares[n] = 0;
      if cardinality(v_queues) = 1 and v_lane_queues[1] = all(v_lane_queues) then
        v_own := v_lanes;
        v_own_suspects := v_suspects;
      else
        select array_agg(l.id), array_agg(l.suspect) into v_own, v_own_suspects
          from unnest(v_lanes, v_lane_queues, v_suspects) l(id, queue, suspect) where l.queue = v_queues[n];
        -- A suspect that another queue has given in this round was all that this one had.
        continue when v_own is null;
      end if;
      if v_queues[n] = any(v_gated) then
        select d.taken, d.late, d.closed, d.ended, d.superseded, d.visited, d.is_round
          into v_taken, v_late, v_closed, v_ended, v_superseded, v_visited, v_is_round
          from headgate.draw(v_queues[n], v_own, v_own_suspects, v_shares[n], p_quantum,
            -- One queue full of held partitions must not use up what the others need.
            least(v_visits, greatest(v_visits / (select count(distinct l.queue)::int
              from unnest(v_lane_queues) l(queue) where l.queue = any(v_gated)), 20)), p_now) d;
        v_visits := v_visits - v_visited;
        -- All partitions were seen, and gave nothing: they have nothing to give.
        v_dry := case when v_visited = 0 or v_is_round and v_taken is null and v_late is null and v_closed is null and v_ended is null
          then v_own else '{}'::int[] end;
        if v_visits <= 0 or not v_is_round and v_taken is null and v_late is null and v_closed is null and v_ended is null then
          v_is_short := v_is_short or coalesce(cardinality(v_taken), 0) < v_shares[n];
          v_dry := v_own;
        end if;
      else
        if v_own_suspects = array[false] then
          select t.taken, t.late, t.closed, t.dry into v_taken, v_late, v_closed, v_dry
            from headgate.take_one(v_own[1], v_shares[n], p_now) t;
        else
          v_dry := v_own;
          if true = any(v_own_suspects) then
            select f.lanes, f.suspects into v_own, v_own_suspects from headgate.first_suspect(v_own, v_own_suspects) f;
          end if;
          v_taken := null;
          v_late := null;
          v_closed := null;
          if v_own is not null then
            select t.taken, t.late, t.closed, t.dry into v_taken, v_late, v_closed, v_dry
              from headgate.take(v_own, v_own_suspects, v_shares[n], p_now) t;
          end if;
        end if;
        v_ended := null;
        v_superseded := null;
      end if;

      if true = any(v_suspects) and exists (select from headgate.job j
          join unnest(v_lanes, v_suspects) l(id, suspect) on l.id = j.lane_id and l.suspect where j.ctid = any(v_taken)) then
        v_dry := v_dry || array(select l.id from unnest(v_lanes, v_suspects) l(id, suspect) where l.suspect);
      end if;
      if v_late is not null or v_closed is not null or v_ended is not null or v_superseded is not null then
        return query select * from headgate.leave(v_late, v_closed, v_ended, v_superseded, p_now);
        v_writes := v_writes + 1;
      end if;
      if v_taken is not null then
        return query
          update headgate.job j set state = 'running', fence = j.fence + 1, lease_id = p_lease_id,
            lease_expires_at_ms = p_now + p_lease_ms, worker = p_worker, claimed_at_ms = p_now
          -- By their places, which cannot change while the rows are locked.
          where j.ctid = any(v_taken)
          returning j.id, j.fence, j.kind, j.schema_version, j.queue, j.partition_key, j.payload, j.priority,
            j.attempt, j.max_attempts, j.crash_attempt, j.streak, j.enqueued_at_ms, j.scheduled_at_ms,
            j.claimed_at_ms, j.timeout_ms, j.deadline_at_ms, j.retention_ms, j.headers,
            j.has_steps or j.in_progress_step is not null or j.cursor_step is not null, null::text;
        get diagnostics v_count = row_count;
        v_writes := v_writes + 1;
        v_free := v_free - v_count;
        if cardinality(v_queues) > 1 then
          update headgate.queue_turn t set served = t.served + v_count * 1000000 / coalesce(
              (select q.weight from headgate.queue q where q.name = v_queues[n]), 1)
            where t.queue = v_queues[n];
        end if;
      end if;
      exit when v_free <= 0;
      if cardinality(v_dry) > 0 then
        select array_agg(l.id), array_agg(l.queue), array_agg(l.suspect) into v_lanes, v_lane_queues, v_suspects
          from unnest(v_lanes, v_lane_queues, v_suspects) l(id, queue, suspect) where l.id <> all(v_dry);
      end if;
    end loop;
  end loop;
  if v_has_closed then
    perform headgate.forget_closed();
  end if;
  if v_free > 0 and (v_is_short or cardinality(v_lanes) > 0) then
    return query select null::text, null::bigint, null::text, null::int, null::text, null::text, null::bytea,
      null::smallint, null::int, null::int, null::int, null::int, null::bigint, null::bigint, null::bigint,
      null::bigint, null::bigint, null::bigint, null::bytea, false, 'more'::text;
  end if;
end $$;

-- What the gate met and does not admit.
create function headgate.leave(p_late text[], p_closed text[], p_ended text[], p_superseded text[], p_now bigint)
returns setof headgate.admission language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  update headgate.job j set state = 'archived', finished_at_ms = p_now,
    reason = case when j.deadline_at_ms <= p_now then 'deadline' else 'queue_timeout' end
  where j.id = any(p_late);
  perform headgate.record_callbacks(p_late);
  perform headgate.quarantine_waiting(p_closed);
  return query
    select j.id, null::bigint, j.kind, j.schema_version, j.queue, j.partition_key, ''::bytea, j.priority,
      j.attempt, j.max_attempts, j.crash_attempt, j.streak, j.enqueued_at_ms, j.scheduled_at_ms,
      j.claimed_at_ms, j.timeout_ms, j.deadline_at_ms, j.retention_ms, null::bytea, false, j.reason
    from headgate.job j where j.id = any(p_late || p_closed || p_ended || p_superseded);
end $$;
