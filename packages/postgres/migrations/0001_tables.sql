-- The tables, in the order a job meets them: lane, job, step, effect, attempt, progress, tracked, output; then the
-- house-keeping tables worker and duty. All times are epoch milliseconds of the store's own clock, all lengths of time milliseconds.

-- The only clock. One value a statement, whatever transaction it runs in; STABLE, so that index conditions may use it.
create function headgate.now_ms() returns bigint language sql stable parallel safe as $$
  select (extract(epoch from statement_timestamp()) * 1000)::bigint
$$;

-- Everything about a waiting job that decides whether a given worker may have it, resolved when the job starts to wait:
-- a worker's admission skips a lane as a whole instead of filtering its jobs. Rows are never deleted.
create table headgate.lane (
  id int generated always as identity primary key,
  queue text collate "C" not null,
  kind text collate "C" not null,
  -- The lowest worker version that understands both the payload and the checkpoint.
  version int not null,
  -- Jobs that crashed before: a worker holds at most one of these at a time.
  suspect boolean not null,
  -- The only worker that may take from it, or '' for any; with falls_back others may when that one is not alive.
  worker text collate "C" not null default '',
  falls_back boolean not null default false,
  -- Its jobs name a partition other than ''.
  is_partitioned boolean not null default false,
  -- Its jobs have keys, or cost other than 1.
  varies boolean not null default false,
  -- The rate classes its jobs are charged to and the keyed limits they count in, sorted. The keys stand in the job.
  classes text[] collate "C" not null default '{}',
  limits text[] collate "C" not null default '{}',
  -- Follow the policies by triggers: nothing that closes all of it, and something that counts its jobs or shares it out.
  is_open boolean not null default true,
  is_gated boolean not null default false,
  locks bigint[] not null default '{}',   -- one for each policy about which two calls of the gate must not decide at once
  -- Fingerprints may be closed: the gate has to look. See forget_closed() in 0010_quarantine.sql.
  has_closed boolean not null default true,
  -- Where its head was when it was hard to find; believed for a moment only (see take).
  head_until timestamptz not null default '-infinity',
  head_at_ms bigint,
  head_priority smallint,
  head_id text collate "C",
  unique (queue, kind, version, suspect, worker, falls_back, is_partitioned, varies, classes, limits)
);

create table headgate.job (
  scheduled_at_ms bigint not null,        -- position in the queue; due time while scheduled or retryable
  enqueued_at_ms bigint not null,
  claimed_at_ms bigint,                   -- start of the latest attempt
  finished_at_ms bigint,                  -- when it entered its terminal state
  evict_at_ms bigint,                     -- when retention removes it; null keeps it
  lease_expires_at_ms bigint,
  timeout_ms bigint,
  queue_timeout_ms bigint,
  deadline_at_ms bigint,
  retention_ms bigint not null,
  fall_back_at_ms bigint,                 -- from then on any worker may have it
  fence bigint not null default 0,
  lane_id int not null,
  schema_version int not null,
  checkpoint_version int not null default 0,
  attempt int not null default 0,
  max_attempts int not null,
  crash_attempt int not null default 0,
  crash_limit int not null,
  streak int not null default 0,          -- consecutive ends that were not failures; drives their backoff
  result_version int,
  priority smallint not null default 0,
  orphaned boolean not null default false,
  has_steps boolean not null default false,
  has_reports boolean not null default false, -- wrote progress, tracked work or output: its rows are looked for when it is deleted
  lease_id uuid,
  last_lease_id uuid,                     -- the lease that ended the latest attempt by its own settle
  id text collate "C" not null primary key,
  kind text collate "C" not null,
  queue text collate "C" not null,
  state text collate "C" not null,
  partition_key text collate "C" not null default '',
  -- One key for each class, then for each limit of its lane, in their order, joined by U+001F; '' where all are empty.
  keys text collate "C" not null default '',
  worker text collate "C",
  last_worker text collate "C",
  reason text collate "C",                -- why it is in its state: exhausted, fatal, skipped, deadline, crash_limit...
  fingerprint text collate "C" not null,
  unique_key bytea,
  headers bytea,                          -- UTF-8 JSON object; null when empty
  tags text[],
  weights int[],                          -- what it costs each class of its lane; null when it costs 1 each
  step_set text[],                        -- declared step names, sorted; null when none were declared
  in_progress_step text collate "C",
  cursor_step text collate "C",
  cursor bytea,
  crashes_by_step jsonb,
  payload bytea not null,
  result bytea,
  -- A longer id fits into no claim.
  constraint job_id_length check (octet_length(id) between 1 and 128),
  constraint job_state_known check (state in ('pending', 'scheduled', 'available', 'running', 'retryable',
    'completed', 'archived', 'cancelled', 'quarantined', 'undecodable')),
  constraint job_running_has_lease check (case when state = 'running'
    then lease_id is not null and lease_expires_at_ms is not null and worker is not null
    else lease_id is null and lease_expires_at_ms is null and worker is null end)
) with (
  fillfactor = 85,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);

