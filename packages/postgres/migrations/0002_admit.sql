-- The gate. admit() answers "what may this worker run now?" in one call:
--   lanes  which lanes this worker can take from (queue, kind, version), and whether it may take a suspect;
--   share  how much of the free capacity each lane gets, by queue order over all lanes, read without locks;
--   take   each lane's share from its head, locked, passing over what rivals hold;
--   claim  the lease written on exactly the rows taken. What waited past its deadline or its time in the queue is
--          archived instead, told by a row without a fence, and its place goes to the next job.
-- Rounds are repeated where late jobs took places, or where rivals held what a lane was to give.

-- How much of the capacity each lane gets. Each lane shows its head up to a number of jobs; a lane that wins all it has
-- shown may hold more winners, so it shows more and the draw is repeated.
create function headgate.share(p_lanes int[], p_suspects boolean[], p_capacity int)
returns table (lanes int[], shares int[])
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
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
          where j.lane_id = lane.id and j.state = 'available'
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

-- Of the lanes of suspects at most one stays: that of the job which is first in the queue, and none while the worker
-- holds one already. Two calls of one worker must not take a suspect each: the lock makes them see one another.
create function headgate.one_suspect(p_worker text, p_lanes int[], p_suspects boolean[])
returns table (lanes int[], suspects boolean[])
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  v_lane int;
begin
  if pg_try_advisory_xact_lock(hashtextextended('headgate suspect ' || p_worker, 0)) and not exists (
    select from headgate.job r where r.worker = p_worker and r.state = 'running' and r.crash_attempt > 0
  ) then
    select head.lane_id into v_lane from unnest(p_lanes, p_suspects) lane(id, suspect)
      cross join lateral (
        select j.lane_id, j.priority, j.scheduled_at_ms, j.id from headgate.job j
        where j.lane_id = lane.id and j.state = 'available'
        order by j.priority desc, j.scheduled_at_ms, j.id limit 1
      ) head
      where lane.suspect order by head.priority desc, head.scheduled_at_ms, head.id limit 1;
  end if;
  select array_agg(l.id), array_agg(l.suspect) into lanes, suspects
    from unnest(p_lanes, p_suspects) l(id, suspect) where not l.suspect or l.id = v_lane;
  return next;
end $$;

create function headgate.admit(
  p_worker text, p_lease_id uuid, p_queues text[], p_kinds text[], p_versions int[], p_capacity int, p_lease_ms bigint
) returns table (
  id text, fence bigint, kind text, schema_version int, queue text, partition_key text, payload bytea,
  priority smallint, attempt int, max_attempts int, crash_attempt int, streak int, enqueued_at_ms bigint, scheduled_at_ms bigint,
  claimed_at_ms bigint, timeout_ms bigint, deadline_at_ms bigint, retention_ms bigint, headers bytea,
  has_checkpoint boolean
) language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_free int := p_capacity;
  v_all int[];
  v_suspects boolean[];
  v_lanes int[];
  v_shares int[];
  v_taken text[];
  v_late text[];
  v_is_short boolean;
begin
  select array_agg(l.id), array_agg(l.suspect) into v_all, v_suspects
    from unnest(p_kinds, p_versions) known(kind, version)
    join headgate.lane l on l.kind = known.kind and l.version <= known.version and l.queue = any(p_queues);

  if true = any(v_suspects) then
    select s.lanes, s.suspects into v_all, v_suspects from headgate.one_suspect(p_worker, v_all, v_suspects) s;
  end if;

  -- A bounded number of rounds, since each is a write.
  for round in 1..10 loop
    exit when v_all is null or v_free <= 0;
    if cardinality(v_all) = 1 then
      v_lanes := v_all;
      v_shares := array[case when v_suspects[1] then 1 else v_free end];
    else
      select s.lanes, s.shares into v_lanes, v_shares from headgate.share(v_all, v_suspects, v_free) s;
    end if;
    exit when v_lanes is null;

    select array_agg(t.id) filter (where not t.is_late), array_agg(t.id) filter (where t.is_late) into v_taken, v_late
      from unnest(v_lanes, v_shares) lane(id, share)
      cross join lateral (
        select j.id, coalesce(j.deadline_at_ms <= v_now, false)
          or coalesce(j.scheduled_at_ms + j.queue_timeout_ms <= v_now
            and (j.claimed_at_ms is null or j.scheduled_at_ms > j.claimed_at_ms), false) as is_late
        from headgate.job j
        where j.lane_id = lane.id and j.state = 'available'
        order by j.priority desc, j.scheduled_at_ms, j.id limit lane.share
        for no key update skip locked
      ) t;
    if cardinality(v_all) > 1 then
      v_is_short := coalesce(cardinality(v_taken), 0) + coalesce(cardinality(v_late), 0)
        < (select sum(s.share) from unnest(v_shares) s(share));
    else
      v_is_short := false;
    end if;
    exit when v_taken is null and v_late is null and not v_is_short;

    if v_late is not null then
      return query
        update headgate.job j set state = 'archived', finished_at_ms = v_now,
          reason = case when j.deadline_at_ms <= v_now then 'deadline' else 'queue_timeout' end
        where j.id = any(v_late)
        returning j.id, null::bigint, j.kind, j.schema_version, j.queue, j.partition_key, ''::bytea, j.priority,
          j.attempt, j.max_attempts, j.crash_attempt, j.streak, j.enqueued_at_ms, j.scheduled_at_ms,
          j.claimed_at_ms, j.timeout_ms, j.deadline_at_ms, j.retention_ms, null::bytea, false;
    end if;

    return query
      update headgate.job j set state = 'running', fence = j.fence + 1, lease_id = p_lease_id,
        lease_expires_at_ms = v_now + p_lease_ms, worker = p_worker, claimed_at_ms = v_now
      where j.id = any(v_taken)
      returning j.id, j.fence, j.kind, j.schema_version, j.queue, j.partition_key, j.payload, j.priority,
        j.attempt, j.max_attempts, j.crash_attempt, j.streak, j.enqueued_at_ms, j.scheduled_at_ms,
        j.claimed_at_ms, j.timeout_ms, j.deadline_at_ms, j.retention_ms, j.headers,
        j.has_steps or j.in_progress_step is not null or j.cursor_step is not null;

    exit when v_late is null and not v_is_short;
    v_free := v_free - coalesce(cardinality(v_taken), 0);
    -- A lane that gave less than its share has no more to give. A suspect that was taken is the one of this worker.
    select array_agg(l.id), array_agg(l.suspect) into v_all, v_suspects
      from unnest(v_all, v_suspects) l(id, suspect)
      left join unnest(v_lanes, v_shares) s(lane_id, share) on s.lane_id = l.id
      left join (
        select j.lane_id, count(*) as jobs from headgate.job j where j.id = any(v_taken || v_late) group by j.lane_id
      ) given on given.lane_id = l.id
      where coalesce(given.jobs, 0) >= coalesce(s.share, 0) and not (l.suspect and coalesce(given.jobs, 0) > 0);
  end loop;
end $$;
