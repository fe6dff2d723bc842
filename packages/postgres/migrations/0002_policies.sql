-- What an operator, or code at its start, may set; read by the gate in every call. A name that has no row is not limited.
-- `declared` is what code last asked for, as JSON: code is obeyed when it changes, and an operator in between.

create table headgate.queue (
  name text collate "C" not null primary key,
  weight int not null default 1 check (weight between 1 and 1000),
  is_strict boolean not null default false, -- served before all that are not
  quantum int check (quantum between 1 and 10000), -- jobs of one partition in a round; null: by what each has in flight
  is_paused boolean not null default false,
  max_unfinished_jobs bigint check (max_unfinished_jobs >= 0),
  declared text
);

create table headgate.partition (
  queue text collate "C" not null,
  partition_key text collate "C" not null,
  quantum int check (quantum between 1 and 10000),
  is_paused boolean not null default false,
  primary key (queue, partition_key)
);

create table headgate.kind (
  name text collate "C" not null primary key,
  is_paused boolean not null default false
);

-- A budget of `rate_limit` a window, refilled evenly, of which at most `burst` can be saved.
create table headgate.rate_class (
  name text collate "C" not null primary key,
  rate_limit bigint not null check (rate_limit between 1 and 1000000000),
  window_ms bigint not null check (window_ms between 1 and 86400000),
  burst bigint not null check (burst between 1 and 1000000000),
  is_paused boolean not null default false,
  declared text
);

create table headgate.concurrency_limit (
  name text collate "C" not null primary key,
  scope text collate "C" not null check (scope in ('queue', 'partition', 'kind', 'key')),
  -- The queue (also of scope partition) or the kind; '' for scope key, which jobs name themselves.
  subject text collate "C" not null,
  max_concurrent int not null check (max_concurrent between 0 and 1000000),
  on_saturated text collate "C" not null default 'queue'
    check (on_saturated in ('queue', 'discard', 'cancel_incoming', 'cancel_running')),
  is_paused boolean not null default false,
  declared text,
  check ((scope = 'key') = (subject = ''))
);

create table headgate.setting (
  name text collate "C" not null primary key,
  value bigint not null
);

-- The rest is written by the store itself.

-- Whose turn it is in a queue. `served` counts claims, in millionths divided by the weight, while queues compete.
create table headgate.queue_turn (
  served bigint not null default 0,
  remaining int not null default 0,       -- of the turn of partition_key; 0: the next partition's turn
  queue text collate "C" not null primary key,
  partition_key text collate "C" not null default '',
  -- Partitions with more groups than can be looked at: behind which keys to go on.
  cuts jsonb not null default '{}'
) with (fillfactor = 50);

-- One bucket a class and key; without a row it is full. A unit is 1 / window_ms of a token, so that refill is exact:
-- rate_limit units a millisecond.
create table headgate.bucket (
  units bigint not null,
  at_ms bigint not null,
  closed_until_ms bigint not null default 0,
  class text collate "C" not null,
  key text collate "C" not null,
  primary key (class, key)
) with (fillfactor = 50);

-- Crashes of jobs with equal content. Closed ones are not admitted until an operator releases them.
create table headgate.strike (
  strikes int not null,
  last_at_ms bigint not null,
  closed_at_ms bigint,
  fingerprint text collate "C" not null primary key,
  kind text collate "C" not null,
  last_job_id text collate "C" not null,
  by_step jsonb
);
create index strike_closed on headgate.strike (closed_at_ms) where closed_at_ms is not null;

-- Times in which the gate held a job, found by a sweep. An open one has no end.
create table headgate.hold (
  from_ms bigint not null,
  until_ms bigint,
  job_id text collate "C" not null,
  blocked_by text collate "C" not null,
  detail text,
  primary key (job_id, from_ms)
);
create index hold_open on headgate.hold (job_id) where until_ms is null;

