-- What operators tell workers. A command raises command_seq and changes what the worker is to be (wants_*), so that none
-- is lost when a second comes before the worker has heard of the first; it reads both in the statement that marks it seen,
-- where it also writes what it has become (is_*) and the last command it has taken up (applied_seq). A worker that starts
-- begins anew: what was told to an earlier life of its id is not for it.
alter table headgate.worker
  add column command text collate "C" check (command in ('quiet', 'resume', 'restart', 'terminate', 'resign')),
  add column command_actor text,
  add column command_at_ms bigint,
  add column command_seq bigint not null default 0,
  add column applied_seq bigint not null default 0,
  add column wants_quiet boolean not null default false,
  add column wants_resigned boolean not null default false,
  add column wants_end text collate "C" check (wants_end in ('restart', 'terminate')),
  add column is_quiet boolean not null default false,
  add column is_resigned boolean not null default false,
  add column is_draining boolean not null default false;

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

-- As in 0009_explain.sql, and not told otherwise.
create or replace function headgate.takes_work(p_worker headgate.worker, p_now bigint) returns boolean
language sql stable as $$
  select p_worker.seen_at_ms + p_worker.lease_ms > p_now and not p_worker.is_quiet and not p_worker.is_draining
$$;
