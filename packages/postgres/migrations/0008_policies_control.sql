-- Edits of policies while the gate is at work. Each reads what the policy is, and writes; before its first write shows, the
-- triggers of 0002_policies wait for the calls of the gate under way, and hold off the next until the edit is committed. A
-- call sees it wholly before the edit or wholly after.
--   lock_edits                  an edit waits for the edit before it, too;
--   lanes_under, queues_under   whose jobs a policy governs;
--   set_rate_class, set_limit, set_queue, set_partition   make or change;
--   remove_rate_class, remove_limit, remove_partition     answer null when there was none;
--   set_paused                  the switches.
-- Those that edit answer the queues where work may have come free. With p_declared the edit is that of a definition in
-- code: it is made, and answered, only when code says something else than it did last.

create function headgate.lanes_under(p_policy text, p_name text) returns table (id int, queue text)
language sql stable as $$
  select l.id, l.queue from headgate.lane l where case p_policy
    when 'queue' then l.queue = p_name
    when 'kind' then l.kind = p_name
    when 'rate_class' then p_name = any(l.classes)
    when 'concurrency_limit' then exists (select from headgate.concurrency_limit c where c.name = p_name
      and (c.scope in ('queue', 'partition') and c.subject = l.queue or c.scope = 'kind' and c.subject = l.kind
        or c.scope = 'key' and c.name = any(l.limits))) end
$$;

create function headgate.queues_under(p_policy text, p_name text) returns text[] language sql stable as $$
  select array(select distinct l.queue from headgate.lanes_under(p_policy, p_name) l order by l.queue)
$$;

-- An operator's pause outlasts the start of code that says nothing new about it.
create function headgate.paused_after(p_was boolean, p_was_declared text, p_paused boolean, p_declared text)
returns boolean language sql immutable as $$
  select case when p_declared is null then coalesce(p_paused, p_was, false)
    when p_was_declared is null then p_paused or coalesce(p_was, false)
    when (p_was_declared::jsonb ->> 'paused')::boolean <> p_paused then p_paused
    else p_was end
$$;

-- One edit at a time, and none while an application's open transaction has made a lane: the gate must not wait for that.
create function headgate.lock_edits() returns void language sql volatile as $$
  select pg_advisory_xact_lock(hashtextextended('headgate.lanes', 0))
$$;

-- What was saved up to now was earned at the old rate; a bucket's tokens are the same under another window. Buckets are
-- written by index, in the order of their keys: settlements that correct charges lock them in that order.
create function headgate.set_rate_class(
  p_name text, p_rate_limit bigint, p_window_ms bigint, p_burst bigint, p_is_paused boolean, p_declared text
) returns text[] language plpgsql volatile
  set lock_timeout = '2s' set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_now bigint := headgate.now_ms();
  v_old headgate.rate_class;
  v_burst bigint;
begin
  perform headgate.lock_edits();
  select * into v_old from headgate.rate_class r where r.name = p_name;
  -- Who lowers a rate does not mean to let more be saved up.
  v_burst := coalesce(p_burst, v_old.burst, p_rate_limit);
  if v_old.declared = p_declared then
    return null;
  end if;
  insert into headgate.rate_class as r (name, rate_limit, window_ms, burst, is_paused, declared)
    values (p_name, p_rate_limit, p_window_ms, v_burst,
      headgate.paused_after(v_old.is_paused, v_old.declared, p_is_paused, p_declared), p_declared)
    on conflict (name) do update set rate_limit = p_rate_limit, window_ms = p_window_ms, burst = v_burst,
      is_paused = excluded.is_paused, declared = coalesce(p_declared, r.declared);
  if (v_old.rate_limit, v_old.window_ms, v_old.burst) <> (p_rate_limit, p_window_ms, v_burst) then
    -- A settlement that corrects a charge holds no lock of the gate: each row is read again under its own.
    update headgate.bucket b set at_ms = greatest(b.at_ms, v_now), units = least(v_burst * p_window_ms,
        div(headgate.refilled(b.units, b.at_ms, v_now, v_old.rate_limit, v_old.window_ms, v_old.burst)::numeric
          * p_window_ms, v_old.window_ms)::bigint)
      where b.class = p_name;
  end if;
  return headgate.queues_under('rate_class', p_name);
