-- Dead letters brought back, as a stored operation that a duty carries out step by step.
--   start_redrive   stores who wants what, and why;
--   redrive_step    one bounded piece of work on the redrive that is due: redrive_move() or redrive_judge();
--   redrive_move    the next batch of its jobs becomes available, or is skipped with a reason;
--   redrive_judge   a stage that is full waits for its jobs, then the next begins or the redrive pauses;
--   steer_redrive   an operator cancels or resumes;
--   archived_page   archived jobs in the order in which they were archived, and whether a filter selects them;
--   death_groups    what given jobs died of.
--
-- A step reads where the redrive stands under the lock of its row, and writes it in the same statement: of two workers
-- one gives way, and one that died or lost the duty leaves a whole step or none. The position only grows and ends at the
-- time of creation, so what is archived anew is not met again. Locks: the redrive, then jobs by id, none of them waited for.

create index job_archived on headgate.job (finished_at_ms, id) where state = 'archived';

create table headgate.redrive (
  nth bigint generated always as identity unique,
  created_at_ms bigint not null,
  started_at_ms bigint,
  ended_at_ms bigint,
  due_at_ms bigint not null,              -- of the next step, while it runs
  id text collate "C" not null primary key,
  state text collate "C" not null default 'running' check (state in ('running', 'paused', 'cancelled', 'done')),
  pause text collate "C" check ((state = 'paused') = (pause is not null)),
  actor text not null,
  note text not null,
  named int,                              -- number of jobs given by id; null with a filter
  kind text collate "C",
  queue text collate "C",
  partition_key text collate "C",
  reason text collate "C",
  error_tag text collate "C",
  tag text collate "C",
  from_ms bigint,
  before_ms bigint,
  within_ms bigint,                       -- in place of from_ms: so long before it was created
  is_staged boolean not null,
  max_failure_ratio float8 not null,
  stage_wait_ms bigint not null,
  batch int not null,
  per_second int not null,
  deadline text collate "C" not null check (deadline in ('keep', 'clear', 'after')),
  deadline_ms bigint check ((deadline = 'after') = (deadline_ms is not null)),
  -- The last job looked at, and how many were selected so far.
  at_ms bigint not null,
  at_id text collate "C" not null default '',
  looked bigint not null default 0,
  is_exhausted boolean not null default false,
  moved bigint not null default 0,
  key_taken bigint not null default 0,
  deadline_passed bigint not null default 0,
  fingerprint_closed bigint not null default 0,
  not_archived bigint not null default 0,
  held bigint not null default 0,
  ended bigint not null default 0,
  failed bigint not null default 0,
  stage_size int not null default 1,
  stage_moved int not null default 0,
  stage_ended int not null default 0,
  stage_failed int not null default 0,
  stage_until_ms bigint
) with (fillfactor = 50);
create index redrive_due on headgate.redrive (due_at_ms) where state = 'running';
create index redrive_state on headgate.redrive (state, nth);
create index redrive_ended on headgate.redrive (ended_at_ms) where ended_at_ms is not null;

create table headgate.redrive_job (
  nth bigint not null,
  redrive_id text collate "C" not null,
  job_id text collate "C" not null,
  result text collate "C" not null,
  primary key (redrive_id, nth)
);

-- Jobs of the stages under way that were not seen to end: 10,000 a redrive at most.
create table headgate.redrive_open (
  redrive_id text collate "C" not null,
  job_id text collate "C" not null,
  primary key (redrive_id, job_id)
);

-- Only ever appended to.
create table headgate.redrive_event (
  nth bigint generated always as identity,
  at_ms bigint not null,
  redrive_id text collate "C" not null,
  event text collate "C" not null,
  actor text,
  note text not null,
  primary key (redrive_id, nth)
);