-- Claims: within a lane, jobs of one partition and equal keys are one range in queue order.
create index job_ready on headgate.job (lane_id, partition_key, keys, priority desc, scheduled_at_ms, id)
  where state = 'available';
create index job_due on headgate.job (scheduled_at_ms) where state in ('scheduled', 'retryable');
-- Who holds slots. The lease's expiry is left out on purpose: renewals stay heap-only updates, and running rows are few.
create index job_running on headgate.job (lane_id, partition_key) where state = 'running';
create index job_running_keys on headgate.job (lane_id, keys) where state = 'running' and keys <> '';
create index job_fall_back on headgate.job (fall_back_at_ms) where state = 'available' and fall_back_at_ms is not null;
create index job_quarantined on headgate.job (fingerprint, id) where state = 'quarantined';
-- Jobs of a lane that are unfinished, and neither ready nor running.
create index job_later on headgate.job (lane_id) where state in ('pending', 'scheduled', 'retryable');
create index job_deadline on headgate.job (deadline_at_ms)
  where deadline_at_ms is not null and state in ('pending', 'scheduled', 'available', 'retryable', 'running');
-- The time in the queue ends with the first start: a job that was handed back, and keeps its place, has had it.
create index job_queue_timeout on headgate.job ((scheduled_at_ms + queue_timeout_ms))
  where queue_timeout_ms is not null and state in ('scheduled', 'available', 'retryable')
    and (claimed_at_ms is null or scheduled_at_ms > claimed_at_ms);
create unique index job_unique on headgate.job (unique_key)
  where unique_key is not null and state in ('pending', 'scheduled', 'available', 'running', 'retryable');
create index job_evict on headgate.job (evict_at_ms) where evict_at_ms is not null;

create table headgate.step (
  recorded_at_ms bigint not null,
  wake_at_ms bigint,
  fence bigint not null,
  position int not null,
  job_id text collate "C" not null,
  step text collate "C" not null,
  kind text collate "C" not null check (kind in ('step', 'cursor', 'once', 'sleep')),
  result bytea,
  primary key (job_id, step)
);

-- Claimed keys of transactional steps. They outlive the job, so a redriven or re-sent job does not repeat its effect.
create table headgate.effect (
  recorded_at_ms bigint not null,         -- when it was claimed; then, when its job was removed: its retention counts from here
  fence bigint not null,
  key text collate "C" not null primary key,
  job_id text collate "C" not null,
  step text collate "C" not null,
  result bytea
);
create index effect_age on headgate.effect (recorded_at_ms);
create index effect_job on headgate.effect (job_id);

-- Attempts that ended in anything but success; a success is read from the job itself.
create table headgate.attempt (
  fence bigint not null,
  started_at_ms bigint not null,
  ended_at_ms bigint not null,
  lease_id uuid,                          -- the lease that settled it; null when the owner did not
  job_id text collate "C" not null,
  worker text collate "C" not null,
  outcome text collate "C" not null,
  step text collate "C",
  error_tag text,
  error_message text,
  error_text text,
  error bytea,
  log text,                               -- JSON: the lines its handler logged; null when it logged nothing
  primary key (job_id, fence)
);

create table headgate.progress (
  fence bigint not null,
  current bigint not null,
  total bigint not null,
  updated_at_ms bigint not null,
  job_id text collate "C" not null primary key,
  message text
) with (fillfactor = 50);

-- Work that the attempt tracks: of each piece its name, its state, and for how long it was in it at updated_at_ms.
create table headgate.tracked (
  fence bigint not null,
  updated_at_ms bigint not null,
  omitted int not null,
  is_waiting boolean not null,            -- its handler has ended
  job_id text collate "C" not null primary key,
  names text[] not null,
  states text[] not null,
  ages_ms bigint[] not null
) with (fillfactor = 50);

