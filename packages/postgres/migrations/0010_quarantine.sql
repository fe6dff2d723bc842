-- Poison by its content: crashes are counted for a fingerprint, over all jobs and workers.
--   strike            counts crashes, and closes the fingerprint at the limit;
--   clear_strikes     a success forgets what was counted, unless the fingerprint is closed;
--   forget_closed     lets the gate look no more while no fingerprint is closed;
--   quarantine_sweep  moves the jobs that wait under a closed fingerprint where they are seen;
--   release_fingerprint, reopen: the operator's way back.
-- The gate turns away what it meets under a closed fingerprint, and settle() what comes back from a worker.

create index strike_counting on headgate.strike (fingerprint) where closed_at_ms is null;
create index strike_age on headgate.strike (last_at_ms) where closed_at_ms is null;
create index strike_held on headgate.strike (fingerprint) where closed_at_ms is not null;

-- When a worker lost jobs of a fingerprint last.
create table headgate.death (
  at_ms bigint not null,
  fingerprint text collate "C" not null,
  worker text collate "C" not null,
  primary key (fingerprint, worker)
);
create index death_age on headgate.death (at_ms);

-- A strike for the fingerprint of each of these jobs, which the caller has locked and which still run; with p_is_death one
-- a worker, since whatever it held went down with it: jobs of one death may be found by several sweeps, but were all
-- claimed before the first of them. Answers the jobs whose strike has closed their fingerprint.
create function headgate.strike(p_ids text[], p_is_death boolean, p_now bigint) returns text[]
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_limit bigint := headgate.setting('strike_limit', 3);
  v_blamed text[];
  v_open text[];
  v_closed text[];
  v_closers text[];
begin
  v_blamed := array(
    select distinct on (j.fingerprint, culprit.id) j.id
    from headgate.job j cross join lateral (select case when p_is_death then j.worker else j.id end as id) culprit
    where j.id = any(p_ids) and not (p_is_death and exists (select from headgate.death d
      where d.fingerprint = j.fingerprint and d.worker = j.worker and j.claimed_at_ms <= d.at_ms))
    order by j.fingerprint, culprit.id, j.in_progress_step is null, j.id);
  if v_blamed = '{}' then
    return '{}';
  end if;
  -- Until its end no lane forgets that fingerprints may be closed.
  perform pg_advisory_xact_lock_shared(hashtextextended('headgate.closing', 0));
  insert into headgate.strike as s (fingerprint, strikes, last_at_ms, kind, last_job_id)
    select distinct on (j.fingerprint) j.fingerprint, 0, p_now, j.kind, j.id
    from headgate.job j where j.id = any(v_blamed) order by j.fingerprint, j.id desc
    on conflict (fingerprint) do update set last_at_ms = excluded.last_at_ms, kind = excluded.kind,
      last_job_id = excluded.last_job_id;
  if p_is_death then
    insert into headgate.death as d (at_ms, fingerprint, worker)
      select p_now, j.fingerprint, j.worker from headgate.job j where j.id = any(v_blamed) order by 2, 3
      on conflict (fingerprint, worker) do update set at_ms = excluded.at_ms;
  end if;
  v_open := array(select s.fingerprint from headgate.strike s where s.closed_at_ms is null and s.fingerprint = any(array(
    select j.fingerprint from headgate.job j where j.id = any(v_blamed))));

  update headgate.strike s set strikes = least(s.strikes::bigint + n.crashes, 2147483647)::int,
    by_step = headgate.count_crashes(s.by_step, n.steps),
    closed_at_ms = case when s.closed_at_ms is null and s.strikes + n.crashes >= v_limit then p_now
      else s.closed_at_ms end
  from (
    select j.fingerprint, count(*) as crashes,
      array_agg(j.in_progress_step) filter (where j.in_progress_step is not null) as steps
    from headgate.job j where j.id = any(v_blamed) group by j.fingerprint
  ) n where s.fingerprint = n.fingerprint;
  select array_agg(s.fingerprint), array_agg(s.last_job_id) into v_closed, v_closers
    from headgate.strike s where s.fingerprint = any(v_open) and s.closed_at_ms is not null;
  if v_closed is null then
    return '{}';
  end if;
  insert into headgate.quarantine_lap (fingerprint) select f from unnest(v_closed) f order by f
    on conflict (fingerprint) do update set from_id = null, has_wrapped = false;
  -- As when a lane is made, which the caller may still do: a change of policies writes to lanes before this or after it.
  perform pg_advisory_xact_lock_shared(hashtextextended('headgate.lanes', 0));
  update headgate.lane l set has_closed = true where l.id = any(array(
    select o.id from headgate.lane o where not o.has_closed order by o.id for no key update));
  return v_closers;
