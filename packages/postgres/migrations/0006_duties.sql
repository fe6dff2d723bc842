-- Sweeps that keep the queue healthy. Each takes a bounded number of rows in index order, passes over rows that others
-- hold, and re-checks its condition under the lock; a repeated or concurrent call finds nothing more to do.
--   promote_due    what waited for a time becomes available; what waited too long for its own worker may run on any;
--   expire_due     what passed its deadline, or its time in the queue, is archived;
--   evict_retained what has been kept long enough is removed, with all that belongs to it; and what says no more than its
--                  absence would.

create function headgate.promote_due(p_limit int) returns table (promoted int, queues text[], next_due_in_ms bigint)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
begin
  with due as (
    select j.id from headgate.job j
    where j.state in ('scheduled', 'retryable') and j.scheduled_at_ms <= v_now
    order by j.scheduled_at_ms limit p_limit for no key update skip locked
  ), moved as (
    update headgate.job j set state = 'available' where j.id = any(array(select d.id from due d)) returning j.queue
  )
  select count(*)::int, array_agg(distinct m.queue) into promoted, queues from moved m;
  with late as (
    select j.id from headgate.job j
    where j.state = 'available' and j.fall_back_at_ms <= v_now
    order by j.fall_back_at_ms limit p_limit for no key update skip locked
  ), freed as (
    update headgate.job j set lane_id = headgate.unpinned_lane(j.lane_id), fall_back_at_ms = null
    where j.id = any(array(select l.id from late l)) returning j.queue
  )
  select promoted + count(*)::int, queues || array_agg(distinct f.queue) into promoted, queues from freed f;
  select greatest(next.at_ms - v_now, 0) into next_due_in_ms from (
    select least(
      (select j.scheduled_at_ms from headgate.job j
        where j.state in ('scheduled', 'retryable') order by j.scheduled_at_ms limit 1),
      (select j.fall_back_at_ms from headgate.job j
        where j.state = 'available' and j.fall_back_at_ms is not null order by j.fall_back_at_ms limit 1)) as at_ms
  ) next where next.at_ms is not null;
  return next;
end $$;

-- The lane like p_lane from which any worker may take.
create function headgate.unpinned_lane(p_lane int) returns int
language plpgsql volatile as $$
declare
  v_lane headgate.lane;
begin
  select l.* into v_lane from headgate.lane l where l.id = p_lane;
  v_lane.worker := '';
  v_lane.falls_back := false;
  return headgate.lane_like(v_lane);
end $$;

-- A running job that is past its deadline loses its lease here: its holder is refused from now on, and learns why.
create function headgate.expire_due(p_limit int) returns table (job_id text)
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_overdue text[];
  v_late text[];
begin
  with due as (
    select j.id, j.state, j.fence, j.worker, j.claimed_at_ms, j.in_progress_step from headgate.job j
    where j.deadline_at_ms <= v_now and j.state in ('pending', 'scheduled', 'available', 'retryable', 'running')
    order by j.deadline_at_ms limit p_limit for no key update skip locked
  ), recorded as (
    insert into headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome, step)
    select d.fence, d.claimed_at_ms, v_now, d.id, d.worker, 'deadline_passed', d.in_progress_step
    from due d where d.state = 'running'
    on conflict do nothing
  ), moved as (
    update headgate.job j set state = 'archived', reason = 'deadline', finished_at_ms = v_now,
      last_worker = coalesce(j.worker, j.last_worker),
      last_lease_id = case when j.lease_id is null then j.last_lease_id end,
      lease_id = null, lease_expires_at_ms = null, worker = null
    where j.id = any(array(select d.id from due d)) returning j.id
  )
  select array_agg(m.id) into v_overdue from moved m;

  with late as (
    select j.id from headgate.job j
    where j.queue_timeout_ms is not null and j.state in ('scheduled', 'available', 'retryable')
      and (j.claimed_at_ms is null or j.scheduled_at_ms > j.claimed_at_ms)
      and j.scheduled_at_ms + j.queue_timeout_ms <= v_now
    order by j.scheduled_at_ms + j.queue_timeout_ms limit p_limit - coalesce(cardinality(v_overdue), 0)
    for no key update skip locked
  ), moved as (
    update headgate.job j set state = 'archived', reason = 'queue_timeout', finished_at_ms = v_now
    where j.id = any(array(select l.id from late l)) returning j.id
  )
  select array_agg(m.id) into v_late from moved m;
  perform headgate.record_callbacks(v_overdue || v_late);
  return query select moved.id from unnest(v_overdue || v_late) moved(id);
end $$;

-- How long a claimed effect key is kept once its job is gone: 30 days.
create function headgate.effect_retention_ms() returns bigint language sql immutable parallel safe as $$
  select 2592000000::bigint
$$;

