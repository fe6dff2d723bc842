-- What is held by which policy: now, in the whole store (held_now), and over time, for the jobs at the heads of the lanes
-- (observe_holds, a duty). The gate itself writes nothing of this.

create function headgate.ready_lanes(p_limit int) returns setof headgate.lane language sql stable as $$
  select l.* from headgate.lane l where headgate.has_ready(l.id) order by l.id limit p_limit
$$;

-- Everything that is switched off, whether or not work waits for it.
create function headgate.paused_now(p_limit int)
returns table (blocked_by text, name text, key text, waiting bigint, is_at_least boolean, switch text)
language sql stable as $$
  with switch as (
    select 'queue' as switch, q.name, '' as key from headgate.queue q where q.is_paused
    union all select 'kind', k.name, '' from headgate.kind k where k.is_paused
    union all select 'rate_class', r.name, '' from headgate.rate_class r where r.is_paused
    union all select 'concurrency_limit', c.name, '' from headgate.concurrency_limit c where c.is_paused
    union all select 'partition', p.queue, p.partition_key from headgate.partition p where p.is_paused
    order by 1, 2, 3 limit p_limit
  )
  select case s.switch when 'queue' then 'queue_paused' else 'paused' end, s.name, s.key, coalesce(w.waiting, 0),
    coalesce(w.is_at_least, false), s.switch
  from switch s
  left join headgate.concurrency_limit c on s.switch = 'concurrency_limit' and c.name = s.name
  cross join lateral (
    select sum(n.jobs)::bigint as waiting, bool_or(n.jobs = 1000) or count(*) = 100 as is_at_least from (
      select l.id from headgate.ready_lanes(1000) l
      where s.switch in ('queue', 'partition') and l.queue = s.name or s.switch = 'kind' and l.kind = s.name
        or s.switch = 'rate_class' and s.name = any(l.classes)
        or c.scope in ('queue', 'partition') and l.queue = c.subject or c.scope = 'kind' and l.kind = c.subject
        or c.scope = 'key' and c.name = any(l.limits)
      limit 100
    ) l cross join lateral (
      select count(*) as jobs from (select from headgate.job j where j.lane_id = l.id and j.state = 'available'
        and (s.switch <> 'partition' or j.partition_key = s.key) limit 1000) j
    ) n
  ) w
$$;

-- Lanes with ready work that nobody alive may take.
create function headgate.unserved_now(p_limit int, p_now bigint)
returns table (blocked_by text, name text, key text, waiting bigint, is_at_least boolean, switch text)
language sql stable as $$
  select (c.cause).blocked_by, coalesce((c.cause).detail ->> 'worker', (c.cause).detail ->> 'kind', (c.cause).detail ->> 'queue'),
    '', sum(n.jobs)::bigint, bool_or(n.jobs = 1000), null::text
  from (
    select l.id, headgate.held_by_routing(null, l, p_now) as cause from headgate.ready_lanes(p_limit) l
    where (headgate.held_by_switch(null, l)).blocked_by is null
  ) c
  cross join lateral (select count(*) as jobs from (
    select from headgate.job j where j.lane_id = c.id and j.state = 'available' limit 1000) j) n
  where (c.cause).blocked_by is not null group by 1, 2 order by 1, 2 limit p_limit
$$;

-- Empty buckets and full slots with ready work, in the first groups of each queue.
create function headgate.closed_now(p_limit int, p_now bigint)
returns table (blocked_by text, name text, key text, waiting bigint, is_at_least boolean, switch text)
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
begin
  return query
  with open_lane as materialized (
    select l.id, l.queue from headgate.ready_lanes(1000) l where (headgate.held_by_switch(null, l)).blocked_by is null
  ), seen as materialized (
    select g.* from (select array_agg(l.id) as lanes from open_lane l group by l.queue order by l.queue limit 100) q
    cross join lateral (select * from headgate.groups(q.lanes[1:50], '', null, 50) limit 200) g limit 500
  ), closed as (
    select s.lane_id, s.partition_key, s.keys, r.policy, r.key, r.on_saturated
    from seen s cross join lateral headgate.rooms_left(s.lane_id, s.partition_key, s.keys, p_now) r where r.room < r.unit
  )
  select case when c.on_saturated is null then 'rate_class' else 'concurrency_limit' end, c.policy, c.key,
    sum(n.jobs)::bigint, bool_or(n.jobs = 100), null::text
  from closed c
  cross join lateral (select count(*) as jobs from (
    select from headgate.job j where j.lane_id = c.lane_id and j.partition_key = c.partition_key and j.keys = c.keys
      and j.state = 'available' limit 100) j) n
  group by c.policy, c.key, c.on_saturated order by 4 desc, 2, 3 limit p_limit;
end $$;

create function headgate.held_now(p_limit int)
returns table (blocked_by text, name text, key text, waiting bigint, is_at_least boolean, switch text)
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_now bigint := headgate.now_ms();
begin
  return query select * from headgate.paused_now(p_limit);
  return query
    select 'quarantine', s.fingerprint, ''::text, q.jobs, q.jobs = 1000, null::text
    from (select * from headgate.strike s where s.closed_at_ms is not null order by s.closed_at_ms desc limit p_limit) s
    cross join lateral (select count(*) as jobs from (
      select from headgate.job j where j.fingerprint = s.fingerprint and j.state = 'quarantined' limit 1000) j) q;
  return query select * from headgate.unserved_now(p_limit, v_now);
  return query select * from headgate.closed_now(p_limit, v_now);