-- The next p_limit archived jobs behind a position, up to a time, and whether they meet the conditions that are not null.
create function headgate.archived_page(
  p_kind text, p_queue text, p_partition_key text, p_reason text, p_error_tag text, p_tag text,
  p_at_ms bigint, p_at_id text, p_until_ms bigint, p_limit int
) returns table (id text, at_ms bigint, is_match boolean)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  return query
  select s.id, s.finished_at_ms, coalesce(
    (p_kind is null or s.kind = p_kind) and (p_queue is null or s.queue = p_queue)
    and (p_partition_key is null or s.partition_key = p_partition_key) and (p_reason is null or s.reason = p_reason)
    and (p_tag is null or p_tag = any(s.tags))
    -- A subquery with a value, and not an exists: that could be planned as a scan of all attempts.
    and (p_error_tag is null or p_error_tag = (
      select coalesce(a.error_tag, case when a.error_message is not null then a.outcome end)
      from headgate.attempt a where a.job_id = s.id and a.fence = s.fence)), false)
  from (
    select j.id, j.finished_at_ms, j.kind, j.queue, j.partition_key, j.reason, j.tags, j.fence from headgate.job j
    where j.state = 'archived' and (j.finished_at_ms, j.id) > (p_at_ms, p_at_id) and j.finished_at_ms <= p_until_ms
    order by j.finished_at_ms, j.id limit p_limit
  ) s;
end $$;

-- Of given jobs how many have a kind, a reason and the tag of the error of their latest attempt in common.
create function headgate.death_groups(p_ids text[])
returns table (kind text, reason text, error_tag text, jobs bigint)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  return query
  select j.kind, j.reason, t.error_tag, count(*) from unnest(p_ids) u(id)
    cross join lateral (select j.kind, j.reason, j.fence from headgate.job j where j.id = u.id limit 1) j
    -- A subquery with a value, as above.
    cross join lateral (select (
      select coalesce(a.error_tag, case when a.error_message is not null then a.outcome end)
      from headgate.attempt a where a.job_id = u.id and a.fence = j.fence) as error_tag) t
    group by j.kind, j.reason, t.error_tag;
end $$;

-- Does nothing when the id is known; answers whether it is that of a redrive of the same jobs. p_ids null: the conditions
-- select.
create function headgate.start_redrive(
  p_id text, p_actor text, p_note text, p_ids text[], p_kind text, p_queue text, p_partition_key text, p_reason text,
  p_error_tag text, p_tag text, p_from_ms bigint, p_before_ms bigint, p_within_ms bigint, p_is_staged boolean,
  p_max_failure_ratio float8, p_stage_wait_ms bigint, p_batch int, p_per_second int, p_deadline text, p_deadline_ms bigint
) returns boolean language plpgsql volatile as $$
declare
  v_now bigint := headgate.now_ms();
begin
  insert into headgate.redrive (id, actor, note, created_at_ms, due_at_ms, named, kind, queue, partition_key, reason,
    error_tag, tag, from_ms, before_ms, within_ms, is_staged, max_failure_ratio, stage_wait_ms, batch, per_second,
    deadline, deadline_ms, at_ms)
  values (p_id, p_actor, p_note, v_now, v_now, cardinality(p_ids), p_kind, p_queue, p_partition_key, p_reason,
    p_error_tag, p_tag, p_from_ms, p_before_ms, p_within_ms, p_is_staged, p_max_failure_ratio, p_stage_wait_ms, p_batch,
    p_per_second, p_deadline, p_deadline_ms, coalesce(p_from_ms, v_now - p_within_ms, 0))
  on conflict (id) do nothing;
  if found then
    insert into headgate.redrive_job (redrive_id, nth, job_id, result)
      select p_id, u.nth, u.id, 'waiting' from unnest(p_ids) with ordinality u(id, nth);
    perform headgate.note_redrive(p_id, v_now, 'created', p_actor, p_note);
    return true;
  end if;
  return exists (
    select from headgate.redrive r where r.id = p_id
      and (r.named, r.kind, r.queue, r.partition_key, r.reason, r.error_tag, r.tag, r.from_ms, r.before_ms, r.within_ms)
        is not distinct from (cardinality(p_ids), p_kind, p_queue, p_partition_key, p_reason, p_error_tag, p_tag, p_from_ms,
          p_before_ms, p_within_ms)
      and (p_ids is null
        or p_ids = array(select s.job_id from headgate.redrive_job s where s.redrive_id = p_id order by s.nth)));
end $$;

create function headgate.note_redrive(p_id text, p_now bigint, p_event text, p_actor text, p_note text) returns void
language sql volatile as $$
  insert into headgate.redrive_event (at_ms, redrive_id, event, actor, note) values (p_now, p_id, p_event, p_actor, p_note)
$$;

-- redrive_id null: none is due. `to_state` and `pause` are what the redrive is after the step; next_in_ms is null when
-- none runs.
create function headgate.redrive_step()
returns table (redrive_id text, moved int, to_state text, pause text, queues text[], next_in_ms bigint)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
declare
  v_now bigint := headgate.now_ms();
  v_next record;
