-- Bounds of queues. The statement that inserts new jobs asks backpressure() first, where one of their queues has a limit.

-- Why new jobs are refused: the first queue, by name, that would exceed its limit of unfinished jobs; null when they fit.
-- Enqueues of a queue with a limit wait for one another to the end of their transactions: what was counted stays true,
-- since beside them jobs only finish. (An operator may bring finished ones back beyond the limit.)
create function headgate.backpressure(p_ids text[], p_queues text[]) returns jsonb
language plpgsql volatile
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off as $$
declare
  v_queue record;
  v_lanes int[];
  v_current bigint;
begin
  perform pg_advisory_xact_lock(hashtextextended('headgate.enqueue ' || bounded.name, 0)) from (
    select q.name from headgate.queue q where q.name = any(p_queues) and q.max_unfinished_jobs is not null
    order by q.name offset 0
  ) bounded;
  for v_queue in
    select q.name, q.max_unfinished_jobs as most, count(*) as incoming
    from unnest(p_ids, p_queues) n(id, queue) join headgate.queue q on q.name = n.queue
    -- Sent again, it is no new job.
    where q.max_unfinished_jobs is not null and not exists (select from headgate.job j where j.id = n.id)
    group by q.name, q.max_unfinished_jobs order by q.name
  loop
    -- The count would be that of an older moment.
    if current_setting('transaction_isolation') <> 'read committed' then
      return jsonb_build_object('queue', v_queue.name, 'isolation', current_setting('transaction_isolation'));
    end if;
    v_lanes := array(select l.id from headgate.lane l where l.queue = v_queue.name);
    select count(*) into v_current from (
      (select 1 from headgate.job j where j.lane_id = any(v_lanes) and j.state = 'available' limit v_queue.most)
      union all
      (select 1 from headgate.job j where j.lane_id = any(v_lanes) and j.state = 'running' limit v_queue.most)
      union all
      (select 1 from headgate.job j where j.lane_id = any(v_lanes)
        and j.state in ('pending', 'scheduled', 'retryable') limit v_queue.most)
      limit v_queue.most
    ) unfinished;
    if v_current + v_queue.incoming > v_queue.most then
      return jsonb_build_object('queue', v_queue.name, 'limit', v_queue.most, 'current', v_current,
        'incoming', v_queue.incoming);
    end if;
  end loop;
  return null;
end $$;
