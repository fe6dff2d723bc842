/**
 * The application's writes and the job's own record in one transaction of the application's client. The lease is
 * verified last, by the write that locks the job's row until the commit. A commit whose answer is lost is looked up
 * before anything is answered, for as long as it takes, so a body that took effect never runs again.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import type { LeaseRef } from "@headgate/core/Ids"
import type { Charge } from "@headgate/core/Leases"
import { success } from "@headgate/core/Outcome"
import { type ForeignTransaction, LeaseRejected, StoreUnavailable } from "@headgate/core/Refusals"
import { BodyFailure, MAX_EFFECT_KEY_BYTES, type OnceWrite, Transactional } from "@headgate/core/Transactional"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import { ambient, foreignTransaction } from "./Ambient.ts"
import * as Bind from "./Bind.ts"
import { checkStep, checkText } from "./Checkpoints.ts"
import { ControlSql, inSchema, rollbackFaults } from "./ControlSql.ts"
import { chargedSuccessSql, successParams, successSql } from "./Leases.ts"
import * as SettleRows from "./SettleRows.ts"

/**
 * Claims the key. A worker that vanishes without a word leaves its transaction open, and the next owner waiting for the
 * key: the server ends it once it has been idle for twice the lease, unless a shorter time is set anyway.
 */
const claimSql = `with bounded as materialized (${idleLimit("$5")})
  insert into headgate.effect (key, job_id, step, fence, recorded_at_ms)
  select $1, $2, $3, $4, headgate.now_ms() from bounded on conflict do nothing returning 1 as one`

const readSql = "select e.result, e.job_id, e.step, e.fence from headgate.effect e where e.key = $1"

/**
 * Verifies and extends the lease, and records the step; with `$8` null the key keeps the result it has. A key that this
 * transaction claimed and that is gone means that the body has rolled back by hand: nothing is recorded.
 */
const recordSql = `with held as (
    update headgate.job j set has_steps = true,
      lease_expires_at_ms = greatest(j.lease_expires_at_ms, (select headgate.now_ms()) + $4),
      in_progress_step = case when $7::text is not null then $7 when j.in_progress_step = $5 then null
        else j.in_progress_step end
    where j.id = $1 and j.lease_id = $2 and j.fence = $3
      and ($9::text is null or exists (select from headgate.effect e where e.key = $9 and e.job_id = $1))
    returning j.id, j.fence
  ), recorded as (
    insert into headgate.step (job_id, fence, step, kind, position, result, recorded_at_ms)
    select h.id, h.fence, $5, 'once', $6, $8, headgate.now_ms() from held h
    on conflict do nothing
  ), kept as (
    update headgate.effect e set result = $8
    where e.key = $9 and $8::bytea is not null and exists (select from held)
  )
  select 1 as one from held`

/** Waits for the row, for as long as an unanswered commit may take. */
const lockSql = `select 1 as one from (select set_config('lock_timeout', '5s', true) as lock_timeout offset 0) wait
  cross join lateral (
    select 1 from headgate.job j where j.id = $1 and wait.lock_timeout is not null for no key update
  ) locked`

const stateSql = "select j.state from headgate.job j where j.id = $1"

