/** Stored checkpoints read back, by the gate for resumed jobs and by `Inspect`. */
import type { Checkpoint, StepKind, StepRecord } from "@headgate/core/Checkpoint"
import type { JobId } from "@headgate/core/Ids"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import type { ControlSql } from "./ControlSql.ts"

/** The checkpoints of those of the given jobs that have written one. */
export const reader = (
  statement: ControlSql["Service"]["statement"],
  operation: string
): (ids: ReadonlyArray<JobId>) => Effect.Effect<ReadonlyMap<JobId, Checkpoint>, StoreUnavailable> => {
  const heads = statement<HeadRow>(
    operation,
    `select j.id, j.step_set, j.checkpoint_version, j.in_progress_step, j.cursor_step, j.cursor, j.crashes_by_step
    from headgate.job j
    where j.id = any($1) and (j.has_steps or j.in_progress_step is not null or j.cursor_step is not null)`
  )
  const steps = statement<StepRow>(
    operation,
    `select s.job_id, s.step, s.kind, s.position, s.wake_at_ms, s.result
    from headgate.step s where s.job_id = any($1) order by s.job_id, s.position, s.step`
  )
  return Effect.fnUntraced(function*(ids) {
    const params = [Bind.texts(ids)]
    const records = new Map<JobId, Array<StepRecord>>()
    const rows = yield* heads(params)
    for (const { id } of rows) records.set(id, [])
    for (const row of yield* steps(params)) records.get(row.job_id)?.push(toRecord(row))
    return new Map(rows.map((row) => [row.id, toCheckpoint(row, records.get(row.id) ?? [])]))
  })
}

const toCheckpoint = (row: HeadRow, records: ReadonlyArray<StepRecord>): Checkpoint => ({
  stepSet: row.step_set ?? undefined,
  version: row.checkpoint_version,
  records,
  inProgress: row.in_progress_step ?? undefined,
  cursor: row.cursor_step === null || row.cursor === null ? undefined : { step: row.cursor_step, bytes: row.cursor },
  crashesByStep: row.crashes_by_step ?? {}
})

const toRecord = (row: StepRow): StepRecord => ({
  step: row.step,
  kind: row.kind,
  position: row.position,
  result: row.result ?? undefined,
  wakeAtMs: row.wake_at_ms === null ? undefined : Number(row.wake_at_ms)
})

interface HeadRow {
  readonly id: JobId
  readonly step_set: ReadonlyArray<string> | null
  readonly checkpoint_version: number
  readonly in_progress_step: string | null
  readonly cursor_step: string | null
  readonly cursor: Uint8Array | null
  readonly crashes_by_step: Readonly<Record<string, number>> | null
}

interface StepRow {
  readonly job_id: JobId
  readonly step: string
  readonly kind: StepKind
  readonly position: number
  readonly wake_at_ms: bigint | null
  readonly result: Uint8Array | null
}