-- Answers the number of jobs removed. Workers that were not seen for a day are forgotten here as well, redrives that ended
-- 90 days ago, full buckets, and crashes of content that has not crashed again within 30 days, unless its fingerprint is
-- closed.
create function headgate.evict_retained(p_limit int) returns int
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_ids text[];
begin
  with old as (
    select j.id from headgate.job j
    where j.evict_at_ms <= v_now and j.state in ('completed', 'archived', 'cancelled', 'quarantined', 'undecodable')
    order by j.evict_at_ms limit p_limit for update skip locked
  ), gone as (
    delete from headgate.job j where j.id = any(array(select o.id from old o)) returning j.id
  )
  select array_agg(g.id) into v_ids from gone g;
  if v_ids is not null then
    perform headgate.forget(v_ids);
  end if;
  -- Small rows, which no answer counts: a full part of them does not bring the next one forward.
  perform headgate.evict_effects(10 * p_limit, v_now - headgate.effect_retention_ms());
  perform headgate.evict_redrives(p_limit, v_now - 7776000000);
  perform headgate.evict_buckets(10 * p_limit, v_now);
  delete from headgate.worker w where w.seen_at_ms < v_now - 86400000;
  delete from headgate.strike s where s.fingerprint = any(array(
    select o.fingerprint from headgate.strike o where o.closed_at_ms is null and o.last_at_ms < v_now - 2592000000
    order by o.last_at_ms limit p_limit for update skip locked));
  -- By then the jobs of a worker that died have long been reclaimed.
  delete from headgate.death d where d.ctid = any(array(
    select o.ctid from headgate.death o where o.at_ms < v_now - 86400000 order by o.at_ms limit p_limit));
  perform headgate.evict_callbacks(10 * p_limit, v_now);
  return coalesce(cardinality(v_ids), 0);
end $$;

-- Removes what belongs to jobs that are gone. Effect keys stay: their retention starts now.
create function headgate.forget(p_ids text[]) returns void language sql volatile as $$
  delete from headgate.step s where s.job_id = any(p_ids);
  delete from headgate.attempt a where a.job_id = any(p_ids);
  delete from headgate.progress p where p.job_id = any(p_ids);
  delete from headgate.tracked t where t.job_id = any(p_ids);
  delete from headgate.output o where o.job_id = any(p_ids);
  delete from headgate.hold h where h.job_id = any(p_ids);
  update headgate.effect e set recorded_at_ms = headgate.now_ms() where e.job_id = any(p_ids);
$$;

-- Where the sweep over effect keys stands: it goes round, since keys whose jobs are kept for ever stay in its way.
create table headgate.effect_sweep (
  is_only boolean primary key default true check (is_only),
  at_ms bigint not null,
  key text collate "C" not null
);
insert into headgate.effect_sweep (at_ms, key) values (-1, '');

-- Looks at the next p_limit keys that are old enough, and removes those whose jobs are gone.
create function headgate.evict_effects(p_limit int, p_until_ms bigint) returns void
language plpgsql volatile as $$
declare
  v_from record;
  v_last record;
begin
  select w.at_ms, w.key into v_from from headgate.effect_sweep w for no key update skip locked;
  if not found then
    return;
  end if;
  with old as materialized (
    select e.key, e.job_id, e.recorded_at_ms from headgate.effect e
    where e.recorded_at_ms >= v_from.at_ms and e.recorded_at_ms <= p_until_ms
      and (e.recorded_at_ms > v_from.at_ms or e.key > v_from.key)
    order by e.recorded_at_ms, e.key limit p_limit
  ), gone as (
    delete from headgate.effect e where e.key = any(array(
      select o.key from old o where not exists (select from headgate.job j where j.id = o.job_id)))
  )
  select o.recorded_at_ms as at_ms, o.key, o.place = p_limit as is_full into v_last
    from (select *, row_number() over (order by recorded_at_ms, key) as place from old) o
    order by o.place desc limit 1;
  if v_last.is_full then
    update headgate.effect_sweep set at_ms = v_last.at_ms, key = v_last.key;
  elsif v_from.at_ms >= 0 then
    update headgate.effect_sweep set at_ms = -1, key = '';
  end if;
end $$;

-- Where the sweep over buckets stands: it goes round, since those in use stay in its way.
create table headgate.bucket_sweep (
  is_only boolean primary key default true check (is_only),
  class text collate "C" not null,
  key text collate "C" not null
);
insert into headgate.bucket_sweep (class, key) values ('', '');

-- Of the next p_limit buckets those that are full: without a row they would be the same. One for each class, that of the
-- empty key, stays.
create function headgate.evict_buckets(p_limit int, p_now bigint) returns void
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_from record;
  v_to record;
begin
  select w.class, w.key into v_from from headgate.bucket_sweep w for no key update skip locked;
  if not found then
    return;
  end if;
  select coalesce(max(n.class), headgate.behind_all()) as class, coalesce(max(n.key), '') as key, count(*) = 0 as is_end
    into v_to from (
      select b.class, b.key from headgate.bucket b where (b.class, b.key) > (v_from.class, v_from.key)
      order by b.class, b.key offset p_limit - 1 limit 1
    ) n;
  delete from headgate.bucket b where b.ctid = any(array(
    select o.ctid from headgate.bucket o join headgate.rate_class r on r.name = o.class
    where (o.class, o.key) > (v_from.class, v_from.key) and (o.class, o.key) <= (v_to.class, v_to.key)
      and o.key <> '' and o.closed_until_ms <= p_now
      and headgate.refilled(o.units, o.at_ms, p_now, r.rate_limit, r.window_ms, r.burst) >= r.burst * r.window_ms
    for update of o skip locked));
  if not v_to.is_end then
    update headgate.bucket_sweep set class = v_to.class, key = v_to.key;
  elsif v_from.class <> '' then
    update headgate.bucket_sweep set class = '', key = '';
  end if;
end $$;
