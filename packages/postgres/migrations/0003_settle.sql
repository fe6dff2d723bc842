-- How an attempt ends. settle() takes every outcome but success (which is one plain statement in Leases.ts, since it is
-- the hot path); reclaim_expired() is the end a worker could not report itself.

-- The next state of each held job, in one place for settle() and reclaim_expired():
--   held   the rows still owned under the given lease and fence, locked;
--   ended  what each becomes; anything that would fall due at or past the deadline is archived instead.
create function headgate.settle(
  p_jobs text[], p_leases uuid[], p_fences bigint[], p_outcomes text[], p_delays bigint[], p_reasons text[],
  p_error_tags text[], p_error_messages text[], p_error_texts text[], p_errors bytea[]
) returns table (job_id text, state text)
language plpgsql volatile set plan_cache_mode = force_generic_plan as $$
declare
  v_now bigint := headgate.now_ms();
begin
  return query
  with item as (
    select * from unnest(p_jobs, p_leases, p_fences, p_outcomes, p_delays, p_reasons,
        p_error_tags, p_error_messages, p_error_texts, p_errors)
      as i(job_id, lease_id, fence, outcome, delay_ms, reason, error_tag, error_message, error_text, error)
  ), held as (
    select j.id, j.fence, j.attempt, j.max_attempts, j.crash_attempt, j.crash_limit, j.deadline_at_ms, j.scheduled_at_ms,
      j.claimed_at_ms, j.worker, j.in_progress_step, j.queue, j.kind, j.schema_version, j.checkpoint_version,
      i.outcome, i.delay_ms, i.reason, i.error_tag, i.error_message, i.error_text, i.error
    from item i join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
    order by j.id for no key update of j
  ), counted as (
    select h.*,
      h.attempt + case when h.outcome in ('retry', 'timed_out', 'fatal') then 1 else 0 end as next_attempt,
      h.crash_attempt + case when h.outcome = 'crashed' then 1 else 0 end as next_crash,
      case h.outcome
        when 'retry' then v_now + h.delay_ms
        when 'timed_out' then v_now + h.delay_ms
        when 'not_a_failure' then v_now + greatest(h.delay_ms, 1000)
        when 'rate_limited' then v_now + coalesce(h.delay_ms, 0)
        when 'snooze' then v_now + h.delay_ms
        when 'crashed' then v_now + headgate.crash_backoff_ms(h.crash_attempt + 1)
        else h.scheduled_at_ms
      end as due_at_ms
    from held h
  ), moved as (
    select c.*,
      case
        when c.outcome = 'revoke' then 'deleted'
        when c.outcome in ('skip', 'fatal', 'deadline_passed') then 'archived'
        when c.outcome in ('undecodable', 'checkpoint_stale') then 'undecodable'
        when c.outcome in ('retry', 'timed_out') and c.next_attempt >= c.max_attempts then 'archived'
        when c.outcome = 'crashed' and c.next_crash >= c.crash_limit then 'quarantined'
        when c.deadline_at_ms <= greatest(c.due_at_ms, v_now) then 'archived'
        when c.outcome = 'released' then 'available'
        when c.outcome = 'rate_limited' and c.delay_ms is null then 'available'
        when c.outcome in ('snooze', 'rate_limited') then 'scheduled'
        else 'retryable'
      end as next_state,
      case
        when c.outcome = 'skip' then 'skipped'
        when c.outcome = 'fatal' then 'fatal'
        when c.outcome in ('undecodable', 'checkpoint_stale') then c.reason
        when c.outcome in ('retry', 'timed_out') and c.next_attempt >= c.max_attempts then 'exhausted'
        when c.outcome = 'crashed' and c.next_crash >= c.crash_limit then 'crash_limit'
        when c.outcome = 'deadline_passed' or c.deadline_at_ms <= greatest(c.due_at_ms, v_now) then 'deadline'
      end as next_reason
    from counted c
  ), written as (
    update headgate.job j set
      state = m.next_state, reason = m.next_reason,
      attempt = m.next_attempt, crash_attempt = m.next_crash,
      streak = case when m.outcome in ('not_a_failure', 'rate_limited') then j.streak + 1 else 0 end,
      scheduled_at_ms = m.due_at_ms,
      finished_at_ms = case when m.next_state in ('archived', 'quarantined', 'undecodable') then v_now end,
      lane_id = case when m.outcome = 'crashed' and m.crash_attempt = 0
        then headgate.lane_for(m.queue, m.kind, greatest(m.schema_version, m.checkpoint_version), true) else j.lane_id end,
      crashes_by_step = case when m.outcome = 'crashed' and m.in_progress_step is not null
        then headgate.count_crash(j.crashes_by_step, m.in_progress_step) else j.crashes_by_step end,
      last_lease_id = j.lease_id, last_worker = j.worker,
      lease_id = null, lease_expires_at_ms = null, worker = null
    from moved m where j.id = m.id and m.next_state <> 'deleted'
    returning j.id
  ), removed as (
    delete from headgate.job j using moved m where j.id = m.id and m.next_state = 'deleted' returning j.id
  ), recorded as (
    insert into headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome, step,
      error_tag, error_message, error_text, error)
    select m.fence, m.claimed_at_ms, v_now, m.id, m.worker, m.outcome, m.in_progress_step,
      m.error_tag, coalesce(m.error_message, m.reason), m.error_text, m.error
    from moved m where m.next_state <> 'deleted'
    on conflict do nothing
  )
  select m.id, m.next_state from moved m;
