/** Jobs in any state, written straight into the store, and what became of them. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { type Fence, type JobId, JobId as JobIdSchema, LeaseId, type LeaseRef, WorkerId } from "@headgate/core/Ids"
import type { State } from "@headgate/core/State"
import * as Announcer from "@headgate/postgres/Announcer"
import * as Control from "@headgate/postgres/Control"
import * as ControlSql from "@headgate/postgres/ControlSql"
import * as Duties from "@headgate/postgres/Duties"
import * as Gate from "@headgate/postgres/Gate"
import * as Inspect from "@headgate/postgres/Inspect"
import * as Leases from "@headgate/postgres/Leases"
import * as Reports from "@headgate/postgres/Reports"
import { defaults as defaultSettings, PostgresSettings } from "@headgate/postgres/Settings"
import { TestDatabase, Time } from "@headgate/testkit"
import { Effect, Layer } from "effect"

/** The store's services over a fresh database. With a connection to look on while all others wait. */
export const layer = Layer.mergeAll(
  Control.layer,
  Duties.layer,
  Gate.layer,
  Inspect.layer,
  Leases.layer,
  Reports.layer
).pipe(
  Layer.provideMerge(Announcer.layer),
  Layer.provideMerge(ControlSql.layer),
  Layer.provide(Layer.succeed(PostgresSettings, { ...defaultSettings, controlConnections: 5 })),
  Layer.provideMerge(TestDatabase.layer)
)

export const jobId = (id: string): JobId => JobIdSchema.make(id)
export const workerId = (id: string): WorkerId => WorkerId.make(id)
export const leaseId = LeaseId.make("6c1d6d0a-0c61-4d0c-9a2f-0f4b7f1f5a11")

/** Columns of `headgate.job` by their SQL names; what is left out has a plausible value for the state. */
export interface Seed {
  readonly id: string
  readonly state?: State
  readonly [column: string]: unknown
}

export const seed = Effect.fnUntraced(function*(...jobs: ReadonlyArray<Seed>) {
  const pg = yield* PgClient.PgClient
  const now = yield* Time.now()
  const rows = jobs.map((job) => ({ ...defaults(job.state ?? "available", now), fingerprint: job.id, ...job }))
  yield* pg`INSERT INTO headgate.job SELECT r.* FROM jsonb_array_elements(${pg.json(rows)}) e
    CROSS JOIN LATERAL jsonb_populate_record(null::headgate.job, e) r`
  const ids = rows.map(({ id }) => id)
  yield* pg`INSERT INTO headgate.lane (queue, kind, version, suspect)
    SELECT DISTINCT j.queue, j.kind, greatest(j.schema_version, j.checkpoint_version), j.crash_attempt > 0
    FROM headgate.job j WHERE j.id = ANY(${ids}) ON CONFLICT DO NOTHING`
  yield* pg`UPDATE headgate.job j SET lane_id = l.id FROM headgate.lane l
    WHERE j.id = ANY(${ids}) AND l.queue = j.queue AND l.kind = j.kind AND l.suspect = (j.crash_attempt > 0)
      AND l.version = greatest(j.schema_version, j.checkpoint_version) AND NOT l.is_partitioned`
})

/** The row of a job as JSON; undefined when it is gone. */
export const row = Effect.fnUntraced(function*(id: string) {
  const pg = yield* PgClient.PgClient
  const rows = yield* pg<
    { job: Record<string, unknown> }
  >`SELECT to_jsonb(j) AS job FROM headgate.job j WHERE j.id = ${id}`
  return rows[0]?.job
})

/** The given columns of a job. */
export const columns = Effect.fnUntraced(function*(id: string, ...names: ReadonlyArray<string>) {
  const found = yield* row(id)
  return names.map((name) => found?.[name])
})

export const stateOf = (id: string) => Effect.map(row(id), (job) => job?.["state"] ?? "deleted")

export const lease = (id: string, fence = 1): LeaseRef => ({ jobId: jobId(id), leaseId, fence: fence as Fence })

/** Until so many statements stand in line behind an open transaction. */
export const waitingForLocks = Effect.fnUntraced(function*(count: number) {
  // On another connection: inside the transaction the server shows the same moment again and again.
  const { client } = yield* ControlSql.ControlSql
  const waiting = client<{ n: number }>`SELECT count(*)::int AS n FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database()`
  yield* Effect.timeout(Effect.repeat(waiting, { until: ([row]) => row?.n === count }), "1 minute")
})

const defaults = (state: State, now: number): Seed => ({
  id: "",
  state,
  kind: "greet",
  queue: "default",
  partition_key: "",
  keys: "",
  payload: "\\x",
  schema_version: 1,
  checkpoint_version: 0,
  attempt: 0,
  max_attempts: 5,
  crash_attempt: 0,
  crash_limit: 3,
  streak: 0,
  priority: 0,
  fence: ["pending", "scheduled", "available"].includes(state) ? 0 : 1,
  lane_id: 0,
  retention_ms: 60_000,
  orphaned: false,
  has_steps: false,
  has_reports: false,
  enqueued_at_ms: now,
  scheduled_at_ms: ["scheduled", "retryable"].includes(state) ? now + 60_000 : now,
  ...(state === "running"
    ? { claimed_at_ms: now, lease_id: leaseId, lease_expires_at_ms: now + 30_000, worker: "w1" }
    : {}),
  ...(["completed", "cancelled"].includes(state) ? { evict_at_ms: now + 60_000 } : {}),
  ...(["completed", "archived", "cancelled", "quarantined", "undecodable"].includes(state)
    ? { finished_at_ms: now, last_worker: "w1", claimed_at_ms: now }
    : {})
})