create table headgate.output (
  fence bigint not null,
  updated_at_ms bigint not null,
  version int not null,
  job_id text collate "C" not null primary key,
  bytes bytea not null
);

-- The columns from command_at_ms on are what operators tell it, and what it has become: see 0015_worker_commands.sql.
create table headgate.worker (
  started_at_ms bigint not null,
  seen_at_ms bigint not null,
  lease_ms bigint not null,
  capacity int not null,
  running int not null,
  id text collate "C" not null primary key,
  queues text[] not null,
  kinds text[] not null,
  versions int[] not null,
  command_at_ms bigint,
  command_seq bigint not null default 0,
  applied_seq bigint not null default 0,
  wants_quiet boolean not null default false,
  wants_resigned boolean not null default false,
  is_quiet boolean not null default false,
  is_resigned boolean not null default false,
  is_draining boolean not null default false,
  command text collate "C" check (command in ('quiet', 'resume', 'restart', 'terminate', 'resign')),
  command_actor text,
  wants_end text collate "C" check (wants_end in ('restart', 'terminate'))
) with (fillfactor = 50);

create table headgate.duty (
  expires_at_ms bigint not null,
  name text collate "C" not null primary key,
  holder text collate "C" not null
);

-- The lane of these properties, made where there is none.
create function headgate.lane_like(p_lane headgate.lane) returns int language plpgsql volatile as $$
declare
  v_id int;
begin
  for attempt in 1..2 loop
    select l.id into v_id from headgate.lane l
      where (l.queue, l.kind, l.version, l.suspect, l.worker, l.falls_back, l.is_partitioned, l.varies, l.classes, l.limits)
        = (p_lane.queue, p_lane.kind, p_lane.version, p_lane.suspect, p_lane.worker, p_lane.falls_back,
          p_lane.is_partitioned, p_lane.varies, p_lane.classes, p_lane.limits);
    exit when v_id is not null;
    insert into headgate.lane (queue, kind, version, suspect, worker, falls_back, is_partitioned, varies, classes, limits)
      values (p_lane.queue, p_lane.kind, p_lane.version, p_lane.suspect, p_lane.worker, p_lane.falls_back,
        p_lane.is_partitioned, p_lane.varies, p_lane.classes, p_lane.limits)
      -- A rival's row is visible to a new statement only.
      on conflict do nothing;
  end loop;
  return v_id;
end $$;

-- For a job that changes lanes (first crash, newer checkpoint). Enqueue resolves lanes set-wise.
create function headgate.lane_for(p_lane int, p_version int, p_suspect boolean) returns int
language plpgsql volatile as $$
declare
  v_lane headgate.lane;
begin
  select l.* into v_lane from headgate.lane l where l.id = p_lane;
  v_lane.version := p_version;
  v_lane.suspect := p_suspect;
  return headgate.lane_like(v_lane);
end $$;

-- 1 s, 5 s, 30 s, 2 min, then 10 min.
create function headgate.crash_backoff_ms(p_crash_attempt int) returns bigint language sql immutable parallel safe as $$
  select case p_crash_attempt when 1 then 1000 when 2 then 5000 when 3 then 30000 when 4 then 120000
    else 600000 end::bigint
$$;

-- The fingerprint of a job that was given none: both lengths in bytes, little-endian, which int4send is not; a kind has
-- less than 256. It runs for each row of an insert: one expression of few steps, and of immutable ones only, or else it
-- would not be inlined. (convert_to is not; the bytes of a kind, which is ASCII, are the same in any encoding. chr(92) is
-- the backslash, which sessions without standard_conforming_strings read otherwise.)
create function headgate.content_fingerprint(p_kind text, p_payload bytea) returns text
language sql immutable parallel safe as $$
  select encode(substr(sha256(int4send(octet_length(p_kind) << 24) || decode(replace(p_kind, chr(92), chr(92) || chr(92)), 'escape')
    || int4send(((octet_length(p_payload) & 255) << 24) | ((octet_length(p_payload) & 65280) << 8)
      | ((octet_length(p_payload) >> 8) & 65280) | (octet_length(p_payload) >> 24))
    || p_payload), 1, 16), 'hex')
$$;

-- Ends the statement that enqueued a part of its batch, when it is a transaction of its own.
create function headgate.refuse_partial() returns boolean language plpgsql volatile as $$
begin
  raise exception 'a part of the batch is refused' using errcode = 'HG001';
end $$;