end $$;

create function headgate.remove_rate_class(p_name text) returns text[] language plpgsql volatile
  set lock_timeout = '2s' set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  perform headgate.lock_edits();
  delete from headgate.rate_class r where r.name = p_name;
  if not found then
    return null;
  end if;
  delete from headgate.bucket b where b.class = p_name;
  return headgate.queues_under('rate_class', p_name);
end $$;

create function headgate.set_limit(
  p_name text, p_scope text, p_subject text, p_max int, p_on_saturated text, p_is_paused boolean, p_declared text
) returns text[] language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_old headgate.concurrency_limit;
  v_left text[];
begin
  perform headgate.lock_edits();
  select * into v_old from headgate.concurrency_limit c where c.name = p_name;
  if v_old.declared = p_declared then
    return null;
  end if;
  v_left := headgate.queues_under('concurrency_limit', p_name);
  insert into headgate.concurrency_limit as c (name, scope, subject, max_concurrent, on_saturated, is_paused, declared)
    values (p_name, p_scope, p_subject, p_max, p_on_saturated,
      headgate.paused_after(v_old.is_paused, v_old.declared, p_is_paused, p_declared), p_declared)
    on conflict (name) do update set scope = p_scope, subject = p_subject, max_concurrent = p_max,
      on_saturated = p_on_saturated, is_paused = excluded.is_paused, declared = coalesce(p_declared, c.declared);
  return array(select q.name from unnest(v_left) q(name)
    union select q.name from unnest(headgate.queues_under('concurrency_limit', p_name)) q(name) order by 1);
end $$;

create function headgate.remove_limit(p_name text) returns text[]
language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_queues text[];
begin
  perform headgate.lock_edits();
  v_queues := headgate.queues_under('concurrency_limit', p_name);
  delete from headgate.concurrency_limit c where c.name = p_name;
  return case when found then v_queues end;
end $$;

-- Null leaves a column as it is; 0 takes the quantum away, and -1 the bound of unfinished jobs. How many jobs the queue
-- lags behind the most served of those it competes with, which is never more than one turn, is the same under its new
-- weight.
create function headgate.set_queue(
  p_name text, p_weight int, p_is_strict boolean, p_quantum int, p_is_paused boolean, p_max_unfinished_jobs bigint,
  p_declared text
) returns text[] language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_turn constant bigint := 1000000;
  v_old headgate.queue;
begin
  perform headgate.lock_edits();
  select * into v_old from headgate.queue q where q.name = p_name;
  if v_old.declared = p_declared then
    return null;
  end if;
  insert into headgate.queue as q (name, weight, is_strict, quantum, is_paused, max_unfinished_jobs, declared)
    values (p_name, coalesce(p_weight, v_old.weight, 1), coalesce(p_is_strict, v_old.is_strict, false),
      nullif(coalesce(p_quantum, v_old.quantum), 0),
      headgate.paused_after(v_old.is_paused, v_old.declared, p_is_paused, p_declared),
      nullif(coalesce(p_max_unfinished_jobs, v_old.max_unfinished_jobs), -1), p_declared)
    on conflict (name) do update set weight = excluded.weight, is_strict = excluded.is_strict,
      quantum = excluded.quantum, is_paused = excluded.is_paused, max_unfinished_jobs = excluded.max_unfinished_jobs,
      declared = coalesce(p_declared, q.declared);
  if p_weight <> coalesce(v_old.weight, 1) then
    -- Calls of the gate that compare queues hold these rows, in this order.
    perform from headgate.queue_turn t order by t.queue for update;
    update headgate.queue_turn t
      set served = most.served - (most.served - t.served) * coalesce(v_old.weight, 1) / p_weight
      from (
        select max(o.served) as served from headgate.queue_turn own
        join headgate.queue_turn o on o.served between own.served and own.served + v_turn where own.queue = p_name
      ) most
      where t.queue = p_name;
  end if;
  return array[p_name];
