/**
 * Renewal and settlement of leases. Successes go through the SQL function `succeed`, every other outcome through
 * `settle`; each row is checked against lease id and fence by the statement that writes it. What matched no row
 * is looked up afterwards: an earlier settlement whose answer was lost counts as applied.
 *
 * A row that another transaction holds does not hold up the others of its batch for long: the statement gives up, and is
 * repeated over the rows that are free.
 */
import type { JobId, LeaseRef } from "@headgate/core/Ids"
import { Leases, type LostLease, type Settled, type Settlement } from "@headgate/core/Leases"
import type { OutcomeResult } from "@headgate/core/Outcome"
import type { State, TerminalReason } from "@headgate/core/State"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql, isLockTimeout, rollbackFaults, toUnavailable } from "./ControlSql.ts"
import * as SettleRows from "./SettleRows.ts"

/**
 * Ends attempts with success; takes `successParams`. Waits for rows that others hold, with `wait` no longer than so many
 * milliseconds.
 */
export const successSql = (wait: number | "null"): string =>
  `select * from headgate.succeed($1, $2, $3, $4, $5, ${wait})`

/**
 * As `successSql`, after the buckets were corrected; takes `SettleRows.correctionParams` in addition. The call that
 * settles needs the answer of the one that corrects, so it comes after it.
 */
export const chargedSuccessSql = (wait: number | "null"): string =>
  `select s.* from headgate.correct($1, $2, $3, $6, $7, $8, $9, $10, ${wait}) as corrected(wait_ms)
  cross join lateral headgate.succeed($1, $2, $3, $4, $5, corrected.wait_ms) s`

/** How long a batch waits for a row that another transaction holds. Renewals and sweeps are faster. */
const LOCK_WAIT_MS = 200

interface Success {
  readonly lease: LeaseRef
  readonly result: OutcomeResult | undefined
}

export const successParams = (items: ReadonlyArray<Success>): ReadonlyArray<unknown> => [
  ...leaseParams(items.map(({ lease }) => lease)),
  ...resultParams(items)
]

/** What all of a batch have in common travels once. */
const shortSuccessParams = (items: ReadonlyArray<Success>): ReadonlyArray<unknown> => {
  const [first] = items
  if (first === undefined || items.length === 1) return successParams(items)
  const { fence, leaseId } = first.lease
  if (items.some(({ lease }) => lease.leaseId !== leaseId || lease.fence !== fence)) return successParams(items)
  const jobs = Bind.texts(items.map(({ lease }) => lease.jobId))
  return [jobs, Bind.uuids([leaseId]), Bind.bigints([fence]), ...resultParams(items)]
}

const resultParams = (items: ReadonlyArray<Success>): ReadonlyArray<unknown> => {
  const hasResults = items.some(({ result }) => result !== undefined)
  return [
    // Shorter arrays are filled up with nulls.
    Bind.ints(hasResults ? items.map(({ result }) => result?.version ?? null) : []),
    Bind.bytes(hasResults ? items.map(({ result }) => result?.bytes ?? null) : [])
  ]
}

/** Job ids, lease ids and fences, in that order. */
const leaseParams = (leases: ReadonlyArray<LeaseRef>): ReadonlyArray<unknown> => [
  Bind.texts(leases.map(({ jobId }) => jobId)),
  Bind.uuids(leases.map(({ leaseId }) => leaseId)),
  Bind.bigints(leases.map(({ fence }) => fence))
]

