-- What operators tell workers. A command raises command_seq and changes what the worker is to be (wants_*), so that none
-- is lost when a second comes before the worker has heard of the first; it reads both in the statement that marks it seen,
-- where it also writes what it has become (is_*) and the last command it has taken up (applied_seq). A worker that starts
-- begins anew: what was told to an earlier life of its id is not for it.

-- No row when no such worker is alive. An end is not taken back, and the shorter one stands.
create function headgate.tell_worker(p_worker text, p_command text, p_actor text) returns setof bigint
language sql volatile as $$
  update headgate.worker w
  set command = p_command, command_actor = p_actor, command_at_ms = t.now, command_seq = w.command_seq + 1,
    wants_quiet = case p_command when 'quiet' then true when 'resume' then false else w.wants_quiet end,
    wants_resigned = case p_command when 'resign' then true when 'resume' then false else w.wants_resigned end,
    wants_end = case when p_command = 'terminate' then p_command when p_command = 'restart'
      then coalesce(w.wants_end, p_command) else w.wants_end end
  from (select headgate.now_ms() as now) t
  where w.id = p_worker and w.seen_at_ms + w.lease_ms > t.now
  returning w.command_seq
$$;