begin
  moved := 0;
  queues := '{}';
  select r.id, r.moved, r.is_exhausted or (r.is_staged and r.stage_moved >= r.stage_size) as is_full into v_next
    from headgate.redrive r where r.state = 'running' and r.due_at_ms <= v_now
    order by r.due_at_ms limit 1 for update skip locked;
  if found then
    if v_next.is_full then
      perform headgate.redrive_judge(v_next.id, v_now);
    else
      queues := headgate.redrive_move(v_next.id, v_now);
    end if;
    select r.id, r.moved - v_next.moved, r.state, r.pause into redrive_id, moved, to_state, pause
      from headgate.redrive r where r.id = v_next.id;
  end if;
  select greatest(r.due_at_ms - v_now, 0) into next_in_ms
    from headgate.redrive r where r.state = 'running' order by r.due_at_ms limit 1;
  return next;
end $$;

-- Answers the queues that have new work.
create function headgate.redrive_move(p_id text, p_now bigint) returns text[] language plpgsql volatile as $$
declare
  v_look constant int := 2000;
  -- A job whose unique key is being taken at this moment is waited for, but not many of them.
  v_until timestamptz := clock_timestamp() + interval '2 s';
  -- Not literal where rows are addressed by id: that could pull the plan off the primary key.
  v_archived text := 'archived';
  v_r headgate.redrive;
  v_limit int;
  v_ids text[];
  v_last record;
  v_mine text[];
  v_results text[];
  v_deadline_at_ms bigint;
  v_job record;
  v_queues text[];
