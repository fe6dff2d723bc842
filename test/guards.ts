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
    promise: "A job is put to sleep by its current holder only",
    file: "packages/postgres/src/Checkpoints.ts",
    guarded: "from wake w where j.id = $1 and j.lease_id = $2 and j.fence = $3",
    without: "from wake w where j.id = $1 and $2::uuid is not null and $3::bigint is not null",
    test: "packages/postgres/test/Checkpoints.test.ts",
    title: "a stale lease cannot put a job to sleep"
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
    guarded: "v_rooms[v_place] := greatest(v_rule.most - v_running[v_place], 0);",
    without: "v_rooms[v_place] := v_rule.most;",
    ...scenario(
      "ceiling_of_a_queue",
      "A queue never runs more jobs than its ceiling, on all workers together"
    )
  },
  {
    promise: "A partition's slot holds what runs in it",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "v_running[v_place] := v_next.held;",
    without: "v_running[v_place] := 0;",
    ...scenario(
      "ceiling_of_a_partition",
      "A ceiling by partition counts in each partition of the queue apart"
    )
  },
  {
    promise: "What is admitted is charged",
    file: "packages/postgres/migrations/0003_gate.sql",
    guarded: "perform headgate.charge(v_rule.policy, v_slot_keys[place], v_full[place] - v_rooms[place], p_now);",
    without: "null;",
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
    guarded: "elsif v_rooms[v_place] < least(v_cost, v_rule.most) then",
    without: "elsif v_rooms[v_place] < v_cost then",
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
    promise: "No job of a closed fingerprint is stored",
    file: "packages/postgres/src/EnqueueRows.ts",
    guarded: "and case when (select g.has_closed from guard g) then not headgate.is_closed(t.print) else true end",
    without: "",
    test: "packages/postgres/test/ProducerPolicies.test.ts",
    title: "refuses the whole batch, names the job, and writes nothing, also in an open transaction"
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
    file: "packages/postgres/migrations/0008_policies_control.sql",
    guarded: "  perform pg_advisory_xact_lock(headgate.policy_lock(p_policy, p_name)) where p_policy is not null;\n",
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
    promise: "What an operator released is not swept back",
    file: "packages/postgres/migrations/0010_quarantine.sql",
    guarded:
      "where s.closed_at_ms is not null and s.fingerprint = any(array(\n          select c.fingerprint from headgate.job c where c.id = any(v_ids)))",
    without:
      "where s.fingerprint = any(array(\n          select c.fingerprint from headgate.job c where c.id = any(v_ids)))",
    test: "packages/postgres/test/Quarantine.test.ts",
    title: "leaves alone what was released meanwhile"
  }
]
