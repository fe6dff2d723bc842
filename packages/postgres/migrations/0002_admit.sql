-- The gate. admit() answers "what may this worker run now?" in one call:
--   lanes  which lanes this worker can take from (queue, kind, version), and whether it may take a suspect;
--   share  how much of the free capacity each lane gets, by queue order over all lanes, read without locks;
--   take   each lane's share from its head, locked, passing over what rivals hold;
--   claim  the lease written on exactly the rows taken. Jobs past their deadline are archived instead.
create function headgate.admit(
  p_worker text, p_lease_id uuid, p_queues text[], p_kinds text[], p_versions int[], p_capacity int, p_lease_ms bigint
) returns table (
  id text, fence bigint, kind text, schema_version int, queue text, partition_key text, payload bytea, priority smallint,
  attempt int, max_attempts int, crash_attempt int, streak int, enqueued_at_ms bigint, scheduled_at_ms bigint,
  claimed_at_ms bigint, timeout_ms bigint, deadline_at_ms bigint, retention_ms bigint, headers bytea, has_steps boolean
) language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
declare
  v_now bigint := headgate.now_ms();
  v_lanes int[];
  v_shares int[];
  v_taken text[];
  v_expired text[];
begin
  select array_agg(l.id), array_agg(case when l.suspect then 1 else p_capacity end) into v_lanes, v_shares
    from unnest(p_kinds, p_versions) known(kind, version)
    join headgate.lane l on l.kind = known.kind and l.version <= known.version and l.queue = any(p_queues)
    where not (l.suspect and exists (
      select from headgate.job r where r.worker = p_worker and r.state = 'running' and r.crash_attempt > 0));
  if v_lanes is null then
    return;
  end if;

  if cardinality(v_lanes) > 1 then
    select array_agg(s.lane_id), array_agg(s.share::int) into v_lanes, v_shares from (
      select d.lane_id, count(*) as share from (
        select n.lane_id from (
          select h.*, row_number() over (partition by h.suspect order by h.priority desc, h.scheduled_at_ms, h.id) as place
          from unnest(v_lanes, v_shares) lane(id, most)
          cross join lateral (
            select j.lane_id, j.priority, j.scheduled_at_ms, j.id, j.crash_attempt > 0 as suspect from headgate.job j
            where j.lane_id = lane.id and j.state = 'available'
            order by j.priority desc, j.scheduled_at_ms, j.id limit lane.most
          ) h
        ) n
        where n.place = 1 or not n.suspect
        order by n.priority desc, n.scheduled_at_ms, n.id limit p_capacity
      ) d group by d.lane_id
    ) s;
    if v_lanes is null then
      return;
    end if;
  end if;

  select array_agg(t.id), array_agg(t.id) filter (where t.deadline_at_ms <= v_now) into v_taken, v_expired
    from unnest(v_lanes, v_shares) lane(id, share)
    cross join lateral (
      select j.id, j.deadline_at_ms from headgate.job j
      where j.lane_id = lane.id and j.state = 'available'
      order by j.priority desc, j.scheduled_at_ms, j.id limit lane.share
      for no key update skip locked
    ) t;
  if v_taken is null then
    return;
  end if;

  if v_expired is not null then
    update headgate.job j set state = 'archived', reason = 'deadline', finished_at_ms = v_now where j.id = any(v_expired);
  end if;

  return query
    with claimed as (
      update headgate.job j set state = 'running', fence = j.fence + 1, lease_id = p_lease_id,
        lease_expires_at_ms = v_now + p_lease_ms, worker = p_worker, claimed_at_ms = v_now
      where j.id = any(v_taken) and (j.deadline_at_ms is null or j.deadline_at_ms > v_now)
      returning j.*
    )
    select c.id, c.fence, c.kind, c.schema_version, c.queue, c.partition_key, c.payload, c.priority,
      c.attempt, c.max_attempts, c.crash_attempt, c.streak, c.enqueued_at_ms, c.scheduled_at_ms,
      c.claimed_at_ms, c.timeout_ms, c.deadline_at_ms, c.retention_ms, c.headers,
      c.has_steps or c.in_progress_step is not null or c.cursor_step is not null
    from claimed c order by c.priority desc, c.scheduled_at_ms, c.id;
end $$;
