/** Stored checkpoints read back, by the gate for resumed jobs and by `Inspect`. */
import type { Checkpoint, StepKind, StepRecord } from "@headgate/core/Checkpoint"
import type { JobId, LeaseId } from "@headgate/core/Ids"
import { StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import type { ControlSql } from "./ControlSql.ts"

/**
 * The checkpoints of those of the given jobs that have written one. With a lease, it must be the jobs' own where they are
 * read: right after a failover a connection may still reach the old primary, which does not know of the claim and shows
 * other records than the attempt has to go on from.
 */
export const reader = (
  statement: ControlSql["Service"]["statement"],
  operation: string
): (ids: ReadonlyArray<JobId>, lease?: LeaseId) => Effect.Effect<ReadonlyMap<JobId, Checkpoint>, StoreUnavailable> => {
  const heads = statement<HeadRow>(
    operation,
    `select j.id, j.step_set, j.checkpoint_version, j.in_progress_step, j.cursor_step, j.cursor, j.crashes_by_step
    from headgate.job j
    where j.id = any($1) and (j.has_steps or j.in_progress_step is not null or j.cursor_step is not null)
      and ($2::uuid is null or j.lease_id = $2)`
  )
  // A row without a step for each job, so that an answer without records is one of the same server.
  const steps = statement<StepRow | JobRow>(
    operation,
    `select s.job_id, s.step, s.kind, s.position, s.wake_at_ms, s.result
    from headgate.step s where s.job_id = any($1)
    union all
    select j.id, null, null, null, null, null from headgate.job j
    where j.id = any($1) and ($2::uuid is null or j.lease_id = $2)
    order by 1, 4, 2`
  )
  return Effect.fnUntraced(function*(ids, lease) {
    const params = [Bind.texts(ids), Bind.uuid(lease ?? null)]
    const rows = yield* heads(params)
    const all = yield* steps(params)
    const known = all.reduce((count, { step }) => step === null ? count + 1 : count, 0)
    if (lease !== undefined && (rows.length < ids.length || known < ids.length)) {
      return yield* new StoreUnavailable({ operation, message: "a claim is not known where its checkpoint was read" })
    }
    const records = new Map<JobId, Array<StepRecord>>(rows.map(({ id }) => [id, []]))
    for (const row of all) if (row.step !== null) records.get(row.job_id)?.push(toRecord(row))
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

interface JobRow {
  readonly job_id: JobId
  readonly step: null
}

interface StepRow {
  readonly job_id: JobId
  readonly step: string
  readonly kind: StepKind
  readonly position: number
  readonly wake_at_ms: bigint | null
  readonly result: Uint8Array | null
}
