-- Moves that neither a worker nor the clock makes. Each checks the state it may move from in the statement that locks or
-- writes the row, so that of two rivals the second sees what the first left behind. There state || '' hides the state from
-- the planner, which could look for the one job in a partial index.
--   lock_job       the job as its mover finds it, and answers with: no row when there is no such job;
--   end_jobs       every move from outside into a terminal state: cancel, supersede, discard, quarantine;
--   cancel_job, supersede, discard, cancel_incoming, quarantine_waiting: the events, by name;
--   promote_job, reschedule_job, edit_job, replace_job: changes of a job that waits;
--   retry_job, release_job: the ways back, refused while another job holds the unique key;
--   remove_job     the way out.
-- A function for one job answers the state it moved to, and null when it may not move. It waits a bounded time for the
-- row, since it waits on one of the store's few connections.

-- What rests until somebody looks at it, and what only an operator moves; its counts and lists must not scan the rest.
create index job_resting on headgate.job (state, queue)
  where state in ('pending', 'archived', 'quarantined', 'undecodable');

create function headgate.lock_job(p_id text) returns table (id text, state text, queue text)
language sql volatile set lock_timeout = '2s' as $$
  select j.id, j.state, j.queue from headgate.job j where j.id = p_id for no key update
$$;

-- Ends those of the given jobs that are in one of the states p_from. A running one loses its lease in the same write.
create function headgate.end_jobs(p_ids text[], p_from text[], p_to text, p_reason text)
returns table (job_id text, from_state text, queue text)
language plpgsql volatile as $$
declare
  v_now bigint := headgate.now_ms();
  v_archived text[];
begin
  if p_to = 'archived' then
    v_archived := array(select j.id from headgate.job j where j.id = any(p_ids) and j.state = any(p_from)
      order by j.id for no key update);
  end if;
  return query
  with held as (
    select j.id, j.state, j.queue, j.fence, j.worker, j.claimed_at_ms, j.in_progress_step from headgate.job j
    where j.id = any(p_ids) and j.state = any(p_from) order by j.id for no key update
  ), recorded as (
    insert into headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome, step)
    select h.fence, h.claimed_at_ms, v_now, h.id, h.worker, p_reason, h.in_progress_step
    from held h where h.state = 'running'
    on conflict do nothing
  ), written as (
    update headgate.job j set state = p_to, reason = p_reason, finished_at_ms = v_now,
      evict_at_ms = case when p_to = 'cancelled' then v_now + j.retention_ms end,
      last_worker = coalesce(j.worker, j.last_worker),
      last_lease_id = case when j.lease_id is null then j.last_lease_id end,
      lease_id = null, lease_expires_at_ms = null, worker = null
    from held h where j.id = h.id
    returning j.id
  )
  select h.id, h.state, h.queue from held h join written w on w.id = h.id;
  perform headgate.record_callbacks(v_archived);
end $$;

-- Answers the state and the reason the job had before.
create function headgate.cancel_job(p_id text) returns table (from_state text, to_state text, queue text, reason text)
language plpgsql volatile set lock_timeout = '2s' as $$
begin
  select j.state, j.queue, j.reason into from_state, queue, reason from headgate.job j where j.id = p_id for no key update;
  if not found then
    return;
  end if;
  select 'cancelled' into to_state
    from headgate.end_jobs(array[p_id], array['pending', 'scheduled', 'available', 'retryable', 'running'],
      'cancelled', 'operator_cancel');
  return next;
end $$;

-- Saturation of a limit: running jobs make room for a newcomer, or newcomers are ended before they run.
create function headgate.supersede(p_ids text[]) returns table (job_id text, from_state text, queue text)
language sql volatile as $$
  select * from headgate.end_jobs(p_ids, array['running'], 'cancelled', 'superseded')
$$;

create function headgate.discard(p_ids text[]) returns table (job_id text, from_state text, queue text)
language sql volatile as $$
  select * from headgate.end_jobs(p_ids, array['available'], 'archived', 'discarded')
$$;

create function headgate.cancel_incoming(p_ids text[]) returns table (job_id text, from_state text, queue text)
language sql volatile as $$
  select * from headgate.end_jobs(p_ids, array['available'], 'cancelled', 'cancelled_incoming')
$$;