end $$;

-- The policy that holds, in words that are equal as long as it is the same.
create function headgate.hold_name(p_cause headgate.cause) returns text language sql immutable as $$
  select case p_cause.blocked_by
    when 'paused' then (p_cause.detail ->> 'switch') || ' ' || (p_cause.detail ->> 'name')
    when 'version' then (p_cause.detail ->> 'kind') || ' ' || (p_cause.detail ->> 'needed')
    else coalesce(p_cause.detail ->> 'class', p_cause.detail ->> 'limit', p_cause.detail ->> 'worker',
        p_cause.detail ->> 'kind', p_cause.detail ->> 'name', p_cause.detail ->> 'fingerprint', p_cause.detail ->> 'queue')
      || coalesce(' ' || nullif(p_cause.detail ->> 'key', ''), '') end
$$;

-- Where the search for intervals of removed jobs stands: it goes round.
create table headgate.hold_sweep (
  is_only boolean primary key default true check (is_only),
  job_id text collate "C" not null
);
insert into headgate.hold_sweep (job_id) values ('');

-- Ten jobs a lane, first in the queue, p_limit in all, and those with an open interval. Opens and closes intervals where
-- the cause changed, keeps the newest 20 a job, and answers how many it opened or closed.
create function headgate.observe_holds(p_limit int) returns int
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_open text[] := array(select h.job_id from headgate.hold h where h.until_ms is null order by h.job_id);
  v_ids text[];
  v_job headgate.asked;
  v_lane headgate.lane;
  v_cause headgate.cause;
  v_jobs text[] := '{}';
  v_causes text[] := '{}';
  v_names text[] := '{}';
  v_ended text[];
  v_begun text[];
begin
  v_ids := array(
    select c.id from (
      select j.id, j.scheduled_at_ms,
        row_number() over (partition by l.id order by j.priority desc, j.scheduled_at_ms, j.id) as nth
      from headgate.ready_lanes(p_limit) l
      cross join lateral headgate.groups(array[l.id], '', null, 10) g
      cross join lateral (
        select j.id, j.priority, j.scheduled_at_ms from headgate.job j
        where j.lane_id = g.lane_id and j.partition_key = g.partition_key and j.keys = g.keys and j.state = 'available'
        order by j.priority desc, j.scheduled_at_ms, j.id limit 10
      ) j
    ) c
    where c.nth <= 10 and c.id <> all(v_open) order by c.nth, c.scheduled_at_ms, c.id
    limit least(p_limit, greatest(4 * p_limit - cardinality(v_open), 0)));
  for v_job in select a.* from headgate.asked_about(v_open || v_ids, v_now) a where a.state = 'available' loop
    select * into v_lane from headgate.lane l where l.id = v_job.lane_id;
    v_cause := headgate.cause_of(v_job, v_lane, v_now, false);
    if v_cause.blocked_by is not null then
      v_jobs := v_jobs || v_job.id;
      v_causes := v_causes || v_cause.blocked_by;
      v_names := v_names || headgate.hold_name(v_cause);
    end if;
  end loop;

  with ended as (
    update headgate.hold h set until_ms = v_now
    where h.job_id = any(v_open) and h.until_ms is null and not exists (
      select from unnest(v_jobs, v_causes, v_names) f(job_id, blocked_by, detail)
      where f.job_id = h.job_id and f.blocked_by = h.blocked_by and f.detail is not distinct from h.detail)
    returning h.job_id
  )
  select array_agg(e.job_id) into v_ended from ended e;
  with begun as (
    insert into headgate.hold as h (from_ms, job_id, blocked_by, detail)
    select v_now, f.job_id, f.blocked_by, f.detail from unnest(v_jobs, v_causes, v_names) f(job_id, blocked_by, detail)
    where not exists (select from headgate.hold o where o.job_id = f.job_id and o.until_ms is null)
    on conflict (job_id, from_ms) do update
      set until_ms = null, blocked_by = excluded.blocked_by, detail = excluded.detail
    returning h.job_id
  )
  select array_agg(b.job_id) into v_begun from begun b;
  delete from headgate.hold h using (
    select o.job_id, o.from_ms, row_number() over (partition by o.job_id order by o.from_ms desc) as age
    from headgate.hold o where o.job_id = any(v_begun)
  ) old where h.job_id = old.job_id and h.from_ms = old.from_ms and old.age > 20;
  perform headgate.evict_holds(p_limit);
  return coalesce(cardinality(v_ended), 0) + coalesce(cardinality(v_begun), 0);
end $$;

-- Intervals whose job is gone: among those of the next p_limit that are kept.
create function headgate.evict_holds(p_limit int) returns void
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_from text := (select w.job_id from headgate.hold_sweep w);
  v_ids text[];
begin
  v_ids := array(select h.job_id from headgate.hold h where h.job_id > v_from order by h.job_id, h.from_ms limit p_limit);
  delete from headgate.hold h
    where h.job_id = any(v_ids) and h.job_id <> all(array(select j.id from headgate.job j where j.id = any(v_ids)));
  v_from := case when cardinality(v_ids) = p_limit then v_ids[p_limit] else '' end;
  update headgate.hold_sweep w set job_id = v_from where w.job_id <> v_from;
end $$;