const make = Effect.gen(function*() {
  const { client, statement } = yield* ControlSql
  const announcer = yield* Announcer
  const renew = statement<{ job_id: JobId; reason: LostLease["reason"] | "busy" }>(
    "Leases.renew",
    "select * from headgate.renew($1, $2, $3, $4)"
  )
  const succeed = statement<SucceededRow>(SETTLE, successSql(LOCK_WAIT_MS))
  const succeedCharged = statement<SucceededRow>(SETTLE, chargedSuccessSql(LOCK_WAIT_MS))
  const settle = statement<SettledRow>(
    SETTLE,
    `select * from headgate.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, ${LOCK_WAIT_MS})`
  )
  const settleCharged = statement<SettledRow>(
    SETTLE,
    `select s.* from headgate.correct($1, $2, $3, $13, $14, $15, $16, $17, ${LOCK_WAIT_MS}) as corrected(wait_ms)
    cross join lateral headgate.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, corrected.wait_ms) s`
  )
  const lockFree = statement<{ job_id: JobId }>(
    SETTLE,
    `select j.id as job_id from unnest($1, $2, $3) as i(job_id, lease_id, fence)
    join headgate.job j on j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
    order by j.id for update of j skip locked`
  )
  const lookUp = statement<LookUpRow>(
    SETTLE,
    `select j.id as job_id, j.state, i.lease_id::text, i.fence,
      coalesce(j.lease_id = i.lease_id and j.fence = i.fence, false) as is_held,
      coalesce(j.last_lease_id = i.lease_id and j.fence = i.fence, false) or exists (select from headgate.attempt a
        where a.job_id = i.job_id and a.fence = i.fence and a.lease_id = i.lease_id) as is_ours
    from unnest($1, $2, $3) as i(job_id, lease_id, fence) join headgate.job j on j.id = i.job_id`
  )
  const unanswered = new Unanswered()

  /** All of one kind, as `SettleRows.statements` has put them together. */
  const write = (items: ReadonlyArray<Settlement>) => {
    const isCharged = items[0] !== undefined && SettleRows.isCharged(items[0])
    if (isSuccess(items[0])) {
      const successes = items.map(toSuccess)
      const rows = isCharged
        ? succeedCharged([...successParams(successes), ...SettleRows.correctionParams(items)])
        : succeed(shortSuccessParams(successes))
      return Effect.map(rows, ofEach(items))
    }
    const params = SettleRows.params(items)
    return isCharged ? settleCharged([...params, ...SettleRows.correctionParams(items)]) : settle(params)
  }

  /** Leaves out what others hold. */
  const writeFree = (items: ReadonlyArray<Settlement>) => {
    const locked = Effect.flatMap(lockFree(leaseParams(items.map(({ lease }) => lease))), (rows) => {
      const free = new Set(rows.map((row) => row.job_id))
      return rows.length === 0 ? Effect.succeed([]) : write(items.filter(({ lease }) => free.has(lease.jobId)))
    })
    return Effect.catchTag(rollbackFaults(client.withTransaction(locked)), "SqlError", toUnavailable(SETTLE))
  }

  const apply = Effect.fnUntraced(function*(items: ReadonlyArray<Settlement>) {
    const written = Effect.catch(
      write(items),
      (failure) => isLockTimeout(failure) ? writeFree(items) : Effect.fail(failure)
    )
    const rows = yield* Effect.tapError(written, () => Effect.sync(() => unanswered.add(items)))
    const freed = rows.filter((row) => row.state === "available").map((row) => row.queue ?? "")
    if (freed.length > 0) yield* announcer.announce([...new Set(freed)])
    return rows
  })

  const resolve = Effect.fnUntraced(function*(items: ReadonlyArray<Settlement>, answers: Answers) {
    const rows = yield* lookUp(leaseParams(items.map(({ lease }) => lease)))
    const found = new Map(rows.map((row) => [keyOf(row.job_id, row.lease_id, row.fence), row]))
    for (const item of items) {
      const key = keyOfLease(item.lease)
      answers.set(item.lease, decide(item, found.get(key), unanswered.has(key)))
    }
  })

  /** Fills in an answer for each lease of the batch. Of one job, each lease has a round of its own. */
  const settleAll = Effect.fnUntraced(function*(batch: ReadonlyArray<Settlement>, answers: Answers) {
    for (let left = batch; left.length > 0;) {
      const { first, others, repeats } = SettleRows.split(left)
      const work = Effect.forEach(SettleRows.statements(first), apply, { concurrency: 2 })
      const written = new Map<string, SettledRow>()
      for (const rows of yield* Effect.uninterruptible(work)) for (const row of rows) written.set(row.job_id, row)
      const open: Array<Settlement> = []
      for (const item of first) {
        const row = written.get(item.lease.jobId)
        if (row === undefined) open.push(item)
        else answers.set(item.lease, answerOf(row))
      }
      if (open.length > 0) yield* resolve(open, answers)
      for (const { lease, of } of repeats) answers.set(lease, answers.get(of) ?? rejected(lease.jobId, "missing"))
      left = others
    }
  })

  return Leases.of({
    renew: Effect.fn("Leases.renew")(function*(leases, leaseMs) {
      if (leases.length === 0) return { lost: [], busy: [] }
      const rows = yield* renew([...leaseParams(leases), Bind.bigint(leaseMs)])
      return {
        lost: rows.flatMap(({ job_id: jobId, reason }) => reason === "busy" ? [] : [{ jobId, reason }]),
        busy: rows.flatMap(({ job_id: jobId, reason }) => reason === "busy" ? [jobId] : [])
      }
    }),
    settle: Effect.fn("Leases.settle")(function*(batch) {
      const answers: Answers = new Map()
      yield* settleAll(batch, answers)
      unanswered.forget(batch)
      return batch.map(({ lease }) => answers.get(lease) ?? rejected(lease.jobId, "missing"))
    })
  })
})

