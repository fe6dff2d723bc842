/** A redrive as it is stored, and as it is told. */
import type { DeathReason } from "@headgate/core/DeathCallbacks"
import { REDRIVE_DUTY } from "@headgate/core/Duties"
import type { JobId } from "@headgate/core/Ids"
import type {
  RedriveDeadline,
  RedriveEvent,
  RedriveFilter,
  RedrivenJob,
  RedrivePause,
  RedriveResult,
  RedriveSettings,
  RedriveState,
  RedriveWait,
  Redriving
} from "@headgate/core/Redrive"
import * as Bind from "./Bind.ts"

export const selectSql = `select r.nth, r.id, r.state, r.pause, r.actor, r.note, r.named, r.kind, r.queue,
    r.partition_key, r.reason, r.error_tag, r.tag, r.from_ms, r.before_ms, r.within_ms, r.is_staged, r.max_failure_ratio,
    r.stage_wait_ms, r.batch, r.per_second, r.deadline, r.deadline_ms, r.created_at_ms, r.started_at_ms, r.ended_at_ms,
    r.moved, r.key_taken, r.deadline_passed, r.fingerprint_closed, r.not_archived, r.held, r.ended, r.failed,
    r.stage_size, r.stage_moved, r.stage_ended, r.stage_failed, case when r.state <> 'running' then null
      when not exists (select from headgate.duty d
        where d.name = '${REDRIVE_DUTY}' and d.expires_at_ms > headgate.now_ms()) then 'duty'
      when r.is_staged and (r.is_exhausted or r.stage_moved >= r.stage_size) then 'stage' end as waiting_for
  from headgate.redrive r`

/** From `is_staged` to `deadline_ms`. A ratio travels as text: the driver knows whole numbers by their value alone. */
export const settingsOf = (
  { batch, deadline, maxFailureRatio, perSecond, staged, stageWaitMs }: RedriveSettings
) => [
  Bind.bool(staged),
  Bind.text(String(maxFailureRatio)),
  Bind.bigint(stageWaitMs),
  Bind.int(batch),
  Bind.int(perSecond),
  Bind.text(typeof deadline === "string" ? deadline : "after"),
  Bind.bigint(typeof deadline === "string" ? null : deadline.afterMs)
]

export const toRedriving = (row: RedriveRow): Redriving => ({
  id: row.id,
  state: row.state,
  pausedFor: row.pause ?? undefined,
  waitingFor: row.waiting_for ?? undefined,
  actor: row.actor,
  note: row.note,
  filter: row.named === null ? toFilter(row) : undefined,
  named: row.named ?? undefined,
  staged: row.is_staged,
  maxFailureRatio: row.max_failure_ratio,
  stageWaitMs: Number(row.stage_wait_ms),
  batch: row.batch,
  perSecond: row.per_second,
  deadline: toDeadline(row),
  createdAtMs: Number(row.created_at_ms),
  startedAtMs: optional(row.started_at_ms),
  endedAtMs: optional(row.ended_at_ms),
  moved: Number(row.moved),
  skipped: {
    keyTaken: Number(row.key_taken),
    deadlinePassed: Number(row.deadline_passed),
    fingerprintClosed: Number(row.fingerprint_closed),
    notArchived: Number(row.not_archived),
    held: Number(row.held)
  },
  ended: row.is_staged ? Number(row.ended) : undefined,
  failed: row.is_staged ? Number(row.failed) : undefined,
  stage: row.is_staged
    ? { size: row.stage_size, moved: row.stage_moved, ended: row.stage_ended, failed: row.stage_failed }
    : undefined
})

export const toEvent = (row: EventRow): RedriveEvent => ({
  atMs: Number(row.at_ms),
  event: row.event,
  actor: row.actor ?? undefined,
  note: row.note
})

export const toJob = (row: JobRow): RedrivenJob => ({ jobId: row.job_id, result: results[row.result] })

const results = {
  moved: "moved",
  waiting: "waiting",
  key_taken: "keyTaken",
  deadline_passed: "deadlinePassed",
  fingerprint_closed: "fingerprintClosed",
  not_archived: "notArchived",
  held: "held"
} as const satisfies Record<string, RedriveResult>

/** Without what was not asked for. */
const toFilter = (row: RedriveRow): RedriveFilter => ({
  ...(row.kind === null ? {} : { kind: row.kind }),
  ...(row.queue === null ? {} : { queue: row.queue }),
  ...(row.partition_key === null ? {} : { partitionKey: row.partition_key }),
  ...(row.reason === null ? {} : { reason: row.reason }),
  ...(row.error_tag === null ? {} : { errorTag: row.error_tag }),
  ...(row.tag === null ? {} : { tag: row.tag }),
  ...(row.from_ms === null ? {} : { archivedFromMs: Number(row.from_ms) }),
  ...(row.before_ms === null ? {} : { archivedBeforeMs: Number(row.before_ms) }),
  ...(row.within_ms === null ? {} : { archivedWithin: Number(row.within_ms) })
})

const toDeadline = ({ deadline, deadline_ms }: RedriveRow): RedriveDeadline =>
  deadline === "after" ? { afterMs: Number(deadline_ms) } : deadline

const optional = (ms: bigint | null): number | undefined => ms === null ? undefined : Number(ms)

export interface RedriveRow {
  readonly nth: bigint
  readonly id: string
  readonly state: RedriveState
  readonly pause: RedrivePause | null
  readonly waiting_for: RedriveWait | null
  readonly actor: string
  readonly note: string
  readonly named: number | null
  readonly kind: string | null
  readonly queue: string | null
  readonly partition_key: string | null
  readonly reason: DeathReason | null
  readonly error_tag: string | null
  readonly tag: string | null
  readonly from_ms: bigint | null
  readonly before_ms: bigint | null
  readonly within_ms: bigint | null
  readonly is_staged: boolean
  readonly max_failure_ratio: number
  readonly stage_wait_ms: bigint
  readonly batch: number
  readonly per_second: number
  readonly deadline: "keep" | "clear" | "after"
  readonly deadline_ms: bigint | null
  readonly created_at_ms: bigint
  readonly started_at_ms: bigint | null
  readonly ended_at_ms: bigint | null
  readonly moved: bigint
  readonly key_taken: bigint
  readonly deadline_passed: bigint
  readonly fingerprint_closed: bigint
  readonly not_archived: bigint
  readonly held: bigint
  readonly ended: bigint
  readonly failed: bigint
  readonly stage_size: number
  readonly stage_moved: number
  readonly stage_ended: number
  readonly stage_failed: number
}

export interface EventRow {
  readonly at_ms: bigint
  readonly event: RedriveEvent["event"]
  readonly actor: string | null
  readonly note: string
}

export interface JobRow {
  readonly nth: bigint
  readonly job_id: JobId
  readonly result: keyof typeof results
}