-- Jobs that wait under a closed fingerprint. Those that run go on, and count when they succeed.
create function headgate.quarantine_waiting(p_ids text[]) returns table (job_id text, from_state text, queue text)
language sql volatile as $$
  select * from headgate.end_jobs(p_ids, array['pending', 'scheduled', 'available', 'retryable'],
    'quarantined', 'fingerprint')
$$;

-- Due now, whatever it waited for. Its place in the queue is that of its due time, but not one in the future; a pending
-- job, which waited for its operator alone, starts to wait now.
create function headgate.promote_job(p_id text) returns text language sql volatile set lock_timeout = '2s' as $$
  update headgate.job j set state = 'available',
    scheduled_at_ms = case when j.state = 'pending' then headgate.now_ms() else least(j.scheduled_at_ms, headgate.now_ms()) end
  where j.id = p_id and j.state || '' in ('pending', 'scheduled', 'retryable')
  returning j.state
$$;

-- p_at_ms null: behind the work of the same priority that is available now, in its queue, in the state it has. With a time
-- a job waits as scheduled until it comes, or is available when it has come; a pending job stays pending.
create function headgate.reschedule_job(p_id text, p_at_ms bigint) returns text
language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_now bigint := headgate.now_ms();
  v_at bigint := p_at_ms;
  v_to text;
  v_job record;
begin
  select j.state, j.queue, j.partition_key, j.keys, j.priority, j.scheduled_at_ms into v_job from headgate.job j
    where j.id = p_id and j.state || '' in ('pending', 'scheduled', 'available', 'retryable') for no key update;
  if not found then
    return null;
  end if;
  if v_at is null then
    select greatest(v_now, max(last.scheduled_at_ms) + 1) into v_at
      from headgate.lane l cross join lateral (
        select j.scheduled_at_ms from headgate.job j
        where j.lane_id = l.id and j.partition_key = v_job.partition_key and j.keys = v_job.keys
          and j.state = 'available' and j.priority = v_job.priority and j.id <> p_id
        order by j.scheduled_at_ms desc, j.id desc limit 1
      ) last where l.queue = v_job.queue;
    if v_job.state <> 'available' then
      v_at := greatest(v_at, v_job.scheduled_at_ms);
    end if;
  end if;
  update headgate.job j set scheduled_at_ms = v_at,
    state = case
      when p_at_ms is null or v_job.state = 'pending' then v_job.state
      when v_at > v_now then 'scheduled'
      else 'available' end
    where j.id = p_id returning j.state into v_to;
  return v_to;
end $$;

-- A fingerprint that was computed follows the payload, one that was given stays.
create function headgate.edit_job(p_id text, p_payload bytea, p_schema_version int) returns text
language sql volatile set lock_timeout = '2s' as $$
  update headgate.job j set payload = p_payload, schema_version = p_schema_version,
    fingerprint = case when j.fingerprint = headgate.content_fingerprint(j.kind, j.payload)
      then headgate.content_fingerprint(j.kind, p_payload) else j.fingerprint end,
    lane_id = headgate.lane_for(j.lane_id, greatest(p_schema_version, j.checkpoint_version), j.crash_attempt > 0)
  where j.id = p_id and j.state || '' in ('pending', 'scheduled', 'available', 'retryable')
  returning j.state
$$;

-- What a newcomer writes over the waiting holder of its unique key. The bits of p_fields: 1 payload (with its version and
-- fingerprint), 2 due time, 4 priority, 8 most attempts. A new due time moves the job as an operator's would.
create function headgate.replace_job(
  p_id text, p_fields int, p_payload bytea, p_schema_version int, p_fingerprint text, p_scheduled_at_ms bigint,
  p_priority smallint, p_max_attempts int
) returns table (from_state text, to_state text, queue text)
language plpgsql volatile as $$
declare
  v_job record;
begin
  select j.state, j.queue into v_job from headgate.job j where j.id = p_id for no key update;
  if not found then
    return;
  end if;
  from_state := v_job.state;
  queue := v_job.queue;
  if v_job.state in ('pending', 'scheduled', 'available', 'retryable') then
    if p_fields & 1 = 1 then
      perform headgate.edit_job(p_id, p_payload, p_schema_version);
    end if;
    update headgate.job j set
      fingerprint = case when p_fields & 1 = 1 then p_fingerprint else j.fingerprint end,
      priority = case when p_fields & 4 = 4 then p_priority else j.priority end,
      max_attempts = case when p_fields & 8 = 8 then p_max_attempts else j.max_attempts end
      where j.id = p_id;
    if p_fields & 2 = 2 then
      perform headgate.reschedule_job(p_id, p_scheduled_at_ms);
    end if;
    select j.state into to_state from headgate.job j where j.id = p_id;
  end if;
  return next;
