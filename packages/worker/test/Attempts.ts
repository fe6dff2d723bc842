/**
 * Attempts driven by hand over the real store, one at a time, as the worker drives them: admitted, resumed, run,
 * normalised and settled. What a test wants to do in between (crash, take over, move the clock) it does between calls.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import type { AttemptServices, Checkpoint, Outcome, Registration, StepWrite, TrackedLease } from "@headgate/core"
import {
  Checkpoints,
  Duties,
  Gate,
  Inspect,
  Job,
  type JobId,
  LeaseId,
  Leases,
  type Transactional,
  WorkerId
} from "@headgate/core"
import * as Announcer from "@headgate/postgres/Announcer"
import * as PgCheckpoints from "@headgate/postgres/Checkpoints"
import * as PgControl from "@headgate/postgres/Control"
import * as ControlSql from "@headgate/postgres/ControlSql"
import * as PgDuties from "@headgate/postgres/Duties"
import * as PgGate from "@headgate/postgres/Gate"
import * as PgInspect from "@headgate/postgres/Inspect"
import * as PgLeases from "@headgate/postgres/Leases"
import * as PgProducer from "@headgate/postgres/Producer"
import * as PgReports from "@headgate/postgres/Reports"
import * as PgTransactional from "@headgate/postgres/Transactional"
import { TestDatabase, Time } from "@headgate/testkit"
import { Cause, Context, Effect, Exit, Fiber, Layer } from "effect"
import type * as SqlClient from "effect/sql/SqlClient"
import * as Crypto from "node:crypto"
import { LocalAttempt } from "../src/Attempt.ts"
import { JobOfAttempt } from "../src/JobService.ts"
import { normalise } from "../src/Normalise.ts"
import { prepareResume } from "../src/Resume.ts"
import { Running, RunningAttempt, stepServices } from "../src/StepRuntime.ts"
import * as StepStores from "../src/StepStores.ts"

export const layer = Layer.mergeAll(
  PgCheckpoints.layer,
  PgControl.layer,
  PgDuties.layer,
  PgGate.layer,
  PgInspect.layer,
  PgLeases.layer,
  PgProducer.layer,
  PgReports.layer,
  PgTransactional.layer
).pipe(
  Layer.provideMerge(Announcer.layer),
  Layer.provideMerge(ControlSql.layer),
  Layer.provideMerge(TestDatabase.layer)
)

export type AnyTask = Pick<Registration, "definition"> & { readonly kind: string }

export const LEASE_MS = 30_000

/** The lease as the process believes in it: for ever, until a test says otherwise. */
export class HeldLease implements TrackedLease {
  until = Number.POSITIVE_INFINITY
  readonly extensions: Array<number> = []
  validUntil = () => this.until
  extended = (sentAt: number) => void this.extensions.push(sentAt)
  end = () => {}
}

export interface Held {
  readonly attempt: LocalAttempt
  readonly lease: HeldLease
}

export interface Ran extends Held {
  readonly exit: Exit.Exit<unknown, unknown>
  /** Undefined when there was nothing left to settle. */
  readonly outcome: Outcome | undefined
}

/** What a handler's own layer would have captured. */
export type Captured = Transactional | PgClient.PgClient | SqlClient.SqlClient

export type Handler = Effect.Effect<unknown, unknown, AttemptServices | Captured>

type Send = Checkpoints["Service"]["write"]

export interface WorkerOptions {
  /** Default: a minute, so that a slow machine cannot spoil a guess. */
  readonly guessMs?: number | undefined
  /** What happens to each batch on its way to the store. */
  readonly way?: ((batch: Parameters<Send>[0], send: Send) => ReturnType<Send>) | undefined
}