end $$;

-- The gate need not look for closed fingerprints while there is none: a lane says so from here on, until one is closed.
-- Waits for nobody; another call will do.
create function headgate.forget_closed() returns void language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  if not pg_try_advisory_xact_lock(hashtextextended('headgate.closing', 0)) then
    return;
  end if;
  -- Seen by a statement of its own: whoever closed one before this lock was had is through.
  if not exists (select from headgate.strike s where s.closed_at_ms is not null) then
    update headgate.lane l set has_closed = false where l.id = any(array(
      select o.id from headgate.lane o where o.has_closed order by o.id for no key update skip locked));
  end if;
end $$;

-- Steps beyond the hundredth are not counted apart.
create function headgate.count_crashes(p_counts jsonb, p_steps text[]) returns jsonb language sql immutable as $$
  select case when p_steps is null then p_counts else (
    select jsonb_object_agg(c.step, c.crashes) from (
      select n.step, sum(n.crashes) as crashes from (
        select e.key as step, e.value::bigint as crashes from jsonb_each_text(coalesce(p_counts, '{}')) e
        union all
        select u.step, 1 from unnest(p_steps) u(step)
      ) n group by n.step order by crashes desc, n.step limit 100
    ) c
  ) end
$$;

-- Of jobs still owned under the given leases, which are about to succeed and are locked from here on.
create function headgate.clear_strikes(p_jobs text[], p_leases uuid[], p_fences bigint[]) returns void
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_nestloop = on as $$
declare
  v_fingerprints text[];
begin
  v_fingerprints := array(
    select j.fingerprint from unnest(p_jobs, p_leases, p_fences) as i(job_id, lease_id, fence)
    join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
    order by j.id for no key update of j);
  delete from headgate.strike s where s.fingerprint = any(array(
    select o.fingerprint from headgate.strike o where o.fingerprint = any(v_fingerprints) and o.closed_at_ms is null
    order by o.fingerprint for update));
end $$;

-- The sweep goes round over all jobs in the order of their ids, since no index finds the waiting ones of a fingerprint:
-- one that is closed joins where the sweep stands and is through when it comes by again. Without any it stands still.
create table headgate.quarantine_position (
  is_only boolean primary key default true check (is_only),
  at_id text collate "C" not null
);
insert into headgate.quarantine_position (at_id) values ('');

create table headgate.quarantine_lap (
  fingerprint text collate "C" not null primary key,
  from_id text collate "C",               -- where it joined; null until it has
  has_wrapped boolean not null default false
);

-- Looks at the next p_limit jobs. Answers those it moved, and whether any lap goes on. What others hold is passed over:
-- the gate meets it.
create function headgate.quarantine_sweep(p_limit int) returns table (moved text[], is_done boolean)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_from text;
  v_to text;
  v_laps text[];
  v_ids text[];