end $$;

-- archived, cancelled or undecodable -> available. The counters start anew, except for an undecodable job, whose payload
-- no attempt has seen. Checkpoint, effect keys, fence and the orphaned mark stay. is_late: its deadline has passed.
create function headgate.retry_job(
  p_id text, p_has_deadline boolean, p_deadline_at_ms bigint, out to_state text, out is_late boolean, out holder_id text
) language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_job record;
begin
  select j.state <> 'undecodable' as was_tried,
      case when p_has_deadline then p_deadline_at_ms else j.deadline_at_ms end as deadline_at_ms into v_job
    from headgate.job j where j.id = p_id and j.state || '' in ('archived', 'cancelled', 'undecodable') for no key update;
  if not found then
    return;
  end if;
  is_late := coalesce(v_job.deadline_at_ms <= headgate.now_ms(), false);
  if not is_late then
    holder_id := headgate.return_job(p_id, v_job.was_tried, v_job.was_tried, v_job.deadline_at_ms);
    to_state := case when holder_id is null then 'available' end;
  end if;
end $$;

-- quarantined -> available, with a clean crash count; failures stay counted. Its fingerprint is open again, and the next
-- crash closes it.
create function headgate.release_job(p_id text, out to_state text, out holder_id text)
language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_job record;
begin
  select j.deadline_at_ms, j.fingerprint, j.kind into v_job
    from headgate.job j where j.id = p_id and j.state || '' = 'quarantined' for no key update;
  if not found then
    return;
  end if;
  holder_id := headgate.return_job(p_id, false, true, v_job.deadline_at_ms);
  if holder_id is null then
    perform headgate.reopen(v_job.fingerprint, v_job.kind, p_id);
    to_state := 'available';
  end if;
end $$;

-- Makes a job that its caller has locked available again, behind what waits already. Answers who holds its unique key
-- instead, when somebody does: the index decides, so a rival that enqueues at this moment is seen as well.
create function headgate.return_job(p_id text, p_attempts boolean, p_crashes boolean, p_deadline_at_ms bigint) returns text
language plpgsql volatile as $$
declare
  v_constraint text;
  v_holder text;
begin
  for round in 1..10 loop
    begin
      perform headgate.bring_back(array[p_id], p_attempts, p_crashes, false, p_deadline_at_ms);
      return null;
    exception when unique_violation then
      get stacked diagnostics v_constraint = constraint_name;
      if v_constraint <> 'job_unique' then
        raise;
      end if;
    end;
    select h.id into v_holder from headgate.job j join headgate.job h on h.unique_key = j.unique_key
      where j.id = p_id and h.state in ('pending', 'scheduled', 'available', 'running', 'retryable');
    if found then
      return v_holder;
    end if;
    -- The holder ended in between: the key is free.
  end loop;
  raise exception 'the unique key of job % keeps changing hands', p_id using errcode = '40001';
end $$;

-- The same for jobs of which none has a unique key that another one could hold.
create function headgate.bring_back(
  p_ids text[], p_attempts boolean, p_crashes boolean, p_keeps_deadline boolean, p_deadline_at_ms bigint
) returns void language plpgsql volatile as $$
declare
  v_now bigint := headgate.now_ms();
begin
  update headgate.job j set state = 'available', reason = null, finished_at_ms = null, evict_at_ms = null,
    scheduled_at_ms = v_now, streak = 0,
    deadline_at_ms = case when p_keeps_deadline then j.deadline_at_ms else p_deadline_at_ms end,
    attempt = case when p_attempts then 0 else j.attempt end,
    crash_attempt = case when p_crashes then 0 else j.crash_attempt end,
    lane_id = headgate.lane_for(j.lane_id, greatest(j.schema_version, j.checkpoint_version),
      not p_crashes and j.crash_attempt > 0)
    where j.id = any(p_ids);
end $$;

create function headgate.remove_job(p_id text) returns text language plpgsql volatile set lock_timeout = '2s' as $$
begin
  delete from headgate.job j where j.id = p_id and j.state || '' <> 'running';
  if not found then
    return null;
  end if;
  perform headgate.forget(array[p_id]);
  return 'deleted';
end $$;