export const layer: Layer.Layer<Leases, never, ControlSql | Announcer> = Layer.effect(Leases, make)

const SETTLE = "Leases.settle"

/** By the lease object itself: making a key for each would cost more than the rest. */
type Answers = Map<LeaseRef, Settled>

const isSuccess = (item: Settlement | undefined): boolean => item?.outcome._tag === "Success"

const toSuccess = ({ lease, outcome }: Settlement) => ({
  lease,
  result: outcome._tag === "Success" ? outcome.result : undefined
})

/** A row that is gone was deleted by this settlement if an earlier try of it got no answer. */
const decide = (item: Settlement, row: LookUpRow | undefined, isUnanswered: boolean): Settled => {
  const { jobId } = item.lease
  if (row !== undefined) {
    if (row.is_held) return { _tag: "Busy", jobId, state: "running" }
    return row.is_ours ? applied(jobId, row.state) : rejected(jobId, row.state)
  }
  return isUnanswered ? applied(jobId, "deleted") : rejected(jobId, "missing")
}

const answerOf = ({ closed, job_id: jobId, reason, state }: SettledRow): Settled => {
  if (reason === undefined || reason === null) return applied(jobId, state)
  return { _tag: "Applied", jobId, state, reason, closedFingerprint: closed ?? undefined }
}

const applied = (jobId: JobId, state: State | "deleted"): Settled => ({ _tag: "Applied", jobId, state })

const rejected = (jobId: JobId, state: State | "missing"): Settled => ({ _tag: "Rejected", jobId, state })

const keyOfLease = ({ fence, jobId, leaseId }: LeaseRef): string => keyOf(jobId, leaseId, fence)

const keyOf = (jobId: string, leaseId: string, fence: number | bigint): string => `${fence} ${leaseId} ${jobId}`

/** Settlements that may have deleted their row although their answer was lost; only the newest are remembered. */
class Unanswered {
  readonly keys = new Set<string>()
  readonly limit = 20_000

  add(items: ReadonlyArray<Settlement>): void {
    for (const { lease, outcome } of items) {
      if (outcome._tag === "Success" || outcome._tag === "Revoke") {
        this.keys.add(keyOfLease(lease))
      }
    }
    for (const key of this.keys) {
      if (this.keys.size <= this.limit) break
      this.keys.delete(key)
    }
  }

  has(key: string): boolean {
    return this.keys.has(key)
  }

  forget(items: ReadonlyArray<Settlement>): void {
    if (this.keys.size === 0) return
    for (const { lease } of items) this.keys.delete(keyOfLease(lease))
  }
}

/** A row without a job id answers for the whole batch. */
const ofEach = (items: ReadonlyArray<Settlement>) => (rows: ReadonlyArray<SucceededRow>): ReadonlyArray<SettledRow> =>
  rows.flatMap(({ job_id: jobId, state }) =>
    jobId === null ? items.map(({ lease }) => ({ job_id: lease.jobId, state })) : [{ job_id: jobId, state }]
  )

interface SucceededRow {
  readonly job_id: JobId | null
  readonly state: SettledRow["state"]
}

interface SettledRow {
  readonly job_id: JobId
  readonly state: State | "deleted"
  readonly queue?: string
  readonly reason?: TerminalReason | null
  /** Not without a reason: who closes its fingerprint does not wait under it. */
  readonly closed?: string | null
}

interface LookUpRow {
  readonly job_id: JobId
  readonly state: State
  readonly lease_id: string
  readonly fence: bigint
  readonly is_held: boolean
  readonly is_ours: boolean
}
