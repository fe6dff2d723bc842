-- What a program wants to do about jobs that were archived, and will not run again by themselves.
--   declare_callbacks  a worker names the kinds whose archived jobs it handles: from then on they are recorded;
--   callback_of        the record of one archived job;
--   record_callback, record_callbacks: write it in the transaction that archives, which every way of archiving does;
--   claim_callbacks    gives recorded jobs out for a limited time, and gives up what was tried often enough;
--   settle_callbacks   what became of a call: delivered, to be tried again, given up, or handed back;
--   evict_callbacks    forgets what was delivered a day ago, and kinds that no worker has named for 30 days.
--
-- A trigger on the jobs would be one place instead of several, and cost the success of a kept job 5 percent.

create table headgate.callback_kind (
  named_at_ms bigint not null,
  kind text collate "C" not null primary key
) with (fillfactor = 50);

create sequence headgate.callback_number;

-- Holds all that a handler is told, since the job may be gone, or running again, by the time it is called. A waiting one
-- is called from due_at_ms on; while it is called (worker is not null), that is when its claim runs out.
create table headgate.callback (
  archived_at_ms bigint not null,
  due_at_ms bigint not null,
  ended_at_ms bigint,                     -- when it was delivered, or given up
  fence bigint not null default 0,        -- +1 with each claim
  schema_version int not null,
  attempt int not null,
  crash_attempt int not null,
  calls int not null default 0,
  lost int not null default 0,            -- calls that did not end while their claim was current
  key text collate "C" not null primary key,
  job_id text collate "C" not null,
  kind text collate "C" not null,
  queue text collate "C" not null,
  partition_key text collate "C" not null,
  reason text collate "C" not null,
  state text collate "C" not null default 'waiting',
  worker text collate "C",
  error_tag text,                         -- of the job's latest attempt
  error_message text,
  fault_tag text,                         -- of the latest call
  fault_message text,
  error bytea,
  tags text[],
  headers bytea,
  payload bytea,                          -- null once it is delivered
  constraint callback_state_known check (state in ('waiting', 'delivered', 'failed'))
) with (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
create index callback_due on headgate.callback (kind, due_at_ms) where state = 'waiting';
create index callback_list on headgate.callback (state, kind, key);
create index callback_delivered on headgate.callback (ended_at_ms) where state = 'delivered';

create function headgate.declare_callbacks(p_kinds text[]) returns void language sql volatile as $$
  insert into headgate.callback_kind as k (kind, named_at_ms)
    select u.kind, headgate.now_ms() from unnest(p_kinds) u(kind) order by u.kind
    on conflict (kind) do update set named_at_ms = excluded.named_at_ms
$$;

-- A job that dies again after it was brought back has another death, under another key. The job may be given as it was
-- before the statement that archives it.
create function headgate.callback_of(
  p_job headgate.job, p_reason text, p_attempt int, p_crash_attempt int, p_at_ms bigint,
  p_error_tag text, p_error_message text, p_error bytea
) returns setof headgate.callback language sql volatile rows 1 as $$
  select p_at_ms, p_at_ms, null::bigint, 0::bigint, p_job.schema_version, p_attempt, p_crash_attempt, 0, 0,
    p_job.id || ':' || nextval('headgate.callback_number'), p_job.id, p_job.kind, p_job.queue, p_job.partition_key,
    p_reason, 'waiting', null, p_error_tag, p_error_message, null, null, p_error, p_job.tags, p_job.headers,
    p_job.payload
$$;

-- In the statement that archives the job, which may show it as before. Null counters are as they were. Answers the
-- reason.
create function headgate.record_callback(
  p_id text, p_reason text, p_attempt int, p_crash_attempt int, p_at_ms bigint,
  p_error_tag text, p_error_message text, p_error bytea
) returns text
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  insert into headgate.callback
    select c.* from headgate.job j join headgate.callback_kind k on k.kind = j.kind
    cross join lateral headgate.callback_of(j, p_reason, coalesce(p_attempt, j.attempt),
      coalesce(p_crash_attempt, j.crash_attempt), p_at_ms, p_error_tag, p_error_message, p_error) c
    where j.id = p_id;
  return p_reason;
end $$;

-- Of jobs that the calling function has archived just now, and no others.
create function headgate.record_callbacks(p_ids text[]) returns void
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  if cardinality(p_ids) > 0 and exists (select from headgate.callback_kind) then
    insert into headgate.callback
      select c.* from headgate.job j
      join headgate.callback_kind k on k.kind = j.kind
      left join headgate.attempt a on a.job_id = j.id and a.fence = j.fence
      cross join lateral headgate.callback_of(j, j.reason, j.attempt, j.crash_attempt, j.finished_at_ms,
        coalesce(a.error_tag, case when a.error_message is not null then a.outcome end), a.error_message, a.error) c
      where j.id = any(p_ids) and j.state = 'archived';
  end if;
end $$;

-- For each kind what is due, up to so many, under a lease of its own. A claim that ran out is due again: the call it was
-- made for ended with its process, or is refused when it settles. What was called p_max_calls times is given up instead,
-- and so is what was lost five times: it may be what ends the processes, and with each of them other work.
create function headgate.claim_callbacks(
  p_worker text, p_kinds text[], p_versions int[], p_most int[], p_lease_ms bigint[], p_max_calls int[]
) returns setof headgate.callback
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
begin
  return query
  with due as (
    select d.key, d.lost, d.calls >= k.max_calls or d.lost >= 5 as is_over, k.lease_ms
    from unnest(p_kinds, p_versions, p_most, p_lease_ms, p_max_calls) k(kind, version, most, lease_ms, max_calls)
    cross join lateral (
      select c.key, c.calls, c.lost + case when c.worker is null then 0 else 1 end as lost from headgate.callback c
      where c.state = 'waiting' and c.kind = k.kind and c.due_at_ms <= v_now and c.schema_version <= k.version
      order by c.due_at_ms limit k.most for no key update skip locked
    ) d
  )
  update headgate.callback c set
    fence = c.fence + 1,
    calls = case when d.is_over then c.calls else c.calls + 1 end,
    lost = d.lost,
    state = case when d.is_over then 'failed' else c.state end,
    ended_at_ms = case when d.is_over then v_now end,
    due_at_ms = case when d.is_over then c.due_at_ms else v_now + d.lease_ms end,
    worker = case when d.is_over then null else p_worker end,
    fault_tag = case when c.worker is null then c.fault_tag else 'CallLost' end,
    fault_message = case when c.worker is null then c.fault_message
      else 'the worker ' || c.worker || ' did not end its call' end
  from due d where c.key = d.key
  returning c.*;
end $$;

-- Answers the keys that were settled: of the others the claim is not current. p_delays counts for those to be tried
-- again. One that is handed back was not tried.
create function headgate.settle_callbacks(
  p_keys text[], p_fences bigint[], p_outcomes text[], p_delays bigint[], p_tags text[], p_messages text[]
) returns table (key text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
begin
  return query
  update headgate.callback c set
    state = case i.outcome when 'delivered' then 'delivered' when 'given_up' then 'failed' else 'waiting' end,
    calls = case when i.outcome = 'handed_back' then c.calls - 1 else c.calls end,
    due_at_ms = v_now + i.delay_ms,
    ended_at_ms = case when i.outcome in ('delivered', 'given_up') then v_now end,
    worker = null,
    fault_tag = case i.outcome when 'delivered' then null when 'handed_back' then c.fault_tag else i.tag end,
    fault_message = case i.outcome when 'delivered' then null when 'handed_back' then c.fault_message else i.message end,
    payload = case when i.outcome = 'delivered' then null else c.payload end
  from unnest(p_keys, p_fences, p_outcomes, p_delays, p_tags, p_messages) i(key, fence, outcome, delay_ms, tag, message)
  where c.key = i.key and c.fence = i.fence and c.worker is not null
  returning c.key;
end $$;

create function headgate.evict_callbacks(p_limit int, p_now bigint) returns void
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  delete from headgate.callback c where c.key = any(array(
    select o.key from headgate.callback o where o.state = 'delivered' and o.ended_at_ms < p_now - 86400000
    order by o.ended_at_ms limit p_limit for update skip locked));
  delete from headgate.callback_kind k where k.named_at_ms < p_now - 2592000000;
end $$;
