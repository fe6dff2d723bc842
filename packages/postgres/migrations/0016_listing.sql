-- Jobs of one state for whoever looks through them: jobs_page(). A page follows an index that knows the state and costs
-- its length: at most 10,000 rows are looked at, whatever meets the conditions. There is none for available jobs, which
-- stand in the order of the gate, group by group.
--   archived              the newest first, by job_archived;
--   completed, cancelled  those that are kept longest first, by job_evict: the newest, where retention is the same;
--   scheduled, retryable  what is due first, by job_due;
--   running, and what rests  the newest first of 10,000, by job_running and job_resting.

-- next_ms null: this is the last page. is_cut: more rest in that state than were looked at.
create function headgate.jobs_page(
  p_state text, p_kind text, p_queue text, p_reason text, p_at_ms bigint, p_at_id text, p_limit int
) returns table (ids text[], next_ms bigint, next_id text, is_cut boolean)
language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
  v_look constant int := 10000;
  v_columns constant text := 'j.id, j.state, j.kind, j.queue, j.reason';
  v_walk constant text := 'select %1$s, j.%2$s as at_ms, false as is_cut from headgate.job j
    where %3$s and (j.%2$s, j.id) %4$s ($5, $6) order by j.%2$s %5$s, j.id %5$s limit $7';
  v_rest constant text := 'select s.* from (
      select r.*, count(*) over () >= $7 as is_cut from (
        select %1$s, coalesce(%2$s, j.enqueued_at_ms) as at_ms from headgate.job j where %3$s order by %4$s limit $7
      ) r
    ) s where (s.at_ms, s.id) < ($5, $6) order by s.at_ms desc, s.id desc';
begin
  -- Planned with the values at hand: for each state another index.
  return query execute format($q$
    with page as materialized (%s
    ), placed as materialized (
      select p.*, row_number() over () as place, p.state = $1 and ($2 is null or p.kind = $2)
        and ($3 is null or p.queue = $3) and ($4 is null or p.reason is not distinct from $4) as is_match
      from page p
    ), stop as (
      select case when count(*) = $8 then max(k.place) else $7 end as place,
        coalesce(array_agg(k.id order by k.place), '{}') as ids
      from (select p.id, p.place from placed p where p.is_match order by p.place limit $8) k
    )
    select s.ids, l.at_ms, l.id, coalesce((select p.is_cut from placed p limit 1), false)
    from stop s left join lateral (
      select p.at_ms, p.id from placed p where p.place <= s.place order by p.place desc limit 1
    ) l on (select count(*) from placed) >= $7
      or exists (select from placed later where later.is_match and later.place > s.place)
  $q$, case
    when p_state = 'archived' then format(v_walk, v_columns, 'finished_at_ms', 'j.state = ''archived''', '<', 'desc')
    when p_state in ('completed', 'cancelled') then
      format(v_walk, v_columns, 'evict_at_ms', 'j.evict_at_ms is not null', '<', 'desc')
    when p_state in ('scheduled', 'retryable') then
      format(v_walk, v_columns, 'scheduled_at_ms', 'j.state in (''scheduled'', ''retryable'')', '>', 'asc')
    when p_state = 'running' then
      format(v_rest, v_columns, 'j.claimed_at_ms', 'j.state = ''running''', 'j.lane_id, j.partition_key')
    else format(v_rest, v_columns, 'j.finished_at_ms', 'j.state in (''pending'', ''archived'', ''quarantined'', ''undecodable'')
      and j.state = $1 and ($3 is null or j.queue = $3)', 'j.state, j.queue') end)
  using p_state, p_kind, p_queue, p_reason, p_at_ms, p_at_id, v_look, p_limit;
end $$;
