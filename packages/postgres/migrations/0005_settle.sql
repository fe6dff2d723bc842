-- What becomes of a running job: renew() keeps it, succeed() and settle() end its attempt, reclaim_expired() is the end
-- a worker could not report. Every row is addressed by its id and checked against lease id and fence in the statement
-- that writes or locks it. What the end of an attempt means to others is in 0010_quarantine.sql: strike() counts a crash
-- against its fingerprint, clear_strikes() forgets them. correct() and abandon(), at the end, mend what was charged.
--
-- Locks are taken in one order: jobs by id, buckets by class and key, strikes by fingerprint, laps.
--
-- Plans are generic and never a scan of the whole table: for a thousand ids the planner would think one cheaper.

-- The leases that were not renewed, and why. `busy`: somebody else holds the row at this moment; it is neither renewed
-- nor lost, and its next renewal will tell.
create function headgate.renew(p_jobs text[], p_leases uuid[], p_fences bigint[], p_lease_ms bigint)
returns table (job_id text, reason text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  return query
  with item as (
    select * from unnest(p_jobs, p_leases, p_fences) as i(job_id, lease_id, fence)
  ), held as (
    select j.id from item i join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
    order by j.id for no key update of j skip locked
  ), renewed as (
    -- A write of the attempt may have extended the lease further.
    update headgate.job j
    set lease_expires_at_ms = greatest(j.lease_expires_at_ms, (select headgate.now_ms()) + p_lease_ms)
    where j.id = any(array(select h.id from held h))
  )
  select i.job_id, case
      when j.lease_id = i.lease_id and j.fence = i.fence then 'busy'
      when j.fence is distinct from i.fence then 'lease_lost'
      when j.state = 'cancelled' and j.reason in ('operator_cancel', 'superseded') then j.reason
      when j.state = 'archived' and j.reason = 'deadline' then 'deadline'
      else 'lease_lost' end
  from item i left join headgate.job j on j.id = i.job_id
  where i.job_id not in (select h.id from held h);
end $$;

-- Success, the hot path: the row goes, with all that belongs to it, or keeps its result for its retention. Shorter
-- arrays of versions and results are filled up with nulls. A row that another transaction holds is waited for; with
-- p_wait_ms no longer than that, and then all of it fails (55P03). One row without a job id says that all of the jobs
-- had the same end. Shorter arrays of leases and fences hold the one that all of the jobs have: what one call of the gate
-- gave mostly ends together.
--
-- Batches are joined by hash: a look into the index for each job would cost more than its deletion.
create function headgate.succeed(
  p_jobs text[], p_leases uuid[], p_fences bigint[], p_versions int[], p_results bytea[], p_wait_ms int default null
) returns table (job_id text, state text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_nestloop = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_all int := cardinality(p_jobs);
  v_is_uniform boolean := cardinality(p_leases) < cardinality(p_jobs);
  v_gone text[];
  v_kept text[];
  v_traced text[];
begin
  if p_wait_ms is not null then
    perform set_config('lock_timeout', p_wait_ms::text, true);
  end if;
  -- Mostly there are no strikes at all.
  if exists (select from headgate.strike s where s.closed_at_ms is null) then
    perform headgate.clear_strikes(p_jobs,
      case when v_is_uniform then array_fill(p_leases[1], array[v_all]) else p_leases end,
      case when v_is_uniform then array_fill(p_fences[1], array[v_all]) else p_fences end);
  end if;
  for pass in 1..2 loop
    if (pass = 1) = coalesce((select j.retention_ms > 0 from headgate.job j where j.id = p_jobs[1]), false) then
      with kept as (
        update headgate.job j set state = 'completed', reason = null, result = i.result, result_version = i.version,
          finished_at_ms = v_now, evict_at_ms = v_now + j.retention_ms, last_lease_id = j.lease_id,
          last_worker = j.worker, lease_id = null, lease_expires_at_ms = null, worker = null
        from (
          select u.job_id, coalesce(u.lease_id, p_leases[1]) as lease_id, coalesce(u.fence, p_fences[1]) as fence,
            u.version, u.result
          from unnest(p_jobs, p_leases, p_fences, p_versions, p_results) as u(job_id, lease_id, fence, version, result)
        ) i
        where j.id = any(p_jobs) and j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
          and j.retention_ms > 0
        returning j.id
      )
      select array_agg(k.id) into v_kept from kept k;
    else
      if v_is_uniform then
        with removed as (
          delete from headgate.job j
          where j.id = any(p_jobs) and j.lease_id = p_leases[1] and j.fence = p_fences[1] and j.retention_ms = 0
          returning j.id, j.has_steps or j.has_reports or j.fence > 1 as is_traced
        )
        select array_agg(r.id), array_agg(r.id) filter (where r.is_traced) into v_gone, v_traced from removed r;
      else
        with removed as (
          delete from headgate.job j using unnest(p_jobs, p_leases, p_fences) as i(job_id, lease_id, fence)
          where j.id = any(p_jobs) and j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
            and j.retention_ms = 0
          returning j.id, j.has_steps or j.has_reports or j.fence > 1 as is_traced
        )
        select array_agg(r.id), array_agg(r.id) filter (where r.is_traced) into v_gone, v_traced from removed r;
      end if;
      if v_traced is not null then
        perform headgate.forget(v_traced);
      end if;
    end if;
    if v_all in (cardinality(v_gone), cardinality(v_kept)) then
      return query select null::text, case when v_kept is null then 'deleted' else 'completed' end;
      return;
    end if;
    exit when v_all = coalesce(cardinality(v_gone), 0) + coalesce(cardinality(v_kept), 0);
  end loop;
  return query select g.id, 'deleted'::text from unnest(v_gone) g(id);
  return query select k.id, 'completed'::text from unnest(v_kept) k(id);
end $$;

-- p_delays: null where the outcome has none; a shorter p_logs is filled up with nulls. Answers the new state of each job
-- that was held; of the others nothing. Rows that others hold are waited for as in succeed(). Revoked jobs go first, then
-- the strikes of the crashed ones are counted; of the rest:
--   held     the rows still owned under the given lease and fence, locked;
--   counted  their counters, and when they would be due again;
--   moved    what each becomes: under a closed fingerprint it waits no more, nor if it would fall due at or past its
--            deadline.
-- `closed` is the fingerprint that the job's crash has closed.
create function headgate.settle(
  p_jobs text[], p_leases uuid[], p_fences bigint[], p_outcomes text[], p_delays bigint[], p_reasons text[],
  p_error_tags text[], p_error_messages text[], p_error_texts text[], p_errors bytea[], p_logs text[] default '{}',
  p_unbegun text[] default '{}', p_wait_ms int default null
) returns table (job_id text, state text, queue text, reason text, closed text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_gone text[];
  v_queues text[];
  v_closers text[] := '{}';
  v_has_closed boolean;
  v_is_handled boolean;
begin
  if p_wait_ms is not null then
    perform set_config('lock_timeout', p_wait_ms::text, true);
  end if;
  if 'revoke' = any(p_outcomes) then
    with removed as (
      delete from headgate.job j
      using (select * from unnest(p_jobs, p_leases, p_fences, p_outcomes) as u(job_id, lease_id, fence, outcome)
        where u.outcome = 'revoke' order by u.job_id) i
      where j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
      returning j.id, j.queue
    )
    select array_agg(r.id), array_agg(r.queue) into v_gone, v_queues from removed r;
    -- A statement of its own sees what the attempt wrote while its row was waited for.
    perform headgate.forget(v_gone);
    return query select g.id, 'deleted'::text, g.queue, null::text, null::text
      from unnest(v_gone, v_queues) g(id, queue);
  end if;
  if 'crashed' = any(p_outcomes) then
    v_closers := headgate.strike(array(
      select case when i.outcome = 'crashed' then j.id end
      from unnest(p_jobs, p_leases, p_fences, p_outcomes) as i(job_id, lease_id, fence, outcome)
      join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
      order by j.id for no key update of j), false, v_now);
  end if;
  v_has_closed := exists (select from headgate.strike s where s.closed_at_ms is not null);
  v_is_handled := exists (select from headgate.callback_kind);
  return query
  with item as (
    select * from unnest(p_jobs, p_leases, p_fences, p_outcomes, p_delays, p_reasons,
        p_error_tags, p_error_messages, p_error_texts, p_errors, p_logs)
      as i(job_id, lease_id, fence, outcome, delay_ms, reason, error_tag, error_message, error_text, error, log)
  ), held as (
    select j.id, j.fence, j.attempt, j.max_attempts, j.crash_attempt, j.crash_limit, j.deadline_at_ms,
      j.scheduled_at_ms, j.claimed_at_ms, j.worker, j.queue, j.kind, j.schema_version, j.checkpoint_version,
      case when j.id = any(p_unbegun) then null else j.in_progress_step end as in_progress_step,
      j.fingerprint, v_has_closed and headgate.is_closed(j.fingerprint) as is_closed, i.lease_id, i.outcome,
      i.delay_ms, i.reason, i.error_tag, i.error_message, i.error_text, i.error, i.log
    from item i join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
    where i.outcome <> 'revoke' order by j.id for no key update of j
  ), counted as (
    select h.*,
      h.attempt + case when h.outcome in ('retry', 'timed_out', 'fatal') then 1 else 0 end as next_attempt,
      h.crash_attempt + case when h.outcome = 'crashed' then 1 else 0 end as next_crash,
      case h.outcome
        when 'retry' then v_now + h.delay_ms
        when 'timed_out' then v_now + h.delay_ms
        when 'not_a_failure' then v_now + greatest(h.delay_ms, 1000)
        -- greatest() passes over a null.
        when 'rate_limited' then v_now + case when h.delay_ms is null then 0 else greatest(h.delay_ms, 1000) end
        when 'snooze' then v_now + h.delay_ms
        when 'crashed' then v_now + coalesce(h.delay_ms, headgate.crash_backoff_ms(h.crash_attempt + 1))
        else h.scheduled_at_ms
      end as due_at_ms
    from held h
  ), moved as (
    select c.*, next.reason as next_reason, case
        when c.outcome in ('undecodable', 'checkpoint_stale') then 'undecodable'
        when next.reason in ('crash_limit', 'fingerprint') then 'quarantined'
        when next.reason is not null then 'archived'
        when c.outcome = 'released' then 'available'
        when c.outcome = 'rate_limited' and c.delay_ms is null then 'available'
        when c.outcome in ('snooze', 'rate_limited') then 'scheduled'
        else 'retryable' end as next_state
    from counted c cross join lateral (
      select case
        when c.outcome = 'skip' then 'skipped'
        when c.outcome in ('fatal', 'undecodable', 'checkpoint_stale') then c.outcome
        when c.outcome in ('retry', 'timed_out') and c.next_attempt >= c.max_attempts then 'exhausted'
        -- Its task allows this error fewer failures than the job has.
        when c.outcome = 'retry' and c.reason = 'exhausted' then c.reason
        when c.outcome = 'crashed' and c.next_crash >= c.crash_limit then 'crash_limit'
        when c.outcome = 'deadline_passed' then 'deadline'
        when c.is_closed then 'fingerprint'
        when c.deadline_at_ms <= greatest(c.due_at_ms, v_now) then 'deadline'
      end as reason
    ) next
  ), written as (
    update headgate.job j set
      state = m.next_state, reason = m.next_reason, attempt = m.next_attempt, crash_attempt = m.next_crash,
      streak = case when m.outcome in ('not_a_failure', 'rate_limited') then j.streak + 1
        when m.outcome = 'released' then j.streak else 0 end,
      scheduled_at_ms = case when m.next_reason is null then m.due_at_ms else j.scheduled_at_ms end,
      finished_at_ms = case when m.next_reason is not null then v_now end,
      lane_id = case when m.outcome = 'crashed' and m.crash_attempt = 0
        then headgate.lane_for(j.lane_id, greatest(m.schema_version, m.checkpoint_version), true)
        else j.lane_id end,
      crashes_by_step = case when m.outcome = 'crashed' and m.in_progress_step is not null
        then headgate.count_crash(j.crashes_by_step, m.in_progress_step) else j.crashes_by_step end,
      in_progress_step = m.in_progress_step,
      last_lease_id = j.lease_id, last_worker = j.worker,
      lease_id = null, lease_expires_at_ms = null, worker = null
    from moved m where j.id = m.id
  ), recorded as (
    insert into headgate.attempt (fence, started_at_ms, ended_at_ms, lease_id, job_id, worker, outcome, step,
      error_tag, error_message, error_text, error, log)
    select m.fence, m.claimed_at_ms, v_now, m.lease_id, m.id, m.worker, m.outcome, m.in_progress_step,
      m.error_tag, coalesce(m.error_message, m.reason), m.error_text, m.error, m.log
    from moved m
    on conflict do nothing
  ), trimmed as (
    -- Each fence leaves at most one row, so this keeps the newest 100.
    delete from headgate.attempt a using moved m
    where m.fence > 100 and a.job_id = m.id and a.fence <= m.fence - 100
  )
  select m.id, m.next_state, m.queue,
    -- Called for its effect, where there is one: another part of the statement would cost every call of it.
    case when m.next_state = 'archived' and v_is_handled then headgate.record_callback(m.id, m.next_reason,
      m.next_attempt, m.next_crash, v_now, coalesce(m.error_tag, case when m.reason is not null then m.outcome end),
      coalesce(m.error_message, m.reason), m.error) else m.next_reason end,
    case when m.id = any(v_closers) then m.fingerprint end
  from moved m;
end $$;

create function headgate.count_crash(p_counts jsonb, p_step text) returns jsonb language sql immutable as $$
  select coalesce(p_counts, '{}') || jsonb_build_object(p_step, coalesce((p_counts ->> p_step)::int, 0) + 1)
$$;

-- Jobs whose lease has run out: a crash each, behind the work already waiting. Candidates are read without locks and
-- re-checked under the lock, so an owner that settles, renews or is replaced meanwhile keeps what it has. `closed` is
-- the fingerprint that this crash has closed.
create function headgate.reclaim_expired(p_limit int)
returns table (job_id text, kind text, worker text, crash_attempt int, state text, reason text, closed text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_ids text[];
  v_closers text[];
  v_has_closed boolean;
begin
  v_ids := array(
    select j.id from headgate.job j where j.state = 'running' and j.lease_expires_at_ms <= v_now
    order by j.lane_id, j.partition_key limit p_limit for no key update skip locked);
  if v_ids = '{}' then
    return;
  end if;
  v_closers := headgate.strike(v_ids, true, v_now);
  v_has_closed := exists (select from headgate.strike s where s.closed_at_ms is not null);
  return query
  with held as (
    select j.id, j.fence, j.worker, j.claimed_at_ms, j.in_progress_step, j.deadline_at_ms, j.queue, j.kind,
      j.crash_attempt + 1 as next_crash, j.crash_limit, greatest(j.schema_version, j.checkpoint_version) as version,
      v_now + headgate.crash_backoff_ms(j.crash_attempt + 1) as due_at_ms, j.fingerprint,
      v_has_closed and headgate.is_closed(j.fingerprint) as is_closed
    from headgate.job j where j.id = any(v_ids)
  ), moved as (
    select h.*, case when h.next_crash >= h.crash_limit then 'crash_limit' when h.is_closed then 'fingerprint'
      when h.deadline_at_ms <= h.due_at_ms then 'deadline' end as next_reason
    from held h
  ), written as (
    update headgate.job j set
      state = case when m.next_reason in ('crash_limit', 'fingerprint') then 'quarantined'
        when m.next_reason = 'deadline' then 'archived' else 'retryable' end,
      reason = m.next_reason,
      finished_at_ms = case when m.next_reason is not null then v_now end,
      scheduled_at_ms = case when m.next_reason is null then m.due_at_ms else j.scheduled_at_ms end,
      crash_attempt = m.next_crash, streak = 0, orphaned = true,
      lane_id = headgate.lane_for(j.lane_id, m.version, true),
      crashes_by_step = case when m.in_progress_step is null then j.crashes_by_step
        else headgate.count_crash(j.crashes_by_step, m.in_progress_step) end,
      last_lease_id = null, last_worker = j.worker, lease_id = null, lease_expires_at_ms = null, worker = null
    from moved m where j.id = m.id
    returning j.id, j.crash_attempt, j.state, j.reason
  ), recorded as (
    insert into headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome, step)
    select m.fence, m.claimed_at_ms, v_now, m.id, m.worker, 'lease_lost', m.in_progress_step from moved m
    on conflict do nothing
  )
  select w.id, m.kind, m.worker, w.crash_attempt, w.state,
    case when w.state = 'archived'
      then headgate.record_callback(w.id, w.reason, null, w.crash_attempt, v_now, null, null, null) else w.reason end,
    case when w.id = any(v_closers) then m.fingerprint end
  from written w join moved m on m.id = w.id;
end $$;

-- Corrects what attempts were charged, before the statement that settles them: both are one transaction, and only rows
-- still owned under the given lease and fence count, which are locked from here on. Each row of the other arrays tells of
-- one job: the class and key (null: each that the job names), what it really cost (null: as estimated), and for how
-- long that bucket is closed (null: it is not). Of several for one bucket the last counts. Answers p_wait_ms.
create function headgate.correct(
  p_jobs text[], p_leases uuid[], p_fences bigint[], p_charged text[], p_classes text[], p_keys text[],
  p_actuals bigint[], p_push_back_ms bigint[], p_wait_ms int
) returns int
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  if p_wait_ms is not null then
    perform set_config('lock_timeout', p_wait_ms::text, true);
  end if;
  if exists (select from headgate.lane l where l.classes <> '{}') then
    perform headgate.recharge(array(
      select j.id from unnest(p_jobs, p_leases, p_fences) as i(job_id, lease_id, fence)
      join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
      order by j.id for no key update of j), p_charged, p_classes, p_keys, p_actuals, p_push_back_ms);
  end if;
  return p_wait_ms;
end $$;

-- As above, for jobs that the caller has locked; shorter arrays are filled up with nulls. A bucket never holds more than
-- its burst, and is closed for a day at most.
create function headgate.recharge(
  p_ids text[], p_charged text[], p_classes text[], p_keys text[], p_actuals bigint[], p_push_back_ms bigint[]
) returns void language plpgsql volatile as $$
declare
  v_classes text[];
  v_keys text[];
  v_back numeric[];
  v_push bigint[];
  v_now bigint := headgate.now_ms();
begin
  select array_agg(b.class), array_agg(b.key), array_agg(b.back), array_agg(b.push_back_ms)
    into v_classes, v_keys, v_back, v_push
    from (
      select said.class, said.key, sum(said.back) as back, max(said.push_back_ms) as push_back_ms from (
        select c.class, c.key, coalesce(c.weight - (array_agg(u.actual order by u.n desc)
            filter (where u.actual is not null))[1], 0) as back,
          -- least() passes over a null.
          max(case when u.push_back_ms > 86400000 then 86400000 else u.push_back_ms end) as push_back_ms
        from headgate.charges(p_ids) c
        join unnest(p_charged, p_classes, p_keys, p_actuals, p_push_back_ms) with ordinality
          u(job_id, class, key, actual, push_back_ms, n)
          on u.job_id = c.id and coalesce(u.class, c.class) = c.class and coalesce(u.key, c.key) = c.key
        group by c.id, c.class, c.key, c.weight
      ) said group by said.class, said.key
    ) b join headgate.rate_class r on r.name = b.class
    where b.back <> 0 or b.push_back_ms is not null;
  if v_classes is null then
    return;
  end if;
  -- Makes those that are missing, and locks the others.
  insert into headgate.bucket as b (class, key, units, at_ms)
    select u.class, u.key, r.burst * r.window_ms, 0 from unnest(v_classes, v_keys) u(class, key)
    join headgate.rate_class r on r.name = u.class
    order by u.class collate "C", u.key collate "C"
    on conflict (class, key) do update set at_ms = b.at_ms;
  update headgate.bucket b set
    units = greatest(least(
      headgate.refilled(b.units, b.at_ms, v_now, r.rate_limit, r.window_ms, r.burst) + u.back * r.window_ms,
      r.burst * r.window_ms), -4e18)::bigint,
    -- Refill that a later call has counted, while this one waited, is not counted again.
    at_ms = greatest(b.at_ms, v_now),
    closed_until_ms = greatest(b.closed_until_ms, v_now + u.push_back_ms)
  from unnest(v_classes, v_keys, v_back, v_push) u(class, key, back, push_back_ms)
  join headgate.rate_class r on r.name = u.class
  where b.class = u.class and b.key = u.key;
end $$;

-- Hands back what a call of the gate claimed whose answer nobody heard. Nothing of it started: its charge goes back too.
create function headgate.abandon(p_lease_id uuid) returns table (queue text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_ids text[];
begin
  v_ids := array(select j.id from headgate.job j where j.state = 'running' and j.lease_id = p_lease_id
    order by j.id for no key update);
  if exists (select from headgate.lane l where l.classes <> '{}') then
    perform headgate.recharge(v_ids, v_ids, '{}', '{}', array_fill(0::bigint, array[cardinality(v_ids)]), '{}');
  end if;
  return query
    update headgate.job j set state = 'available', last_lease_id = j.lease_id, last_worker = j.worker,
      lease_id = null, lease_expires_at_ms = null, worker = null
    where j.id = any(v_ids) returning j.queue;
end $$;