end $$;

create function headgate.set_partition(p_queue text, p_partition_key text, p_quantum int, p_is_paused boolean)
returns text[] language plpgsql volatile set lock_timeout = '2s' as $$
declare
  v_old headgate.partition;
begin
  perform headgate.lock_edits();
  select * into v_old from headgate.partition p where p.queue = p_queue and p.partition_key = p_partition_key;
  insert into headgate.partition (queue, partition_key, quantum, is_paused)
    values (p_queue, p_partition_key, nullif(coalesce(p_quantum, v_old.quantum), 0),
      coalesce(p_is_paused, v_old.is_paused, false))
    on conflict (queue, partition_key) do update set quantum = excluded.quantum, is_paused = excluded.is_paused;
  return array[p_queue];
end $$;

create function headgate.remove_partition(p_queue text, p_partition_key text) returns text[]
language plpgsql volatile set lock_timeout = '2s' as $$
begin
  perform headgate.lock_edits();
  delete from headgate.partition p where p.queue = p_queue and p.partition_key = p_partition_key;
  return case when found then array[p_queue] end;
end $$;

-- p_policy: queue, partition (of the queue p_name), kind, rate_class or concurrency_limit. Answers no row where there is
-- no such policy; and how many waiting jobs pass their deadline within the hour, among the next 10,000 to do so.
create function headgate.set_paused(p_policy text, p_name text, p_partition_key text, p_is_paused boolean)
returns table (queues text[], expiring int, is_approximate boolean)
language plpgsql volatile set lock_timeout = '2s' set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  v_lanes int[];
begin
  perform headgate.lock_edits();
  if p_policy = 'queue' then
    perform headgate.set_queue(p_name, null, null, null, p_is_paused, null, null)
      where p_is_paused or exists (select from headgate.queue q where q.name = p_name);
  elsif p_policy = 'partition' then
    perform headgate.set_partition(p_name, p_partition_key, null, p_is_paused)
      where p_is_paused or exists (select from headgate.partition p
        where p.queue = p_name and p.partition_key = p_partition_key);
  elsif p_policy = 'kind' then
    insert into headgate.kind (name, is_paused) select p_name, p_is_paused
      where p_is_paused or exists (select from headgate.kind k where k.name = p_name)
      on conflict (name) do update set is_paused = excluded.is_paused;
  elsif p_policy = 'rate_class' then
    update headgate.rate_class r set is_paused = p_is_paused where r.name = p_name;
    if not found then
      return;
    end if;
  else
    update headgate.concurrency_limit c set is_paused = p_is_paused where c.name = p_name;
    if not found then
      return;
    end if;
  end if;

  v_lanes := array(select l.id
    from headgate.lanes_under(case p_policy when 'partition' then 'queue' else p_policy end, p_name) l);
  queues := array(select distinct l.queue from headgate.lane l where l.id = any(v_lanes));
  select count(*) filter (where soon.is_waiting and soon.lane_id = any(v_lanes)
      and (p_policy <> 'partition' or soon.partition_key = p_partition_key)), count(*) >= 10000
    into expiring, is_approximate
    from (
      select j.lane_id, j.partition_key, j.state <> 'running' as is_waiting from headgate.job j
      where j.deadline_at_ms <= headgate.now_ms() + 3600000 and j.deadline_at_ms is not null
        and j.state in ('pending', 'scheduled', 'available', 'retryable', 'running')
      order by j.deadline_at_ms limit 10000
    ) soon
    where p_is_paused;
  return next;
end $$;
