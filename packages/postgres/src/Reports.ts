/**
 * Progress, tracked work and output of running attempts. The job's row is locked by the statement that writes, so that a reclaim
 * cannot slip between the check of the lease and the write.
 */
import type { LeaseRef } from "@headgate/core/Ids"
import { LeaseRejected, type StoreUnavailable } from "@headgate/core/Refusals"
import { OutputStore, ProgressStore } from "@headgate/core/Reports"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql, type Statement } from "./ControlSql.ts"

/** The first report of a job marks it, so that its removal knows what else to remove. */
const held = `with held as (
  select j.id, j.fence, j.state, j.has_reports, j.lease_id = $2 and j.fence = $3 as is_current
  from headgate.job j where j.id = $1 for no key update
), marked as (
  update headgate.job j set has_reports = true from held h where j.id = h.id and h.is_current and not h.has_reports
)`
const answer = "select h.state, h.is_current from held h"

const makeProgress = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const report = statement<HeldRow>(
    "ProgressStore.report",
    `${held}, written as (
      insert into headgate.progress as p (job_id, fence, current, total, message, updated_at_ms)
      select h.id, h.fence, $4, $5, $6, headgate.now_ms() from held h where h.is_current
      on conflict (job_id) do update set fence = excluded.fence, current = excluded.current, total = excluded.total,
        message = excluded.message, updated_at_ms = excluded.updated_at_ms
    ) ${answer}`
  )
  const track = statement<HeldRow>(
    "ProgressStore.track",
    `${held}, written as (
      insert into headgate.tracked as t (job_id, fence, is_waiting, omitted, names, states, ages_ms, updated_at_ms)
      select h.id, h.fence, $4, $5, $6, $7, $8, headgate.now_ms() from held h where h.is_current
      on conflict (job_id) do update set fence = excluded.fence, is_waiting = excluded.is_waiting,
        omitted = excluded.omitted, names = excluded.names, states = excluded.states, ages_ms = excluded.ages_ms,
        updated_at_ms = excluded.updated_at_ms
    ) ${answer}`
  )
  return ProgressStore.of({
    report: Effect.fn("ProgressStore.report")(function*(lease, { current, message, total }) {
      yield* verified(report, lease, [Bind.bigint(current), Bind.bigint(total), Bind.text(message ?? null)])
    }),
    track: Effect.fn("ProgressStore.track")(function*(lease, { isWaiting, omitted, work }) {
      yield* verified(track, lease, [
        Bind.bool(isWaiting),
        Bind.int(omitted),
        Bind.texts(work.map(({ name }) => name)),
        Bind.texts(work.map(({ state }) => state)),
        Bind.bigints(work.map(({ inStateForMs }) => Math.max(0, Math.round(inStateForMs))))
      ])
    })
  })
})

const makeOutput = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const put = statement<HeldRow>(
    "OutputStore.put",
    `${held}, written as (
      insert into headgate.output as o (job_id, fence, version, bytes, updated_at_ms)
      select h.id, h.fence, $4, $5, headgate.now_ms() from held h where h.is_current
      on conflict (job_id) do update set fence = excluded.fence, version = excluded.version, bytes = excluded.bytes,
        updated_at_ms = excluded.updated_at_ms
    ) ${answer}`
  )
  return OutputStore.of({
    put: Effect.fn("OutputStore.put")(function*(lease, { bytes, version }) {
      yield* verified(put, lease, [Bind.int(version), Bind.bytea(bytes)])
    })
  })
})

export const layer: Layer.Layer<ProgressStore | OutputStore, never, ControlSql> = Layer.merge(
  Layer.effect(ProgressStore, makeProgress),
  Layer.effect(OutputStore, makeOutput)
)

const verified = (
  write: Statement<HeldRow>,
  { fence, jobId, leaseId }: LeaseRef,
  values: ReadonlyArray<unknown>
): Effect.Effect<void, LeaseRejected | StoreUnavailable> =>
  Effect.flatMap(
    write([Bind.text(jobId), Bind.uuid(leaseId), Bind.bigint(fence), ...values]),
    ([row]) => row?.is_current === true ? Effect.void : new LeaseRejected({ jobId, state: row?.state ?? "missing" })
  )

interface HeldRow {
  readonly state: string
  readonly is_current: boolean | null
}