const make = Effect.gen(function*() {
  const application = yield* PgClient.PgClient
  const { schema, statement, unavailable } = yield* ControlSql
  const client = application.withoutTransforms()
  const run = <Row extends object>(sql: string) => {
    const text = inSchema(schema, sql)
    return (params: ReadonlyArray<unknown>) => client.unsafe<Row>(text, params)
  }
  const claim = run(claimSql)
  const read = run<EffectRow>(readSql)
  const record = run(recordSql)
  const succeedPlain = run<{ state: string }>(successSql("null"))
  const succeedCharged = run<{ state: string }>(chargedSuccessSql("null"))
  const transactionId = run<{ id: string }>("select pg_current_xact_id()::text as id")
  const state = run<{ state: string }>(stateSql)
  const lockJob = statement("Transactional", lockSql)
  const readEffect = statement<EffectRow>("Transactional.once", readSql)
  const readJob = statement<{ is_ours: boolean }>(
    "Transactional.complete",
    `select coalesce(j.last_lease_id = $2 and j.fence = $3, false) as is_ours from headgate.job j where j.id = $1`
  )

  const succeed = (
    lease: LeaseRef,
    result: { readonly version: number; readonly bytes: Uint8Array } | undefined,
    charges: ReadonlyArray<Charge> | undefined
  ) => {
    const params = successParams([{ lease, result }])
    return charges === undefined
      ? succeedPlain(params)
      : succeedCharged([...params, ...SettleRows.correctionParams([{ lease, outcome: success, charges }])])
  }

  const rejected = ({ jobId }: LeaseRef) =>
    Effect.flatMap(state([Bind.text(jobId)]), ([job]) => new LeaseRejected({ jobId, state: job?.state ?? "missing" }))

  /** Verifies the lease by the write itself; refused, the transaction rolls back. */
  const recordStep = (write: OnceWrite, result: Uint8Array | undefined, key: string | null) =>
    Effect.flatMap(
      record(recordParams(write, result, key)),
      (rows) => rows.length === 0 ? refused(write, key) : Effect.void
    )

  const refused = Effect.fnUntraced(function*({ lease }: OnceWrite, key: string | null) {
    const isGone = key !== null && (yield* read([Bind.text(key)])).length === 0
    return yield* isGone ? rolledBack(ONCE) : rejected(lease)
  })

  /** In doubt the transaction may still be open on the server: its lock on the job's row is waited for. */
  const settled = <A>(lease: LeaseRef, check: Effect.Effect<A, StoreUnavailable>) =>
    Effect.uninterruptible(Effect.andThen(lockJob([Bind.text(lease.jobId)]), check))

  return Transactional.of({
    once: Effect.fn("Transactional.once")(function*<A, E, R>(
      write: OnceWrite,
      body: Effect.Effect<A, E, R>,
      encode: (value: A) => Effect.Effect<Uint8Array | undefined, E>
    ) {
      checkStep(write.step)
      checkText("an effect key", write.effectKey, MAX_EFFECT_KEY_BYTES)
      const { effectKey, lease, step } = write
      const attempt = Effect.gen(function*() {
        const claimed = yield* claim([
          Bind.text(effectKey),
          Bind.text(lease.jobId),
          Bind.text(step),
          Bind.bigint(lease.fence),
          Bind.text(`${2 * write.leaseMs}ms`)
        ])
        if (claimed.length === 0) {
          const [known] = yield* read([Bind.text(effectKey)])
          if (known === undefined) return yield* new StoreUnavailable({ operation: ONCE, message: OLD_SNAPSHOT })
          yield* recordStep(write, known.result ?? undefined, null)
          return { _tag: "Already" as const, result: known.result ?? undefined }
        }
        const value = yield* Effect.mapError(body, (error) => new BodyFailure(error))
        const result = yield* Effect.mapError(encode(value), (error) => new BodyFailure(error))
        yield* recordStep(write, result, effectKey)
        return { _tag: "Committed" as const, value }
      })
      const isStored = Effect.map(
        readEffect([Bind.text(effectKey)]),
        ([row]) =>
          row !== undefined && row.job_id === lease.jobId && row.step === step && Number(row.fence) === lease.fence
      )
      return yield* transact(ONCE, attempt, () => settled(lease, isStored))
    }),
    complete: Effect.fn("Transactional.complete")(function*<A, E, R>(
      lease: LeaseRef,
      body: Effect.Effect<A, E, R>,
      encode: (value: A) => Effect.Effect<{ readonly version: number; readonly bytes: Uint8Array } | undefined, E>,
      charges?: () => ReadonlyArray<Charge> | undefined
    ) {
      const attempt = Effect.gen(function*() {
        const [begun] = yield* transactionId([])
        const value = yield* Effect.mapError(body, (error) => new BodyFailure(error))
        const result = yield* Effect.mapError(encode(value), (error) => new BodyFailure(error))
        const [ended] = yield* transactionId([])
        if (begun?.id !== ended?.id) return yield* rolledBack(COMPLETE)
        const rows = yield* succeed(lease, result, charges?.())
        if (rows.length === 0) return yield* rejected(lease)
        return value
      })
      const params = [Bind.text(lease.jobId), Bind.uuid(lease.leaseId), Bind.bigint(lease.fence)]
      // Nothing but a success, this one, deletes a row that was running under this lease.
      const isStored = Effect.map(readJob(params), ([job]) => job === undefined || job.is_ours)
      return yield* transact(COMPLETE, attempt, () => settled(lease, isStored))
    })
  })

  function transact<A, E, R>(
    operation: string,
    attempt: Effect.Effect<A, BodyFailure<E> | SqlError.SqlError | LeaseRejected | StoreUnavailable, R>,
    isCommitted: () => Effect.Effect<boolean, StoreUnavailable>
  ): Effect.Effect<A, BodyFailure<E> | LeaseRejected | ForeignTransaction | StoreUnavailable, R> {
    return Effect.gen(function*() {
      const transactionAround = yield* ambient(application)
      if (transactionAround !== "none") return yield* foreignTransaction(operation, transactionAround)
      let atCommit: { readonly value: A } | undefined
      const begin = yield* SqlClient.BeginTransaction
      const body = Effect.provideService(attempt, SqlClient.BeginTransaction, begin)
      // Renewals write to the job's row while the body runs: a snapshot of the whole transaction would fail on them.
      const transaction = Effect.provideService(
        rollbackFaults(client.withTransaction(Effect.tap(body, (value) =>
          Effect.sync(() => {
            atCommit = { value }
          })))),
        SqlClient.BeginTransaction,
        "BEGIN ISOLATION LEVEL READ COMMITTED"
      )
      return yield* Effect.catch(transaction, (failure) => {
        if (failure._tag !== "SqlError") return Effect.fail(failure)
        const failed = unavailable(operation)(failure)
        const end = atCommit
        if (end === undefined) return failed
        return Effect.flatMap(
          untilTold(isCommitted()),
          (isCommitted) => isCommitted ? Effect.succeed(end.value) : failed
        )
      })
    })
  }
})