end $$;

create function headgate.count_crash(p_counts jsonb, p_step text) returns jsonb language sql immutable as $$
  select coalesce(p_counts, '{}') || jsonb_build_object(p_step, coalesce((p_counts ->> p_step)::int, 0) + 1)
$$;

-- Jobs whose lease has run out: a crash each, behind the work already waiting. Candidates are read without locks and
-- re-checked under the lock, so an owner that settles, renews or is replaced meanwhile keeps what it has.
create function headgate.reclaim_expired(p_limit int)
returns table (job_id text, kind text, worker text, crash_attempt int, state text)
language plpgsql volatile as $$
declare
  v_now bigint := headgate.now_ms();
begin
  return query
  with held as (
    select j.id, j.fence, j.worker, j.claimed_at_ms, j.in_progress_step, j.deadline_at_ms, j.queue, j.kind,
      j.crash_attempt + 1 as next_crash, j.crash_limit, greatest(j.schema_version, j.checkpoint_version) as version,
      v_now + headgate.crash_backoff_ms(j.crash_attempt + 1) as due_at_ms
    from headgate.job j where j.state = 'running' and j.lease_expires_at_ms <= v_now
    order by j.id limit p_limit for no key update skip locked
  ), written as (
    update headgate.job j set
      state = case when h.next_crash >= h.crash_limit then 'quarantined'
        when h.deadline_at_ms <= h.due_at_ms then 'archived' else 'retryable' end,
      reason = case when h.next_crash >= h.crash_limit then 'crash_limit'
        when h.deadline_at_ms <= h.due_at_ms then 'deadline' end,
      finished_at_ms = case when h.next_crash >= h.crash_limit or h.deadline_at_ms <= h.due_at_ms then v_now end,
      crash_attempt = h.next_crash, streak = 0, scheduled_at_ms = h.due_at_ms, orphaned = true,
      lane_id = headgate.lane_for(h.queue, h.kind, h.version, true),
      crashes_by_step = case when h.in_progress_step is null then j.crashes_by_step
        else headgate.count_crash(j.crashes_by_step, h.in_progress_step) end,
      last_lease_id = null, last_worker = j.worker, lease_id = null, lease_expires_at_ms = null, worker = null
    from held h where j.id = h.id
    returning j.id, j.crash_attempt, j.state
  ), recorded as (
    insert into headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome, step)
    select h.fence, h.claimed_at_ms, v_now, h.id, h.worker, 'lease_lost', h.in_progress_step from held h
    on conflict do nothing
  )
  select w.id, h.kind, h.worker, w.crash_attempt, w.state from written w join held h on h.id = w.id;
end $$;