begin
  select r.* into v_r from headgate.redrive r where r.id = p_id;
  v_deadline_at_ms := p_now + v_r.deadline_ms;
  v_limit := case when v_r.is_staged then least(v_r.batch, v_r.stage_size - v_r.stage_moved) else v_r.batch end;

  -- v_last: the position after this step, and whether nothing is left behind it.
  if v_r.named is not null then
    v_ids := array(select s.job_id from headgate.redrive_job s
      where s.redrive_id = p_id and s.nth > v_r.looked order by s.nth limit v_limit);
    select v_r.at_ms, v_r.at_id as id, v_r.looked + cardinality(v_ids) >= v_r.named as is_end into v_last;
  else
    with page as materialized (
      select p.*, row_number() over () as place from headgate.archived_page(v_r.kind, v_r.queue, v_r.partition_key,
        v_r.reason, v_r.error_tag, v_r.tag, v_r.at_ms, v_r.at_id, least(v_r.before_ms - 1, v_r.created_at_ms), v_look) p
    ), picked as (
      select p.id, p.place from page p where p.is_match order by p.place limit v_limit
    ), stop as (
      select case when count(*) = v_limit then max(k.place) else v_look end as place, array_agg(k.id order by k.place) as ids
      from picked k
    )
    select coalesce(s.ids, '{}') as ids, p.at_ms, p.id,
        (select count(*) from page) < v_look
          and not exists (select from page later where later.is_match and later.place > s.place) as is_end
      into v_last
      from stop s left join lateral (select * from page p where p.place <= s.place order by p.place desc limit 1) p on true;
    v_ids := v_last.ids;
  end if;

  v_mine := array(select j.id from headgate.job j
    where j.id = any(v_ids) and j.state = v_archived and j.finished_at_ms <= v_r.created_at_ms
    order by j.id for no key update skip locked);
  v_results := array(
    select case
      when m.id is null then
        case when j.state = v_archived and j.finished_at_ms <= v_r.created_at_ms then 'held' else 'not_archived' end
      when v_r.deadline = 'keep' and j.deadline_at_ms <= p_now then 'deadline_passed'
      when headgate.is_closed(j.fingerprint) then 'fingerprint_closed'
      when j.has_key then 'keyed'
      else 'moved' end
    from unnest(v_ids) with ordinality u(id, place) left join unnest(v_mine) m(id) on m.id = u.id
    -- One look by primary key each, whatever the statistics say.
    left join lateral (
      select j.state, j.finished_at_ms, j.deadline_at_ms, j.fingerprint, j.unique_key is not null as has_key
      from headgate.job j where j.id = u.id limit 1
    ) j on true
    order by u.place);

  perform headgate.bring_back(array(select u.id from unnest(v_ids, v_results) u(id, result) where u.result = 'moved'),
    true, true, v_r.deadline = 'keep', v_deadline_at_ms);
  for v_job in
    select u.id, u.place, j.deadline_at_ms
    from unnest(v_ids, v_results) with ordinality u(id, result, place) join headgate.job j on j.id = u.id
    where u.result = 'keyed' order by u.place
  loop
    begin
      v_results[v_job.place] := case
        when clock_timestamp() > v_until then 'held'
        when headgate.return_job(v_job.id, true, true,
          case when v_r.deadline = 'keep' then v_job.deadline_at_ms else v_deadline_at_ms end) is null then 'moved'
        else 'key_taken' end;
    exception when lock_not_available then
      v_results[v_job.place] := 'held';
    end;
  end loop;

  insert into headgate.redrive_job as s (redrive_id, nth, job_id, result)
    select p_id, v_r.looked + u.place, u.id, u.result
    from unnest(v_ids, v_results) with ordinality u(id, result, place)
    on conflict (redrive_id, nth) do update set result = excluded.result;
  insert into headgate.redrive_open (redrive_id, job_id)
    select p_id, u.id from unnest(v_ids, v_results) u(id, result) where v_r.is_staged and u.result = 'moved'
    -- Met again: the store's clock went back, as after a failover, before it was archived anew.
    on conflict do nothing;
  update headgate.redrive r set started_at_ms = coalesce(r.started_at_ms, p_now),
    at_ms = coalesce(v_last.at_ms, r.at_ms), at_id = coalesce(v_last.id, r.at_id), is_exhausted = v_last.is_end,
    looked = r.looked + cardinality(v_ids), moved = r.moved + n.moved, stage_moved = r.stage_moved + n.moved,
    key_taken = r.key_taken + n.key_taken, deadline_passed = r.deadline_passed + n.deadline_passed,
    fingerprint_closed = r.fingerprint_closed + n.fingerprint_closed, not_archived = r.not_archived + n.not_archived,
    held = r.held + n.held, due_at_ms = p_now + (n.moved * 1000 + r.per_second - 1) / r.per_second,
    stage_until_ms = p_now + r.stage_wait_ms
  from (
    select count(*) filter (where u.result = 'moved')::int as moved,
      count(*) filter (where u.result = 'key_taken') as key_taken,
      count(*) filter (where u.result = 'deadline_passed') as deadline_passed,
      count(*) filter (where u.result = 'fingerprint_closed') as fingerprint_closed,
      count(*) filter (where u.result = 'not_archived') as not_archived,
      count(*) filter (where u.result = 'held') as held
    from unnest(v_results) u(result)
  ) n where r.id = p_id;
  if v_last.is_end then
    perform headgate.end_redrive(r.id, p_now) from headgate.redrive r
      where r.id = p_id and (not r.is_staged or r.stage_moved = 0);
  end if;
  select array_agg(distinct j.queue) into v_queues from headgate.job j where j.id = any(array(
    select u.id from unnest(v_ids, v_results) u(id, result) where u.result = 'moved'));
  return coalesce(v_queues, '{}');
end $$;

create function headgate.end_redrive(p_id text, p_now bigint) returns void language plpgsql volatile as $$
begin
  update headgate.redrive r set state = 'done', ended_at_ms = p_now where r.id = p_id;
  perform headgate.note_redrive(r.id, p_now, 'done', null, format('%s moved, %s skipped', r.moved, r.looked - r.moved))
    from headgate.redrive r where r.id = p_id;
end $$;

-- A stage ends with its last job, or with the wait, or as soon as more than the bound has failed for certain.
create function headgate.redrive_judge(p_id text, p_now bigint) returns void language plpgsql volatile as $$
declare
  v_r headgate.redrive;
  v_seen record;
  v_known int;
  v_failed int;
  v_pause text;
