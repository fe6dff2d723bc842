/**
 * The sweeps and the leases under which one process at a time does them. The sweeps are the functions of
 * `0006_duties.sql`, `reclaim_expired` of `0005_settle.sql` and `quarantine_sweep` of `0010_quarantine.sql`.
 */
import { Duties, type Reclaimed, type RedriveStep } from "@headgate/core/Duties"
import type { JobId } from "@headgate/core/Ids"
import type { RedrivePause, RedriveState } from "@headgate/core/Redrive"
import type { State, TerminalReason } from "@headgate/core/State"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const announcer = yield* Announcer
  const claim = statement(
    "Duties.claimDuty",
    `insert into headgate.duty as d (name, holder, expires_at_ms) values ($1, $2, headgate.now_ms() + $3)
    on conflict (name) do update set holder = excluded.holder, expires_at_ms = excluded.expires_at_ms
      where d.holder = excluded.holder or d.expires_at_ms <= headgate.now_ms()
    returning 1 as held`
  )
  const resign = statement("Duties.releaseDuty", "delete from headgate.duty d where d.name = $1 and d.holder = $2")
  const promoteDue = statement<PromotedRow>("Duties.promoteDue", "select * from headgate.promote_due($1)")
  const reclaimExpired = statement<ReclaimedRow>("Duties.reclaimExpired", "select * from headgate.reclaim_expired($1)")
  const expireDue = statement<{ job_id: JobId }>("Duties.expireDue", "select * from headgate.expire_due($1)")
  const quarantineSweep = statement<{ moved: ReadonlyArray<JobId>; is_done: boolean }>(
    "Duties.quarantineSweep",
    "select * from headgate.quarantine_sweep($1)"
  )
  const evictRetained = statement<{ jobs: number }>(
    "Duties.evictRetained",
    "select headgate.evict_retained($1) as jobs"
  )
  const observeHolds = statement<{ changes: number }>(
    "Duties.observeHolds",
    "select headgate.observe_holds($1) as changes"
  )
  const redriveStep = statement<RedriveRow>("Duties.redriveStep", "select * from headgate.redrive_step()")

  return Duties.of({
    claimDuty: (duty, holder, leaseMs) =>
      Effect.map(claim([Bind.text(duty), Bind.text(holder), Bind.bigint(leaseMs)]), (rows) => rows.length > 0),
    releaseDuty: (duty, holder) => Effect.asVoid(resign([Bind.text(duty), Bind.text(holder)])),
    promoteDue: Effect.fn("Duties.promoteDue")(function*(limit) {
      const [row] = yield* promoteDue([Bind.int(limit)])
      yield* announcer.announce(row?.queues ?? [])
      const next = row?.next_due_in_ms ?? undefined
      return { promoted: row?.promoted ?? 0, nextDueInMs: next === undefined ? undefined : Number(next) }
    }),
    reclaimExpired: (limit) => Effect.map(reclaimExpired([Bind.int(limit)]), (rows) => rows.map(reclaimed)),
    expireDue: (limit) => Effect.map(expireDue([Bind.int(limit)]), (rows) => rows.map((row) => row.job_id)),
    quarantineSweep: (limit) =>
      Effect.map(
        quarantineSweep([Bind.int(limit)]),
        ([row]) => ({ jobIds: row?.moved ?? [], isDone: row?.is_done ?? true })
      ),
    evictRetained: (limit) => Effect.map(evictRetained([Bind.int(limit)]), ([row]) => row?.jobs ?? 0),
    observeHolds: (limit) => Effect.map(observeHolds([Bind.int(limit)]), ([row]) => row?.changes ?? 0),
    redriveStep: Effect.fnUntraced(function*() {
      const [row] = yield* redriveStep([])
      if (row === undefined) return { step: undefined, nextDueInMs: undefined }
      yield* announcer.announce(row.queues)
      const nextDueInMs = row.next_in_ms === null ? undefined : Number(row.next_in_ms)
      return { step: toStep(row), nextDueInMs }
    })()
  })
})

export const layer: Layer.Layer<Duties, never, ControlSql | Announcer> = Layer.effect(Duties, make)

interface PromotedRow {
  readonly promoted: number
  readonly queues: ReadonlyArray<string> | null
  readonly next_due_in_ms: bigint | null
}

interface ReclaimedRow {
  readonly job_id: JobId
  readonly kind: string
  readonly worker: string
  readonly crash_attempt: number
  readonly state: State
  readonly reason: TerminalReason | null
  readonly closed: string | null
}

interface RedriveRow {
  readonly redrive_id: string | null
  readonly moved: number
  readonly to_state: RedriveState | null
  readonly pause: RedrivePause | null
  readonly queues: ReadonlyArray<string>
  readonly next_in_ms: bigint | null
}

const toStep = (row: RedriveRow): RedriveStep | undefined =>
  row.redrive_id === null || row.to_state === null
    ? undefined
    : { redriveId: row.redrive_id, moved: row.moved, state: row.to_state, pausedFor: row.pause ?? undefined }

const reclaimed = (row: ReclaimedRow): Reclaimed => ({
  jobId: row.job_id,
  kind: row.kind,
  worker: row.worker,
  crashAttempt: row.crash_attempt,
  state: row.state,
  reason: row.reason ?? undefined,
  closedFingerprint: row.closed ?? undefined
})