begin
  moved := '{}';
  is_done := true;
  if not exists (select from headgate.quarantine_lap) then
    return next;
    return;
  end if;
  select w.at_id into v_from from headgate.quarantine_position w for no key update skip locked;
  if not found then
    return next;
    return;
  end if;
  v_laps := array(select l.fingerprint from headgate.quarantine_lap l);

  with seen as materialized (
    select j.id, j.fingerprint, j.state from headgate.job j where j.id > v_from order by j.id limit p_limit
  )
  select array_agg(s.id) filter (where s.fingerprint = any(v_laps)
      and s.state in ('pending', 'scheduled', 'available', 'retryable')),
    case when count(*) = p_limit then max(s.id) end into v_ids, v_to from seen s;
  if v_ids is not null then
    v_ids := array(select j.id from headgate.job j where j.id = any(v_ids) and j.fingerprint = any(v_laps)
      order by j.id for no key update skip locked);
    -- From here on nobody opens them before these jobs are where a release finds them.
    v_ids := array(select j.id from headgate.job j join (
        select s.fingerprint from headgate.strike s
        where s.closed_at_ms is not null and s.fingerprint = any(array(
          select c.fingerprint from headgate.job c where c.id = any(v_ids)))
        order by s.fingerprint for share
      ) closed on closed.fingerprint = j.fingerprint where j.id = any(v_ids));
    moved := array(select q.job_id from headgate.quarantine_waiting(v_ids) q);
  end if;

  -- v_to null: the end was reached, and the sweep starts anew.
  delete from headgate.quarantine_lap l where l.fingerprint = any(v_laps) and case
    when v_to is null then coalesce(l.from_id, v_from) = '' or l.has_wrapped
    else l.has_wrapped and l.from_id <= v_to end;
  update headgate.quarantine_lap l set from_id = coalesce(l.from_id, v_from), has_wrapped = l.has_wrapped or v_to is null
    where l.fingerprint = any(v_laps) and (l.from_id is null or v_to is null);
  update headgate.quarantine_position set at_id = coalesce(v_to, '');
  is_done := not exists (select from headgate.quarantine_lap);
  return next;
end $$;

-- An operator trusts the fingerprint once more, one strike short of being closed.
create function headgate.reopen(p_fingerprint text, p_kind text, p_job text) returns void
language plpgsql volatile as $$
begin
  insert into headgate.strike as s (fingerprint, strikes, last_at_ms, kind, last_job_id)
    values (p_fingerprint, headgate.setting('strike_limit', 3) - 1, headgate.now_ms(), p_kind, p_job)
    on conflict (fingerprint) do update set strikes = excluded.strikes, closed_at_ms = null;
  delete from headgate.quarantine_lap l where l.fingerprint = p_fingerprint;
end $$;

-- The next p_limit jobs that were quarantined for crashes, after the job p_after: available again, except where another
-- job holds the unique key. The fingerprint is opened also when there are none.
create function headgate.release_fingerprint(p_fingerprint text, p_limit int, p_after text)
returns table (released int, looked int, last_id text, queues text[])
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '2s' as $$
declare
  v_job record;
begin
  released := 0;
  looked := 0;
  queues := '{}';
  for v_job in
    select j.id, j.queue, j.kind, j.deadline_at_ms from headgate.job j
    where j.fingerprint = p_fingerprint and j.state = 'quarantined' and j.reason in ('fingerprint', 'crash_limit')
      and j.id > p_after
    order by j.id limit p_limit for no key update skip locked
  loop
    if looked = 0 then
      perform headgate.reopen(p_fingerprint, v_job.kind, v_job.id);
    end if;
    looked := looked + 1;
    last_id := v_job.id;
    if headgate.return_job(v_job.id, false, true, v_job.deadline_at_ms) is null then
      released := released + 1;
      queues := queues || v_job.queue;
    end if;
  end loop;
  if looked = 0 and p_after = '' then
    perform headgate.reopen(s.fingerprint, s.kind, s.last_job_id) from headgate.strike s
      where s.fingerprint = p_fingerprint and s.closed_at_ms is not null;
  end if;
  queues := array(select distinct q from unnest(queues) q);
  return next;
end $$;