begin
  with looked as materialized (
    select s.job_id, coalesce(j.state in ('completed', 'archived', 'cancelled', 'quarantined', 'undecodable'), true) as is_end,
      coalesce(j.state in ('archived', 'quarantined', 'undecodable'), false) as is_failed,
      j.attempt + j.crash_attempt > 0 as is_failing
    from headgate.redrive_open s left join lateral (
      select j.state, j.attempt, j.crash_attempt from headgate.job j where j.id = s.job_id limit 1
    ) j on true
    where s.redrive_id = p_id
  ), closed as (
    delete from headgate.redrive_open s
    where s.redrive_id = p_id and s.job_id = any(array(select l.job_id from looked l where l.is_end))
  )
  select count(*) filter (where l.is_end)::int as ended, count(*) filter (where l.is_failed)::int as failed,
    count(*) filter (where not l.is_end)::int as open, count(*) filter (where not l.is_end and l.is_failing)::int as failing
    into v_seen from looked l;
  update headgate.redrive r set ended = r.ended + v_seen.ended, failed = r.failed + v_seen.failed,
    stage_ended = r.stage_ended + v_seen.ended, stage_failed = r.stage_failed + v_seen.failed,
    due_at_ms = p_now + case when v_seen.open <= 100 then 200 else 1000 end
    where r.id = p_id returning r.* into v_r;
  if v_seen.open > 0 and p_now < v_r.stage_until_ms and v_r.stage_failed <= v_r.max_failure_ratio * v_r.stage_moved then
    return;
  end if;

  v_known := v_r.stage_ended + v_seen.failing;
  v_failed := v_r.stage_failed + v_seen.failing;
  delete from headgate.redrive_open s where s.redrive_id = p_id;
  update headgate.redrive r set failed = r.failed + v_seen.failing, stage_failed = v_failed where r.id = p_id;
  if v_r.is_exhausted then
    perform headgate.end_redrive(p_id, p_now);
    return;
  end if;
  v_pause := case when v_known = 0 then 'unanswered' when v_failed > v_r.max_failure_ratio * v_known then 'failures' end;
  if v_pause is null then
    update headgate.redrive r set stage_size = least(r.stage_size::bigint * 10, 10000), stage_moved = 0, stage_ended = 0,
      stage_failed = 0, due_at_ms = p_now where r.id = p_id;
  else
    update headgate.redrive r set state = 'paused', pause = v_pause where r.id = p_id;
  end if;
  perform headgate.note_redrive(p_id, p_now, case when v_pause is null then 'stage' else 'paused' end, null,
    format('of a stage of %s %s came to an end or failed, %s of them failed',
      case v_r.stage_moved when 1 then '1 job' else v_r.stage_moved || ' jobs' end, v_known, v_failed));
end $$;

-- p_to: cancelled, from running or paused; or running, from paused. Answers the state before, null when there is none.
create function headgate.steer_redrive(p_id text, p_to text, p_actor text, p_note text) returns text
language plpgsql volatile set lock_timeout = '5s' as $$
declare
  v_now bigint := headgate.now_ms();
  v_state text;
begin
  select r.state into v_state from headgate.redrive r where r.id = p_id for update;
  if p_to = 'cancelled' and v_state in ('running', 'paused') then
    update headgate.redrive r set state = 'cancelled', pause = null, ended_at_ms = v_now where r.id = p_id;
    delete from headgate.redrive_open s where s.redrive_id = p_id;
    perform headgate.note_redrive(p_id, v_now, 'cancelled', p_actor, p_note);
  elsif p_to = 'running' and v_state = 'paused' then
    update headgate.redrive r set state = 'running', pause = null, due_at_ms = v_now, stage_size = 1, stage_moved = 0,
      stage_ended = 0, stage_failed = 0 where r.id = p_id;
    perform headgate.note_redrive(p_id, v_now, 'resumed', p_actor, p_note);
  end if;
  return v_state;
end $$;

-- Of a redrive that ended so long ago, the next p_limit jobs; then the redrive itself.
create function headgate.evict_redrives(p_limit int, p_until_ms bigint) returns void language plpgsql volatile as $$
declare
  v_id text;
  v_gone int;
begin
  select r.id into v_id from headgate.redrive r where r.ended_at_ms <= p_until_ms
    order by r.ended_at_ms limit 1 for update skip locked;
  if not found then
    return;
  end if;
  delete from headgate.redrive_job s where s.redrive_id = v_id and s.nth = any(array(
    select o.nth from headgate.redrive_job o where o.redrive_id = v_id order by o.nth limit p_limit));
  get diagnostics v_gone = row_count;
  if v_gone < p_limit then
    delete from headgate.redrive_event e where e.redrive_id = v_id;
    delete from headgate.redrive r where r.id = v_id;
  end if;
end $$;
