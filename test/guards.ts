/**
 * The guards of the store and the worker, each with what it is without it and the test that then turns red.
 * `npm run guards` deletes them one by one in a copy of the tree and runs that test; docs/guarantees.md lists them.
 */
export interface Guard {
  /** What it protects, in words. */
  readonly promise: string
  readonly file: string
  /** Stands once in the file. */
  readonly guarded: string
  readonly without: string
  readonly test: string
  readonly title: string
  /** The file of the corpus that holds the title, where the test runs the corpus. */
  readonly scenario?: string
}

const lease = "j.lease_id = i.lease_id and j.fence = i.fence"

/** A scenario on admission, whose promise is the title of its test. */
const scenario = (name: string, title: string): Pick<Guard, "test" | "title" | "scenario"> => ({
  test: "test/conformance/postgres.test.ts",
  title,
  scenario: `conformance/scenarios/admission/${name}.yaml`
})

export const guards: ReadonlyArray<Guard> = [
  {
    promise: "A claim passes over rows that a rival holds, and re-checks what they became",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "limit p_limit\n        for no key update skip locked\n      ) less_urgent",
    without: "limit p_limit\n      ) less_urgent",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a job that another session holds is passed over, and so is what it had become"
  },
  {
    promise: "A worker is given no version above its own",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "l.kind = known.kind and l.version <= known.version",
    without: "l.kind = known.kind",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a worker is given no version above its own"
  },
  {
    promise: "A job past its deadline never starts",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "coalesce(p_job.deadline_at_ms <= p_now, false)",
    without: "false",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a job past its deadline or its time in the queue is archived by the call that meets it, and never starts"
  },
  {
    promise: "A worker holds at most one job that ever crashed",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "where r.worker = p_worker and r.state = 'running'\n      and r.lane_id in (",
    without: "where false and r.lane_id in (",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a worker holds one job that crashed before at a time, also when it asks twice at once"
  },
  {
    promise: "A renewal extends current leases only",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: `select j.id from item i join headgate.job j on j.id = i.job_id and ${lease}`,
    without: "select j.id from item i join headgate.job j on j.id = i.job_id and j.lease_id is not null",
    test: "packages/postgres/test/Leases.test.ts",
    title: "the same worker's older lease on a job is lost, its newer one is not"
  },
  {
    promise: "A success is accepted from the current holder only",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: `and j.id = i.job_id and ${lease}\n          and j.retention_ms > 0`,
    without: "and j.id = i.job_id and j.lease_id is not null and j.retention_ms > 0",
    test: "packages/postgres/test/Leases.test.ts",
    title: "neither another lease id nor another fence is accepted"
  },
  {
    promise: "The same, where success deletes the job",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: `and j.id = i.job_id and ${lease}\n            and j.retention_ms = 0`,
    without: "and j.id = i.job_id and j.lease_id is not null and j.retention_ms = 0",
    test: "packages/postgres/test/Leases.test.ts",
    title: "neither another lease id nor another fence is accepted"
  },
  {
    promise: "The same, for a batch of jobs that one call gave",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "and j.lease_id = p_leases[1] and j.fence = p_fences[1] and j.retention_ms = 0",
    without: "and j.lease_id is not null and j.retention_ms = 0",
    test: "packages/postgres/test/Leases.test.ts",
    title: "of jobs that one call gave, those that were lost or have another fence are refused, and the others settled"
  },
  {
    promise: "Every other outcome, a release among them, is accepted from the current holder only",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: `from item i join headgate.job j on j.id = i.job_id and ${lease}\n    where i.outcome`,
    without: "from item i join headgate.job j on j.id = i.job_id and j.lease_id is not null\n    where i.outcome",
    test: "packages/postgres/test/Leases.test.ts",
    title: "neither another lease id nor another fence is accepted"
  },
  {
    promise: "A job is revoked by its current holder only",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: `where j.id = i.job_id and ${lease}\n      returning j.id, j.queue`,
    without: "where j.id = i.job_id and j.lease_id is not null\n      returning j.id, j.queue",
    test: "packages/postgres/test/Leases.test.ts",
    title: "neither another lease id nor another fence is accepted"
  },
  {
    promise: "A sweep takes back expired leases only, as they are under the row's lock",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "where j.state = 'running' and j.lease_expires_at_ms <= v_now",
    without: "where j.state = 'running'",
    test: "packages/postgres/test/Duties.test.ts",
    title: "a sweep takes back the jobs whose lease has run out, and no other"
  },
  {
    promise: "A step's record and mark are accepted from the current holder only",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: "    where j.id = $1 and j.lease_id = $2 and j.fence = $3\n    returning j.id, j.fence\n",
    without: "    where j.id = $1 and $2::uuid is not null and $3::bigint is not null\n    returning j.id, j.fence\n",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a stale lease stores nothing, alone and beside current ones"
  },
  {
    promise: "The same, for writes of many jobs in one statement",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: `from item i where j.id = i.job_id and ${lease}`,
    without: "from item i where j.id = i.job_id",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a stale lease stores nothing, alone and beside current ones"
  },
  {
    promise: "A refused cursor save ends the attempt",
    file: "packages/worker/src/AttemptSteps.ts",
    guarded: "      if (!isAccepted) return loseLease(attempt)\n",
    without: "",
    test: "packages/worker/test/Cursor.test.ts",
    title: "a refused save ends the attempt"
  },
  {
    promise: "A first step marked ahead begins only when the store took the mark",
    file: "packages/worker/src/AheadMark.ts",
    guarded: "isAccepted ? monotonicMs() : undefined",
    without: "monotonicMs()",
    test: "packages/worker/test/AheadMark.test.ts",
    title: "a mark that was refused is none: a job lost while it waited starts no body"
  },
  {
    promise: "A claim handed back unstarted has no step under way",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "case when j.id = any(p_unbegun) then null else j.in_progress_step end",
    without: "case when j.id is null then null else j.in_progress_step end",
    test: "packages/worker/test/AheadMark.test.ts",
    title: "a claim that is handed back unstarted has no step under way, and is one without a checkpoint"
  },
  {
    promise: "A job put down before its first step is bound to no set of steps",
    file: "packages/worker/src/Settler.ts",
    guarded: "const isUnbegun = ahead?.isMarking === true && stepsUnderWay === undefined",
    without: "const isUnbegun = ahead?.isMarking === true && startedAt === undefined",
    test: "packages/worker/test/AheadMark.test.ts",
    title: "one that is put down before its first step has begun no step, and goes on under any set of steps"
  },
  {
    promise: "A job is put to sleep by its current holder only",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: "from wake w where j.id = $1 and j.lease_id = $2 and j.fence = $3",
    without: "from wake w where j.id = $1 and $2::uuid is not null and $3::bigint is not null",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a stale lease cannot put a job to sleep"
  },
  {
    promise: "A sleep whose answer was lost is told as stored, wherever the job has come to since",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: "(j.fence > $3 or j.last_lease_id = $2)",
    without: "j.fence = $3 and j.last_lease_id = $2",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a sleep sent again after a lost answer is told as stored, wherever the job has come to since"
  },
  {
    promise: "And a sleep of another lease under the same fence is not",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: " and (j.fence > $3 or j.last_lease_id = $2)",
    without: " and $2::uuid is not null",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a sleep is no other attempt's, under whichever fence, and is unknown where the job is gone"
  },
  {
    promise: "Step names are mapped by the current holder only",
    file: "packages/postgres/src/Remap.ts",
    guarded: "where j.id = before.id and j.lease_id = $2 and j.fence = $3",
    without: "where j.id = before.id and $2::uuid is not null and $3::bigint is not null",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a stale lease cannot remap"
  },
  {
    promise: "A once step commits only while its lease is current",
    file: "packages/postgres/src/Transactional.ts",
    guarded: "    where j.id = $1 and j.lease_id = $2 and j.fence = $3\n      and (",
    without: "    where j.id = $1 and $2::uuid is not null and $3::bigint is not null\n      and (",
    test: "packages/postgres/test/Transactional.test.ts",
    title: "a lease lost while the body ran leaves nothing behind"
  },
  {
    promise: "One effect key runs one body",
    file: "packages/postgres/src/Transactional.ts",
    guarded: "if (claimed.length === 0) {",
    without: "if (false as boolean) {",
    test: "packages/postgres/test/Transactional.test.ts",
    title: "two attempts with one key at once run one body"
  },
  {
    promise: "completeWith commits nothing once the lease is lost",
    file: "packages/postgres/src/Transactional.ts",
    guarded: "        if (rows.length === 0) return yield* rejected(lease)\n",
    without: "",
    test: "packages/postgres/test/Transactional.test.ts",
    title: "a lease lost while the body ran leaves nothing behind"
  },
  {
    promise: "Progress and output are accepted from the current holder only",
    file: "packages/postgres/src/Reports.ts",
    guarded: "j.lease_id = $2 and j.fence = $3 as is_current",
    without: "$2::uuid is not null and $3::bigint is not null as is_current",
    test: "packages/postgres/test/Reports.test.ts",
    title: "a writer with another lease or another fence is refused and told the state, and nothing is written"
  },
  {
    promise: "A report locks the job, so that no reclaim slips between check and write",
    file: "packages/postgres/src/Reports.ts",
    guarded: "from headgate.job j where j.id = $1 for no key update",
    without: "from headgate.job j where j.id = $1",
    test: "packages/postgres/test/Reports.test.ts",
    title: "a report that meets the end of its lease is refused, whichever came first"
  },
  {
    promise: "A step's body does not start once the lease has run out on this process's clock",
    file: "packages/worker/src/AttemptSteps.ts",
    guarded: "() => this.attempt.isOwned() ? Effect.void : loseLease(this.attempt)",
    without: "() => Effect.void",
    test: "packages/worker/test/StepRuntime.test.ts",
    title: "a body does not start once the lease has run out on this process's clock"
  },
  {
    promise: "A lease that another statement kept from being extended is not believed extended",
    file: "packages/postgres/src/HeartbeatLoop.ts",
    guarded: "      for (const jobId of busy) latest.delete(jobId)\n",
    without: "",
    test: "packages/postgres/test/Heartbeat.test.ts",
    title: "a lease whose row somebody else holds is not believed longer than the store has it"
  },
  {
    promise: "A step is not recorded inside an open transaction, whose rollback it would outlive",
    file: "packages/worker/src/StepRuntime.ts",
    guarded: "  yield* refuseOpenTransaction(\"step\")\n",
    without: "",
    test: "packages/worker/test/Once.test.ts",
    title: "a step or a cursor inside an open transaction is refused before its body runs, and so is a save"
  },
  {
    promise: "Effect keys made of a job's id and a step cannot meet",
    file: "packages/worker/src/Once.ts",
    guarded: "${lease.jobId}${SEPARATOR}${identity}",
    without: "${lease.jobId}/${identity}",
    test: "packages/worker/test/Once.test.ts",
    title: "keys made of a job's id and a step do not meet, whatever both hold, and a key of the caller's meets none"
  },
  {
    promise: "Calls of the gate decide about one policy one at a time",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "  perform pg_advisory_xact_lock(k.lock) from unnest(v_locks) k(lock);\n",
    without: "",
    test: "test/gate/Exactness.test.ts",
    title:
      "16 claimers in 4 processes keep every ceiling and every rate, while work of higher priority arrives, for 100 rounds"
  },
  {
    promise: "A slot holds what runs, counted in the call that fills it",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "p_rule.most - (select count(*) from headgate.holders(p_rule.policy, p_key))",
    without: "p_rule.most",
    ...scenario(
      "ceiling_of_a_queue",
      "A queue never runs more jobs than its ceiling, on all workers together"
    )
  },
  {
    promise: "A partition's slot holds what runs in it",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "p_ceiling - w.held) as bound",
    without: "p_ceiling) as bound",
    ...scenario(
      "slots_left_of_a_partition",
      "A partition takes no more jobs than it has slots left"
    )
  },
  {
    promise: "The same, where its jobs are of several lanes",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "p_rule.most - p_held",
    without: "p_rule.most",
    test: "test/gate/Model.test.ts",
    title: "does what a model of it allows, in each of 1,000 random sequences of work, policy changes and crashes"
  },
  {
    promise: "Buckets are locked in one order",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "    order by r.name, s.key collate \"C\"\n",
    without: "",
    test: "packages/postgres/test/Charges.test.ts",
    title:
      "the gate and a change of the rate lock buckets as settlements do: while one waits for a key it holds none behind"
  },
  {
    promise: "A bucket is kept while it is not full",
    file: "packages/postgres/migrations/0006_duties.sql",
    guarded:
      "      and headgate.refilled(o.units, o.at_ms, p_now, r.rate_limit, r.window_ms, r.burst) >= r.burst * r.window_ms\n",
    without: "",
    test: "packages/postgres/test/Duties.test.ts",
    title: "the bucket of a key goes when it is full again; one in use, pushed back or of no key stays"
  },
  {
    promise: "What is admitted is charged",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "    perform headgate.charge(v_slot_rules, v_slot_keys, v_full, v_rooms, p_now);\n",
    without: "",
    ...scenario(
      "rate_is_fleet_wide",
      "A rate counts for the whole fleet, whichever workers ask"
    )
  },
  {
    promise: "A job costs its weight",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "coalesce(v_job.weights[v_rule.nth], 1) else 1 end",
    without: "1 else 1 end",
    ...scenario(
      "weights_are_charged",
      "A job takes its weight from the budget, and starts only when there is enough"
    )
  },
  {
    promise: "A job heavier than the burst is not stuck",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "elsif rooms[v_place] < least(v_cost, v_rule.most) then",
    without: "elsif rooms[v_place] < v_cost then",
    ...scenario(
      "weight_beyond_burst",
      "A job heavier than the burst starts on a full budget, and what it overdrew is paid back first"
    )
  },
  {
    promise: "What is late, or of a closed fingerprint, is not started under policies either",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "continue jobs when v_job.is_late or v_job.is_closed;",
    without: "",
    ...scenario(
      "late_jobs_cost_nothing",
      "A job that the gate ends instead of starting is charged to no rate class"
    )
  },
  {
    promise: "A pinned job is for its worker alone",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "l.worker in ('', p_worker) or",
    without: "true or",
    ...scenario(
      "pinned_jobs_wait_for_their_worker",
      "A job pinned to a worker is given to no other, dead or alive"
    )
  },
  {
    promise: "A switch closes what it governs",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "where l.is_open and (",
    without: "where (",
    ...scenario(
      "paused_queue_starts_nothing",
      "A paused queue starts nothing until it is resumed, and what runs goes on"
    )
  },
  {
    promise: "A paused partition is passed over",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "continue when v_next.is_paused;",
    without: "",
    ...scenario(
      "paused_partition_starts_nothing",
      "A paused partition starts nothing, and its turn goes to the others"
    )
  },
  {
    promise: "A turn that was cut short goes on",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "v_remaining := case when v_rest = 0 then greatest(v_allowed - v_got, 0) else 0 end;",
    without: "v_remaining := 0;",
    ...scenario(
      "cut_turn_is_carried_on",
      "A turn that the capacity cut short goes on in the next call"
    )
  },
  {
    promise: "A crash is a strike from the current holder only",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded:
      "join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence\n      order by j.id for no key update of j), false, v_now)",
    without: "join headgate.job j on j.id = i.job_id\n      order by j.id for no key update of j), false, v_now)",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "are neither counted nor forgotten by a holder that has lost its lease"
  },
  {
    promise: "The death of a worker is one strike a fingerprint",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded:
      " and not (p_is_death and exists (select from headgate.death d\n      where d.fingerprint = j.fingerprint and d.worker = j.worker and j.claimed_at_ms <= d.at_ms))",
    without: "",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "are one strike where one worker's death took several, also when two sweeps find them"
  },
  {
    promise: "A claim goes by index, whatever the session's settings",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "if current_setting('plan_cache_mode') <> 'force_generic_plan' then",
    without: "if false then",
    test: "packages/postgres/test/Plans.test.ts",
    title: "a session that has none of the store's claims from one lane by index as well"
  },
  {
    promise: "Once a fingerprint is closed, every call of the gate looks for it",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded: "update headgate.lane l set has_closed = true where",
    without: "update headgate.lane l set has_closed = true where false and",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "calls of the gate do not look for one, and look again as soon as one is closed"
  },
  {
    promise: "No call stops looking while a fingerprint is being closed",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded: "if not pg_try_advisory_xact_lock(hashtextextended('headgate.closing', 0)) then",
    without: "if false then",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "a call beside one that closes it goes on looking"
  },
  {
    promise: "No call stops looking while a fingerprint is closed",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded: "if not exists (select from headgate.strike s where s.closed_at_ms is not null) then",
    without: "if true then",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "one that is closed while a call stops to look is looked for"
  },
  {
    promise: "A busy process announces apart from its enqueues",
    file: "packages/postgres/src/Announcer.ts",
    guarded: "const isQuiet = now - lastAt > quietMillis",
    without: "const isQuiet = now - lastAt > -1",
    test: "packages/postgres/test/EnqueuePlain.test.ts",
    title: "the first after a quiet moment is announced by its own commit, a busy process announces apart"
  },
  {
    promise: "None is closed while a call stops looking",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded: "  perform pg_advisory_xact_lock_shared(hashtextextended('headgate.closing', 0));\n",
    without: "",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "one that is closed while a call stops to look is looked for"
  },
  {
    promise: "Closing a fingerprint and an edit of policies write to lanes one after the other",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded: "  perform pg_advisory_xact_lock_shared(hashtextextended('headgate.lanes', 0));\n",
    without: "",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "a call that closes one can make a lane beside an edit of policies: the edit waits for it"
  },
  {
    promise: "No job of a closed fingerprint is stored",
    file: "packages/postgres/src/EnqueueSql.ts",
    guarded: "and case when (select g.has_closed from guard g) then not headgate.is_closed(t.print) else true end",
    without: "",
    test: "packages/postgres/test/ProducerPolicies.test.ts",
    title: "refuses the whole batch, names the job, and writes nothing, also in an open transaction"
  },
  {
    promise: "A plain insert stores no job while a fingerprint is closed",
    file: "packages/postgres/src/EnqueueSql.ts",
    guarded: " and not ${hasClosed}",
    without: "",
    test: "packages/postgres/test/EnqueuePlain.test.ts",
    title: "a closed fingerprint refuses all of their batch, each time"
  },
  {
    promise: "A plain insert stores no job of a queue that has a limit",
    file: "packages/postgres/src/EnqueueSql.ts",
    guarded: "where not ${hasLimit(varying)} and",
    without: "where",
    test: "packages/postgres/test/EnqueuePlain.test.ts",
    title: "a limit refuses them, each time"
  },
  {
    promise: "A lane that is known is looked at again by the statement that uses it",
    file: "packages/postgres/src/EnqueueSql.ts",
    guarded: "on l.id = w.id and ${Lanes.isSame}",
    without: "on l.id = w.id",
    test: "packages/postgres/test/EnqueuePlain.test.ts",
    title: "a lane that is missing, or is another one, is found again"
  },
  {
    promise: "A plain insert announces its jobs",
    file: "packages/postgres/src/EnqueuePlain.ts",
    guarded: "    if (ready.length > 0 && !carries) yield* announcer.announce(ready)\n",
    without: "",
    test: "packages/postgres/test/EnqueuePlain.test.ts",
    title: "a job that is ready wakes its workers, in a burst as well, and one that starts later wakes nobody"
  },
  {
    promise: "An announcement that the server refuses costs no job",
    file: "packages/postgres/src/EnqueuePlain.ts",
    guarded: " || (carries && isMute(error))",
    without: "",
    test: "packages/postgres/test/EnqueuePlain.test.ts",
    title: "jobs are stored as well where nothing can be announced"
  },
  {
    promise: "Enqueues into a queue with a limit are counted one at a time",
    file: "packages/postgres/migrations/0011_enqueue.sql",
    guarded: "perform pg_advisory_xact_lock(hashtextextended('headgate.enqueue ' || bounded.name, 0)) from (",
    without: "perform 1 from (",
    test: "packages/postgres/test/ProducerBackpressure.test.ts",
    title: "eight producers at once fill a queue to its limit and not beyond"
  },
  {
    promise: "An edit waits for the calls of the gate that decide under the policy",
    file: "packages/postgres/migrations/0002_policies.sql",
    guarded: "  perform pg_advisory_xact_lock(hashtextextended('headgate.policies', 0));\n",
    without: "",
    test: "packages/postgres/test/Policies.test.ts",
    title: "an edit waits for the call of the gate that decides under the policy"
  },
  {
    promise: "A charge is corrected by the current holder only",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded:
      "select j.id from unnest(p_jobs, p_leases, p_fences) as i(job_id, lease_id, fence)\n      join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence\n      order by j.id for no key update of j), p_charged",
    without:
      "select j.id from unnest(p_jobs, p_leases, p_fences) as i(job_id, lease_id, fence)\n      join headgate.job j on j.id = i.job_id\n      order by j.id for no key update of j), p_charged",
    test: "packages/postgres/test/Charges.test.ts",
    title: "a holder that has lost its lease gives nothing back, and a settlement sent again nothing twice"
  },
  {
    promise: "The frame that raised an error without a message is stored",
    file: "packages/core/src/ErrorText.ts",
    guarded: "const length = typeof message === \"string\" ? message.length : 0",
    without: "const length = messageOf(failure).length",
    test: "packages/core/test/ErrorText.test.ts",
    title: "without a message keeps the frame that raised it"
  },
  {
    promise: "An error's own limit of attempts, used up, exhausts the job",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "when c.outcome = 'retry' and c.reason = 'exhausted' then c.reason",
    without: "",
    test: "packages/worker/test/OnError.test.ts",
    title: "a retry whose own limit is used up exhausts the job"
  },
  {
    promise: "A task with steps is not taken for child processes",
    file: "packages/worker/src/Isolated.ts",
    guarded: "if (refusal !== undefined) return yield* refusal",
    without: "if (refusal === null) return yield* refusal",
    test: "packages/worker/test/Isolated.test.ts",
    title: "of a task that declares steps, or a time for them, is refused at the worker's start"
  },
  {
    promise: "What a child process cannot do for its handler ends the job, instead of crashing it again and again",
    file: "packages/worker/src/IsolatedServe.ts",
    guarded: "Context.merge(this.logging(logLevel), refusing)",
    without: "this.logging(logLevel)",
    test: "packages/worker/test/Isolated.test.ts",
    title: "that asks for a step or completeWith, past the compiler, fails for good and says why"
  },
  {
    promise: "What a child process logs reaches the worker's loggers",
    file: "packages/worker/src/Isolated.ts",
    guarded: "if (isSeverity(level)) fork(",
    without: "if (isSeverity(level)) Effect.succeed(",
    test: "packages/worker/test/Isolated.test.ts",
    title: "logs through the worker's own loggers as well, also when it succeeds"
  },
  {
    promise: "What a function of onError answers is looked at before it is settled",
    file: "packages/core/src/OnError.ts",
    guarded: "if (isOnError(answer)) return answer",
    without: "return answer as OnError",
    test: "packages/core/test/OnError.test.ts",
    title: "a function that throws, or answers what OnError did not make, means a retry"
  },
  {
    promise: "A time that an error brings is brought into bounds",
    file: "packages/core/src/OnError.ts",
    guarded: "return ms >= 1 ? Math.min(ms, MAX_RETRY_DELAY_MS) : undefined",
    without: "return ms",
    test: "packages/core/test/OnError.test.ts",
    title: "what an error's function says of time or reason is brought into bounds"
  },
  {
    promise: "A lease that was extended is believed extended",
    file: "packages/postgres/src/Heartbeat.ts",
    guarded: "own = Math.max(own, sentAt + ms)",
    without: "own = Math.max(own, sentAt + Math.min(ms, leaseMs))",
    test: "packages/worker/test/LeaseExtension.test.ts",
    title: "that was extended outlasts a loop that is blocked beyond the worker's tolerance"
  },
  {
    promise: "A beat does not shorten a lease that was extended",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "greatest(j.lease_expires_at_ms, (select headgate.now_ms()) + p_lease_ms)",
    without: "(select headgate.now_ms()) + p_lease_ms",
    test: "packages/postgres/test/Heartbeat.test.ts",
    title: "a lease that was extended outlasts a loop that is blocked beyond its tolerance"
  },
  {
    promise: "An attempt is not settled before the work it tracks has ended",
    file: "packages/worker/src/Runner.ts",
    guarded: "attempt.work.join(exit, () => this.closeScope(attempt, exit, scope))",
    without: "this.closeScope(attempt, exit, scope)",
    test: "packages/worker/test/Tracked.test.ts",
    title: "keeps its attempt running after the handler, whose answer stands"
  },
  {
    promise: "A failure of tracked work is the attempt's",
    file: "packages/worker/src/TrackedReports.ts",
    guarded: "failed: (cause) => void attempt.interrupt({ _tag: \"Failed\", cause })",
    without: "failed: () => {}",
    test: "packages/worker/test/Tracked.test.ts",
    title: "a failure of it after the handler's success fails the attempt"
  },
  {
    promise: "Tracked work is stopped with its attempt",
    file: "packages/worker/src/Attempt.ts",
    guarded: "    this.work?.interrupt()\n",
    without: "",
    test: "packages/worker/test/Tracked.test.ts",
    title: "is stopped with the attempt: by a cancel, a timeout, an end on purpose, also when only it still runs"
  },
  {
    promise: "completeWith does not complete a job whose tracked work runs",
    file: "packages/worker/src/JobService.ts",
    guarded: "Effect.andThen(work.idle, completed)",
    without: "completed",
    test: "packages/worker/test/Tracked.test.ts",
    title: "completeWith waits for it"
  },
  {
    promise: "An attempt's log is bounded",
    file: "packages/worker/src/AttemptLog.ts",
    guarded: "this.lines.length > maxLines || (this.bytes > maxBytes && this.lines.length > 1)",
    without: "this.lines.length > 1000",
    test: "packages/worker/test/AttemptLog.test.ts",
    title: "the newest lines within the limits stay, and the rest are counted"
  },
  {
    promise: "What an operator released is not swept back",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded:
      "where s.closed_at_ms is not null and s.fingerprint = any(array(\n          select c.fingerprint from headgate.job c where c.id = any(v_ids)))",
    without:
      "where s.fingerprint = any(array(\n          select c.fingerprint from headgate.job c where c.id = any(v_ids)))",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "leaves alone what was released meanwhile"
  },
  {
    promise: "A redrive moves nothing that was archived since it began",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "and j.finished_at_ms <= v_r.created_at_ms\n    order by j.id for no key update skip locked",
    without: "\n    order by j.id for no key update skip locked",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "moves no job that was archived again since it began, also within the same millisecond"
  },
  {
    promise: "A redrive goes on where its last step stopped",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "at_ms = coalesce(v_last.at_ms, r.at_ms), at_id = coalesce(v_last.id, r.at_id), ",
    without: "",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "moves no job that was archived again since it began, also within the same millisecond"
  },
  {
    promise: "A redrive survives a store's clock that goes back",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded:
      "    -- Met again: the store's clock went back, as after a failover, before it was archived anew.\n    on conflict do nothing;",
    without: ";",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "goes on when the store's clock went back, and a job of the stage was archived anew before it began"
  },
  {
    promise: "A queue whose last lanes another one closed in the same call is passed over",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "continue when v_own is null;",
    without: "",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a suspect given by one queue leaves nothing to ask of another that has suspects alone"
  },
  {
    promise: "No retry policy, whatever an error's function answers, loses a job",
    file: "packages/core/src/Retry.ts",
    guarded: "    default:\n      return BAD_DELAY_MS\n",
    without: "    default:\n",
    test: "packages/core/test/Retry.test.ts",
    title: "is 1 s for what is no policy"
  },
  {
    promise: "What a handler logs cannot crash it",
    file: "packages/core/src/ErrorText.ts",
    guarded: "if (!isError(value))",
    without: "if (!(value instanceof Error))",
    test: "packages/core/test/ErrorText.test.ts",
    title: "shows what it can of any value, and throws for none"
  },
  {
    promise: "One step of a redrive at a time",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "order by r.due_at_ms limit 1 for update skip locked;\n  if found then\n    if v_next",
    without: "order by r.due_at_ms limit 1;\n  if found then\n    if v_next",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "of two workers that do a step at once, one gives way"
  },
  {
    promise: "A cancelled redrive moves nothing more",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "where r.state = 'running' and r.due_at_ms <= v_now\n",
    without: "where r.due_at_ms <= v_now\n",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "a cancel midway leaves the rest archived, and says so ever after"
  },
  {
    promise: "A redrive starts no job past its deadline, where it keeps that",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "when v_r.deadline = 'keep' and j.deadline_at_ms <= p_now then 'deadline_passed'",
    without: "",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "keeps, clears or replaces deadlines, and skips what is past a kept one"
  },
  {
    promise: "A redrive brings back nothing of a closed fingerprint",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "when headgate.is_closed(j.fingerprint) then 'fingerprint_closed'",
    without: "",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "skips and counts what cannot come back, and tells job by job"
  },
  {
    promise: "A staged redrive stops when too many of a stage failed",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: " when v_failed > v_r.max_failure_ratio * v_known then 'failures' end;",
    without: " end;",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "stops by itself above the bound, and resumed begins with one job again"
  },
  {
    promise: "A staged redrive does not go on without evidence",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "case when v_known = 0 then 'unanswered' when",
    without: "case when",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "pauses when no job of a stage came to an end in time"
  },
  {
    promise: "A redrive keeps to its rate",
    file: "packages/postgres/migrations/0014_redrive.sql",
    guarded: "due_at_ms = p_now + (n.moved * 1000 + r.per_second - 1) / r.per_second,",
    without: "due_at_ms = p_now,",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "moves so many jobs a batch, and so many a second"
  },
  {
    promise: "The id of a redrive stands for its jobs",
    file: "packages/postgres/src/Redrive.ts",
    guarded: "      if (stored?.is_same !== true) return yield* new IdConflict({ id, what: \"redrive\" })\n",
    without: "",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "an id that belongs to a redrive of other jobs is refused, and nothing changes"
  },
  {
    promise: "A redrive that no worker carries out says so",
    file: "packages/postgres/src/RedriveRows.ts",
    guarded: " and d.expires_at_ms > headgate.now_ms()",
    without: "",
    test: "packages/postgres/test/Redrive.test.ts",
    title: "a running redrive says what it waits for: a worker with the duty, or the end of a stage"
  },
  {
    promise: "A list of jobs looks at so many of them",
    file: "packages/postgres/migrations/0016_listing.sql",
    guarded: "order by j.%2$s %5$s, j.id %5$s limit $7';",
    without: "order by j.%2$s %5$s, j.id %5$s';",
    test: "packages/postgres/test/Inspect.test.ts",
    title: "a page looks at 10,000 jobs at most, and says where to go on, or that there are more"
  },
  {
    promise: "A step past its time is stopped, and an attempt without progress",
    file: "packages/worker/src/Watchdog.ts",
    guarded: "limits?.overrun(now, attempt.stepsUnderWay)",
    without: "undefined",
    test: "packages/worker/test/TimeLimits.test.ts",
    title: "a step past its time is interrupted, and the next attempt goes on from it"
  },
  {
    promise: "A wait for the store is no lack of progress",
    file: "packages/worker/src/TimeLimits.ts",
    guarded: "this.stallMs === undefined || this.callsAtStore > 0",
    without: "this.stallMs === undefined",
    test: "packages/worker/test/TimeLimits.test.ts",
    title: "an outage is charged to neither limit: only the handler's own time counts"
  },
  {
    promise: "A body's time does not run while its position is saved",
    file: "packages/worker/src/TimeLimits.ts",
    guarded: "() => limits.hold(step)",
    without: "() => {}",
    test: "packages/worker/test/TimeLimits.test.ts",
    title: "an outage is charged to neither limit: only the handler's own time counts"
  },
  {
    promise: "A step that has ended is not late",
    file: "packages/worker/src/TimeLimits.ts",
    guarded: "() => limits.close(step)",
    without: "() => {}",
    test: "packages/worker/test/TimeLimits.test.ts",
    title: "a step that ended, failed or was given up in time is not late afterwards"
  },
  {
    promise: "A job that is being put down is not late",
    file: "packages/worker/src/TimeLimits.ts",
    guarded: "if (this.sleeps > 0) return Number.POSITIVE_INFINITY",
    without: "",
    test: "packages/worker/test/TimeLimits.test.ts",
    title: "a sleep that waits for the store's lock on its job does not make the step around it late"
  },
  {
    promise: "An ending stands, whatever the finalizers behind it do",
    file: "packages/worker/src/Normalise.ts",
    guarded: "if (ending !== undefined) return ofEnding(attempt, ending)",
    without: "",
    test: "packages/worker/test/Dispatch.test.ts",
    title: "finalizers that die change no outcome: not in the attempt's scope, nor behind an ending, wherever they are"
  },
  {
    promise: "Finalizers are waited for a bounded time",
    file: "packages/worker/src/Watchdog.ts",
    guarded: "if (attempt.ending !== undefined || attempt.isClosing) return this.checkEnding(attempt, now)",
    without: "",
    test: "packages/worker/test/Dispatch.test.ts",
    title: "finalizers that hang are waited for a bounded time, and change no outcome"
  },
  {
    promise: "An onStuck that does not end is not waited for",
    file: "packages/worker/src/Stuck.ts",
    guarded: "over(`did not end within ${handlerGraceMs} ms`)",
    without: "",
    test: "packages/worker/test/Stuck.test.ts",
    title: "an onStuck that throws, fails, dies or hangs is logged and harms nothing"
  },
  {
    promise: "A worker without a slot left hands back what waits there",
    file: "packages/worker/src/Dispatch.ts",
    guarded: "if (inFlight.isStuck) this.handBackBuffer()",
    without: "",
    test: "packages/worker/test/Stuck.test.ts",
    title: "hands over what waits there and its duties, claims nothing, and is back at work when a slot comes free"
  },
  {
    promise: "A worker without a slot left claims nothing",
    file: "packages/worker/src/InFlight.ts",
    guarded: "if (this.isStuck) return 0",
    without: "",
    test: "packages/worker/test/Stuck.test.ts",
    title: "hands over what waits there and its duties, claims nothing, and is back at work when a slot comes free"
  },
  {
    promise: "A worker without a slot left resigns its duties",
    file: "packages/worker/src/Standing.ts",
    guarded: "drain.hasBegun || inFlight.isStuck",
    without: "drain.hasBegun",
    test: "packages/worker/test/Stuck.test.ts",
    title: "hands over what waits there and its duties, claims nothing, and is back at work when a slot comes free"
  },
  {
    promise: "A failure that archives records the death",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "m.next_state = 'archived' and v_is_handled then",
    without: "false then",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "what a settlement archives, with its reason, once, however often it is repeated"
  },
  {
    promise: "A lost lease that archives records the death",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: "case when w.state = 'archived'\n      then headgate",
    without: "case when false\n      then headgate",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "a job whose worker died and that would be tried again past its deadline"
  },
  {
    promise: "A sleep that archives records the death",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: "case when h.state = 'archived'",
    without: "case when false",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "a job put to sleep past its deadline"
  },
  {
    promise: "The sweep records the deaths it brings",
    file: "packages/postgres/migrations/0006_duties.sql",
    guarded: "  perform headgate.record_callbacks(v_overdue || v_late);\n",
    without: "",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "what the sweep finds past its deadline, waiting or running, or past its time in the queue"
  },
  {
    promise: "The gate records the deaths of those that come too late",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "  perform headgate.record_callbacks(p_late);\n",
    without: "",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "what the gate meets too late, and what it discards"
  },
  {
    promise: "A discard records the death",
    file: "packages/postgres/migrations/0007_control.sql",
    guarded: "  perform headgate.record_callbacks(v_archived);\n",
    without: "",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "what the gate meets too late, and what it discards"
  },
  {
    promise: "Deaths of kinds without a handler are not kept",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "from headgate.job j\n      join headgate.callback_kind k on k.kind = j.kind",
    without: "from headgate.job j",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "nothing of a transaction that is rolled back, and nothing of kinds nobody has declared"
  },
  {
    promise: "A claimed death is given to nobody else",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "and c.due_at_ms <= v_now and c.schema_version",
    without: "and c.schema_version",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "a death is given to one worker at a time, and to the next under the same key when its claim has run out"
  },
  {
    promise: "Rivals are not given the same death",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "limit k.most for no key update skip locked",
    without: "limit k.most",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "twenty claims at once give each death out once"
  },
  {
    promise: "A worker is given no death of a version above its own",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "and c.schema_version <= k.version\n",
    without: "\n",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "a worker is given no death whose payload is of a version above its own"
  },
  {
    promise: "A call is settled by its current claim only",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "where c.key = i.key and c.fence = i.fence and",
    without: "where c.key = i.key and",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "a call that outlives its claim changes nothing of the one that another worker makes under the same key"
  },
  {
    promise: "Calls that no worker survives come to an end",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "d.calls >= k.max_calls or d.lost >= 5 as is_over",
    without: "d.calls >= k.max_calls as is_over",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "a death that may be what ends its workers is given up after five of them"
  },
  {
    promise: "What failed too often is not forgotten",
    file: "packages/postgres/migrations/0013_death_callbacks.sql",
    guarded: "where o.state = 'delivered' and o.ended_at_ms",
    without: "where o.ended_at_ms",
    test: "packages/postgres/test/DeathCallbacks.test.ts",
    title: "what was delivered is forgotten a day later, what failed is kept, and so is a kind while it is declared"
  },
  {
    promise: "A death handler has a bounded time",
    file: "packages/worker/src/DeathCallbacks.ts",
    guarded: "yield* Effect.timeoutOption(Fiber.await(fiber), timeoutMs)",
    without: "Option.some(yield* Fiber.await(fiber))",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "a handler that is too slow is interrupted and called again"
  },
  {
    promise: "A call that a drain interrupts is handed back",
    file: "packages/worker/src/DeathCallbacks.ts",
    guarded: "  if (call.isStopped && Cause.hasInterruptsOnly(exit.cause)) return { _tag: \"handed_back\" }\n",
    without: "",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "a drain waits for a call, and hands back uncounted what does not end within the grace"
  },
  {
    promise: "A drain waits for the calls under way",
    file: "packages/worker/src/DeathCallbacks.ts",
    guarded: "return Effect.andThen(until(isDone, () => graceEnd), rest)",
    without: "return rest",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "a drain waits for a call, and hands back uncounted what does not end within the grace"
  },
  {
    promise: "A quiet worker calls no death handler",
    file: "packages/worker/src/DeathCallbacks.ts",
    guarded: "free.length === 0 || !this.parts.isTaking()",
    without: "free.length === 0",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "a worker that is told to take no work calls nothing until it resumes"
  },
  {
    promise: "A call that ended is settled when the store answers again",
    file: "packages/worker/src/DeathCallbacks.ts",
    guarded: "monotonicMs() < call.until ? Effect.delay",
    without: "false ? Effect.delay",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "an outage of the store while a handler runs costs no call"
  },
  {
    promise: "A handler that does not stop keeps its slot",
    file: "packages/worker/src/DeathCallbacks.ts",
    guarded: "    yield* Fiber.await(fiber)\n    lane.taken--",
    without: "    lane.taken--",
    test: "packages/worker/test/DeathCallbacks.test.ts",
    title: "a handler that does not stop keeps the slot of its own kind only, and its death is called again"
  },
  {
    promise: "After a failover that lost commits, the fence alone is nobody's",
    file: "packages/postgres/migrations/0005_settle.sql",
    guarded: `and j.id = i.job_id and ${lease}\n          and j.retention_ms > 0`,
    without: "and j.id = i.job_id and j.fence = i.fence and j.retention_ms > 0",
    test: "test/failover/Failover.test.ts",
    title:
      "after a failover that lost commits work goes on within 10 seconds, no lease is accepted twice, and only what was lost runs again"
  },
  {
    promise: "Connections to a server that has become read-only are left",
    file: "packages/postgres/src/ControlSql.ts",
    guarded: "if (sqlState(error) === ReadOnly.READ_ONLY) isReadOnly()",
    without: "",
    test: "packages/postgres/test/ReadOnly.test.ts",
    title: "is a typed failure, and its connections are left, the application's as well"
  },
  {
    promise: "A server that takes no writes is not listened to",
    file: "packages/postgres/src/Wakeups.ts",
    guarded: "row?.[\"read_only\"] === \"on\"",
    without: "false && row",
    test: "packages/postgres/test/ReadOnly.test.ts",
    title: "is not listened to"
  },
  {
    promise: "A role's limits for the application's statements are not the store's",
    file: "packages/postgres/src/ControlSql.ts",
    guarded: "  statement_timeout: \"0\",\n",
    without: "",
    test: "packages/postgres/test/ControlSql.test.ts",
    title: "limits that are set for the application's statements are not the store's"
  },
  {
    promise: "Behind a pooler the store does not start under another isolation than it needs",
    file: "packages/postgres/src/ControlSql.ts",
    guarded: "if (settings.transactionPooling) yield* refuseIsolation(client)",
    without: "",
    test: "test/pgbouncer/PgBouncer.test.ts",
    title: "is refused where the role's transactions are not read committed, which the store cannot change there"
  },
  {
    promise: "A handler's query on a server without room, or without writes, is charged to nobody",
    file: "packages/worker/src/DatabaseFault.ts",
    guarded: "25006|53300|",
    without: "",
    test: "packages/worker/test/Normalise.test.ts",
    title: "what another try would meet again is fatal, an outage of the database charges nothing, the rest is retried"
  },
  {
    promise: "What a completion or a sleep frees under a ceiling is asked for at once",
    file: "packages/worker/src/Runner.ts",
    guarded: "      this.parts.settledItself()\n",
    without: "",
    test: "packages/worker/test/Admission.test.ts",
    title: "what a completion or a sleep frees under a ceiling is given away at once"
  },
  {
    promise: "Older versions of a payload of nothing are read",
    file: "packages/core/src/Upcast.ts",
    guarded: "bytes.length === 0",
    without: "bytes.length < 0",
    test: "packages/core/test/Task.test.ts",
    title: "a payload of nothing has versions as well, and may become something"
  },
  {
    promise: "A quiet worker asks for nothing",
    file: "packages/worker/src/Admission.ts",
    guarded: "    if (this.isQuiet && this.unanswered.length === 0) return MAX_PAUSE_MS\n",
    without: "",
    test: "packages/worker/test/Standing.test.ts",
    title: "quiet takes no more work and hands back what had not started; what runs goes on, until it is to resume"
  },
  {
    promise: "What a call brings to a quiet worker is handed back",
    file: "packages/worker/src/Dispatch.ts",
    guarded: "if (this.isDraining || this.isQuiet || inFlight.isStuck)",
    without: "if (this.isDraining || inFlight.isStuck)",
    test: "packages/worker/test/Standing.test.ts",
    title: "hands back what a call of the gate brings that was under way when it became quiet"
  },
  {
    promise: "A worker that is told to terminate ends a drain without bound",
    file: "packages/worker/src/Drain.ts",
    guarded: "    if (within === \"grace\") this.graceEnd",
    without: "    if (within === \"grace\" && !this.hasBegun) this.graceEnd",
    test: "packages/worker/test/Standing.test.ts",
    title: "to terminate drains within its grace, also where it drains already without bound"
  },
  {
    promise: "A resigned worker does no duties",
    file: "packages/worker/src/Standing.ts",
    guarded: "Effect.raceFirst(duties, this.offDuty.await)",
    without: "duties",
    test: "packages/worker/test/Standing.test.ts",
    title: "to resign gives its duties to another, and takes none back before it is to resume"
  },
  {
    promise: "Commands are for live workers",
    file: "packages/postgres/migrations/0015_worker_commands.sql",
    guarded: "  where w.id = p_worker and w.seen_at_ms + w.lease_ms > t.now\n",
    without: "  where w.id = p_worker\n",
    test: "packages/postgres/test/WorkerControl.test.ts",
    title: "a worker that is unknown, dead or gone is not found"
  },
  {
    promise: "A command does not undo one that was not heard yet",
    file: "packages/postgres/migrations/0015_worker_commands.sql",
    guarded: "coalesce(w.wants_end, p_command)",
    without: "p_command",
    test: "packages/postgres/test/WorkerControl.test.ts",
    title: "loses none of the commands that come between two heartbeats"
  },
  {
    promise: "A worker begins its life untold",
    file: "packages/postgres/src/WorkerRegistry.ts",
    guarded:
      "command = null, command_actor = null, command_at_ms = null,\n      applied_seq = w.command_seq, wants_quiet = false, wants_resigned = false, wants_end = null, is_quiet = false,",
    without: "is_quiet = false,",
    test: "packages/postgres/test/WorkerControl.test.ts",
    title: "what was told to an earlier life of an id is not for the next"
  },
  {
    promise: "A worker that takes no work is none to who asks why a job waits",
    file: "packages/postgres/migrations/0009_explain.sql",
    guarded: " and not p_worker.is_quiet and not p_worker.is_draining",
    without: "",
    test: "packages/postgres/test/Explain.test.ts",
    title: "a worker that was told to take no work, or is at its end, is none"
  },
  {
    promise: "The end of an npm script's shell is a signal",
    file: "packages/worker/src/Launch.ts",
    guarded: "  if (process.env[\"npm_lifecycle_event\"] !== undefined) whenOrphaned(begin)\n",
    without: "",
    test: "packages/worker/test/LaunchedProcess.test.ts",
    title: "of which the script's shell dies"
  },
  {
    promise: "A claim's checkpoint is read where the claim is known",
    file: "packages/postgres/src/CheckpointRows.ts",
    guarded: "lease !== undefined && (rows.length < ids.length || known < ids.length)",
    without: "false && (rows.length < ids.length || known < ids.length)",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "is read where the claim is known, or not at all"
  },
  {
    promise: "A commit in doubt is looked up for as long as it takes",
    file: "packages/postgres/src/Transactional.ts",
    guarded: "untilTold(isCommitted())",
    without: "isCommitted()",
    test: "packages/postgres/test/Transactional.test.ts",
    title: "an outage right after the commit makes no difference: it is looked up when the store is back"
  },
  {
    promise: "A promise that a handler left behind does not end the process",
    file: "packages/worker/src/Launch.ts",
    guarded: "  process.on(\"unhandledRejection\", logRejection)\n",
    without: "",
    test: "test/faults/UnhandledRejection.test.ts",
    title: "a rejection that a handler left unhandled is told, and ends neither its process nor the jobs beside it"
  },
  {
    promise: "A worker that cannot hear of new work says so",
    file: "packages/worker/src/Loops.ts",
    guarded: "(fault) => note(outage, \"Wakeups\", fault)",
    without: "() => {}",
    test: "test/faults/Notifications.test.ts",
    title: "that cannot come shows in the worker's health until it can, and jobs start by polling meanwhile"
  },
  {
    promise: "No timer is longer than the runtime's longest",
    file: "packages/worker/src/Watchdog.ts",
    guarded: "Math.min(Math.max(at - now, 1), MAX_PAUSE_MS)",
    without: "Math.max(at - now, 1)",
    test: "test/faults/LongTimes.test.ts",
    title:
      "times beyond the runtime's longest timer neither come at once nor make the worker spin, and do not cut a drain"
  },
  {
    promise: "The leases of a loop that is blocked for good run out",
    file: "packages/postgres/src/HeartbeatLoop.ts",
    guarded: "startedAt - loop.tick() > longestTick",
    without: "false && loop.tick() > longestTick",
    test: "packages/postgres/test/Heartbeat.test.ts",
    title: "a loop that is blocked beyond its tolerance loses its lease, and is told"
  },
  {
    promise: "A connection that is lost in the middle of a write is an outage, not a fault of the statement",
    file: "packages/postgres/src/ControlSql.ts",
    guarded: "/^(?=.*\\d)[0-9A-Z]{5}$/",
    without: "/^[0-9A-Z]{5}$/",
    test: "packages/postgres/test/ControlSql.test.ts",
    title: "a socket's error is no SQLSTATE, also where its code is as long as one"
  },
  {
    promise: "A heartbeat thread that is slow to its first beat is stood in for",
    file: "packages/postgres/src/HeartbeatThread.ts",
    guarded: "let standIn = Effect.delay(meanwhile, patienceMillis)",
    without: "let standIn: Effect.Effect<never> = Effect.never",
    test: "packages/postgres/test/Heartbeat.test.ts",
    title: "leases are renewed in the loop while a thread is slow to its first beat, and no longer"
  }
]