/** While the store is away nobody knows whether the body may run again. Waits in real time, and ends when interrupted. */
const untilTold = <A>(look: Effect.Effect<A, StoreUnavailable>): Effect.Effect<A> =>
  Effect.catch(look, () => Effect.andThen(pause, Effect.suspend(() => untilTold(look))))

const pause = Effect.callback<void>((resume) => {
  const timer = setTimeout(() => resume(Effect.void), 200)
  return Effect.sync(() => clearTimeout(timer))
})

export const layer: Layer.Layer<Transactional, never, ControlSql | PgClient.PgClient> = Layer.effect(
  Transactional,
  make
)

const recordParams = (
  { lease, leaseMs, mark, position, step }: OnceWrite,
  result: Uint8Array | undefined,
  key: string | null
): ReadonlyArray<unknown> => [
  Bind.text(lease.jobId),
  Bind.uuid(lease.leaseId),
  Bind.bigint(lease.fence),
  Bind.bigint(leaseMs),
  Bind.text(step),
  Bind.int(position),
  Bind.text(mark ?? null),
  Bind.bytea(result ?? null),
  Bind.text(key)
]

function idleLimit(limit: string): string {
  return `select case when current_setting('idle_in_transaction_session_timeout') = '0'
    then set_config('idle_in_transaction_session_timeout', ${limit}, true) end`
}

const rolledBack = (operation: string): Effect.Effect<never, StoreUnavailable> =>
  new StoreUnavailable({ operation, message: "the body has ended the transaction it runs in" })

const ONCE = "Transactional.once"
const COMPLETE = "Transactional.complete"
const OLD_SNAPSHOT = "the transaction's snapshot is older than the claimed effect key; repeat it"

interface EffectRow {
  readonly result: Uint8Array | null
  readonly job_id: string
  readonly step: string
  readonly fence: bigint
}
