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
}

const lease = "j.lease_id = i.lease_id and j.fence = i.fence"

export const guards: ReadonlyArray<Guard> = [
  {
    promise: "A claim passes over rows that a rival holds, and re-checks what they became",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "        for no key update skip locked\n      ) t;",
    without: "      ) t;",
    test: "packages/postgres/test/Gate.test.ts",
    title: "eight workers that ask at once share the jobs and claim none twice"
  },
  {
    promise: "A worker is given no version above its own",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "l.kind = known.kind and l.version <= known.version",
    without: "l.kind = known.kind",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a worker is given no version above its own"
  },
  {
    promise: "A job past its deadline never starts",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "coalesce(j.deadline_at_ms <= v_now, false)",
    without: "false",
    test: "packages/postgres/test/Gate.test.ts",
    title: "a job past its deadline or its time in the queue is archived by the call that meets it, and never starts"
  },
  {
    promise: "A worker holds at most one job that ever crashed",
    file: "packages/postgres/migrations/0004_admit.sql",
    guarded: "where r.worker = p_worker and r.state = 'running' and r.crash_attempt > 0\n",
    without: "where false\n",
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
    guarded: `and j.id = i.job_id and ${lease}\n          and j.retention_ms = 0`,
    without: "and j.id = i.job_id and j.lease_id is not null and j.retention_ms = 0",
    test: "packages/postgres/test/Leases.test.ts",
    title: "neither another lease id nor another fence is accepted"
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
  }
]