/** A worker of its own: what one process would share among its attempts, and every batch it sent to the store. */
export const worker = Effect.fnUntraced(
  function*({ guessMs = 60_000, way = (batch, send) => send(batch) }: WorkerOptions = {}) {
    const gate = yield* Gate
    const leases = yield* Leases
    const checkpoints = yield* Checkpoints
    const captured = yield* Effect.context<Captured>()
    const id = WorkerId.make(`w-${Crypto.randomUUID()}`)
    const batches: Array<ReadonlyArray<StepWrite>> = []
    const watched = Checkpoints.of({
      ...checkpoints,
      write: (batch) => Effect.suspend(() => (batches.push(batch), way(batch, checkpoints.write)))
    })
    const stores = yield* StepStores.make.pipe(
      Effect.provideService(Checkpoints, watched),
      Effect.provideService(StepStores.StepSettings, { guessMs })
    )

    const claimAll = Effect.fnUntraced(function*(task: AnyTask, capacity: number) {
      const { claims } = yield* gate.admit({
        worker: id,
        leaseId: LeaseId.make(Crypto.randomUUID()),
        queues: [task.definition.queue],
        kinds: [{ kind: task.kind, version: task.definition.version }],
        capacity,
        leaseMs: LEASE_MS,
        quantum: undefined
      })
      return claims.map((claim): Held => {
        const lease = new HeldLease()
        const registration = { definition: task.definition, run: () => Effect.void, context: Context.empty() }
        return { lease, attempt: new LocalAttempt(claim, registration, LEASE_MS, lease, performance.now()) }
      })
    })
    const claim = Effect.fnUntraced(function*(task: AnyTask) {
      const [held] = yield* claimAll(task, 1)
      if (held === undefined) return yield* Effect.die(new Error(`nothing to run of ${task.kind}`))
      return held
    })

    const start = ({ attempt }: Held, handler: Handler) =>
      Effect.sync(() => {
        const services = (checkpoint: Checkpoint | undefined) =>
          captured.pipe(
            Context.merge(stepServices),
            Context.add(Running, new RunningAttempt(attempt, stores, checkpoint)),
            Context.add(Job, new JobOfAttempt(attempt, id, stores))
          )
        const run = Effect.flatMap(
          prepareResume(attempt, stores),
          (checkpoint) => Effect.provideContext(Effect.scoped(handler), services(checkpoint))
        )
        const fiber = Effect.runFork(run)
        attempt.fiber = fiber
        return fiber
      })
    const settle = Effect.fnUntraced(function*(held: Held, exit: Exit.Exit<unknown, unknown>) {
      const outcome = normalise(held.attempt, exit)
      if (outcome !== undefined) yield* leases.settle([{ lease: held.attempt.claim.lease, outcome }])
      return { ...held, exit, outcome }
    })
    const finish = Effect.fnUntraced(function*(held: Held, handler: Handler) {
      return yield* settle(held, yield* Fiber.await(yield* start(held, handler)))
    })
    /** Runs the next job of the task to the end of one attempt. */
    const run = Effect.fnUntraced(function*(task: AnyTask, handler: Handler) {
      return yield* finish(yield* claim(task), handler)
    })
    return { id, batches, stores, claim, claimAll, start, settle, finish, run }
  }
)

/**
 * The process is gone without a word: the lease runs out, the job comes back, and it is due again. However often that
 * happens: its content is not held against it.
 */
export const crash = Effect.fnUntraced(function*() {
  const duties = yield* Duties
  const sql = yield* PgClient.PgClient
  yield* sql`DELETE FROM headgate.strike`
  yield* Time.advance(LEASE_MS + 1)
  yield* duties.reclaimExpired(1000)
  yield* due()
})

/** Whatever is scheduled for the next hour is due now. */
export const due = Effect.fnUntraced(function*() {
  const duties = yield* Duties
  yield* Time.advance("1 hour")
  yield* duties.promoteDue(1000)
})

/** The typed failure of an exit. */
export const failure = (exit: Exit.Exit<unknown, unknown>): unknown =>
  Exit.isFailure(exit) ? exit.cause.reasons.find(Cause.isFailReason)?.error : undefined

/** Does something whenever a body runs, and says in which order. */
export const log = () => {
  const entries: Array<string> = []
  return { entries, say: (entry: string) => Effect.sync(() => void entries.push(entry)) }
}

export const ending = ({ attempt: { ending } }: Held): string | undefined =>
  ending?._tag === "Interrupted" ? ending.reason : ending?._tag

/** Reads the mark as it is stored. */
export const markOf = Effect.fnUntraced(function*(id: JobId) {
  const inspect = yield* Inspect
  return Effect.map(Effect.orDie(inspect.checkpoint(id)), (checkpoint) => checkpoint?.inProgress ?? "none")
})

/** A table of the application's own. */
export const ledger = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) => sql`CREATE TABLE ledger (entry text NOT NULL)`)
)

export const write = (entry: string) =>
  Effect.flatMap(PgClient.PgClient, (sql) => sql`INSERT INTO ledger VALUES (${entry})`)

/** How often the entry stands in it. */
export const written = Effect.fnUntraced(function*(entry: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql`SELECT 1 AS one FROM ledger WHERE entry = ${entry}`
  return rows.length
})

/** The reason that is stored with the job's latest attempt. */
export const reason = Effect.fnUntraced(function*(id: string) {
  const pg = yield* PgClient.PgClient
  const rows = yield* pg<{ reason: string | null }>`SELECT coalesce(error_text, error_message) AS reason
    FROM headgate.attempt WHERE job_id = ${id} ORDER BY fence DESC LIMIT 1`
  return rows[0]?.reason ?? ""
})