-- The advisory lock under which calls of the gate, and changes of the policy, decide about it one at a time.
create function headgate.policy_lock(p_policy text, p_name text) returns bigint language sql immutable parallel safe as $$
  select hashtextextended('headgate.' || p_policy || ' ' || p_name, 0)
$$;

-- What the policies mean for a lane as a whole.
create function headgate.lane_flags(p_lane headgate.lane, out is_open boolean, out is_gated boolean, out locks bigint[])
language sql stable as $$
  with applied as (
    select c.name, c.scope, c.is_paused from headgate.concurrency_limit c
    where c.scope in ('queue', 'partition') and c.subject = p_lane.queue or c.scope = 'kind' and c.subject = p_lane.kind
      or c.scope = 'key' and c.name = any(p_lane.limits)
  )
  select not exists (select from headgate.queue q where q.name = p_lane.queue and q.is_paused)
      and not exists (select from headgate.kind k where k.name = p_lane.kind and k.is_paused)
      and not exists (select from headgate.rate_class r where r.name = any(p_lane.classes) and r.is_paused)
      and not exists (select from applied a where a.is_paused),
    p_lane.is_partitioned or p_lane.classes <> '{}' or p_lane.limits <> '{}' or exists (select from applied)
      or exists (select from headgate.partition p
        where p.queue = p_lane.queue and p.partition_key = '' and p.is_paused),
    array(
      select headgate.policy_lock('queue', p_lane.queue)
      union select headgate.policy_lock('class', c.class) from unnest(p_lane.classes) c(class)
      union select headgate.policy_lock('limit', a.name) from applied a where a.scope in ('kind', 'key')
    )
$$;

-- A lane made beside a change of policies sees it, or is seen by it: the two wait for one another.
create function headgate.flag_new_lane() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(hashtextextended('headgate.lanes', 0));
  select f.is_open, f.is_gated, f.locks into new.is_open, new.is_gated, new.locks from headgate.lane_flags(new) f;
  return new;
end $$;

create function headgate.flag_lanes() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('headgate.lanes', 0));
  -- A call of the gate that is under way counts and charges by what it read.
  perform pg_advisory_xact_lock(hashtextextended('headgate.policies', 0));
  update headgate.lane l set is_open = f.is_open, is_gated = f.is_gated, locks = f.locks
    from headgate.lane o cross join headgate.lane_flags(o) f
    where l.id = o.id and (l.is_open, l.is_gated, l.locks) <> (f.is_open, f.is_gated, f.locks);
  return null;
end $$;

create trigger flags before insert on headgate.lane for each row execute function headgate.flag_new_lane();
create trigger lanes after insert or update or delete on headgate.queue execute function headgate.flag_lanes();
create trigger lanes after insert or update or delete on headgate.partition execute function headgate.flag_lanes();
create trigger lanes after insert or update or delete on headgate.kind execute function headgate.flag_lanes();
create trigger lanes after insert or update or delete on headgate.rate_class execute function headgate.flag_lanes();
create trigger lanes after insert or update or delete on headgate.concurrency_limit execute function headgate.flag_lanes();

create function headgate.setting(p_name text, p_default bigint) returns bigint language sql stable as $$
  select coalesce((select s.value from headgate.setting s where s.name = p_name), p_default)
$$;

-- The units in a bucket now.
create function headgate.refilled(
  p_units bigint, p_at_ms bigint, p_now bigint, p_rate_limit bigint, p_window_ms bigint, p_burst bigint
) returns bigint language sql immutable parallel safe as $$
  select case when p_units is null then p_burst * p_window_ms
    -- What is missing may be refilled by now: a product beyond bigint is never made.
    when p_now - p_at_ms >= (p_burst * p_window_ms - p_units) / p_rate_limit + 1 then p_burst * p_window_ms
    else p_units + greatest(p_now - p_at_ms, 0) * p_rate_limit end
$$;

-- The n-th key of a job.
create function headgate.key_at(p_keys text, p_place int) returns text language sql immutable parallel safe as $$
  select split_part(p_keys, chr(31), p_place)
$$;
