/** The rows that `Inspect` reads, and what it makes of them. */
import type { Fence, JobId, WorkerId } from "@headgate/core/Ids"
import type { AttemptRecord, JobSummary, StateCounts, WorkerMeta } from "@headgate/core/Inspect"
import { State } from "@headgate/core/State"
import type { JobTracked, TrackedState } from "@headgate/core/TrackedWork"
import type { WorkerCommand } from "@headgate/core/WorkerControl"
import * as LogText from "./LogText.ts"

export const toSummary = (row: JobRow): JobSummary => ({
  id: row.id,
  kind: row.kind,
  schemaVersion: row.schema_version,
  state: row.state,
  queue: row.queue,
  partitionKey: row.partition_key,
  priority: row.priority,
  attempt: row.attempt,
  maxAttempts: row.max_attempts,
  crashAttempt: row.crash_attempt,
  crashLimit: row.crash_limit,
  fence: Number(row.fence),
  fingerprint: row.fingerprint,
  tags: row.tags ?? [],
  enqueuedAtMs: Number(row.enqueued_at_ms),
  scheduledAtMs: Number(row.scheduled_at_ms),
  deadlineAtMs: optionalNumber(row.deadline_at_ms),
  claimedAtMs: optionalNumber(row.claimed_at_ms),
  finishedAtMs: optionalNumber(row.finished_at_ms),
  leaseExpiresAtMs: optionalNumber(row.lease_expires_at_ms),
  worker: row.worker ?? undefined,
  orphaned: row.orphaned,
  reason: row.reason ?? undefined
})

export const toAttempt = (row: AttemptRow): ReadonlyArray<AttemptRecord> =>
  row.fence === null ? [] : [{
    fence: Number(row.fence),
    worker: row.worker ?? "",
    startedAtMs: Number(row.started_at_ms),
    endedAtMs: Number(row.ended_at_ms),
    outcome: row.outcome ?? "",
    errorTag: row.error_tag ?? undefined,
    errorText: row.error_text ?? undefined,
    log: row.log === null ? undefined : LogText.decode(row.log)
  }]

export const toOpaque = ({ bytes, version }: OpaqueRow) =>
  bytes === null || version === null ? undefined : { version, bytes }

export const toProgress = (row: ProgressRow) =>
  row.fence === null ? undefined : {
    current: Number(row.current),
    total: Number(row.total),
    message: row.message ?? undefined,
    fence: toFence(row.fence),
    updatedAtMs: Number(row.updated_at_ms)
  }

export const toTracked = (row: TrackedRow): JobTracked | undefined => {
  if (row.fence === null) return undefined
  const updatedAtMs = Number(row.updated_at_ms)
  return {
    fence: toFence(row.fence),
    updatedAtMs,
    isWaiting: row.is_waiting,
    omitted: row.omitted,
    work: row.names.map((name, at) => ({
      name,
      state: row.states[at] ?? "running",
      enteredAtMs: updatedAtMs - Number(row.ages_ms[at])
    }))
  }
}

export const toCounts = (rows: ReadonlyArray<CountRow>): StateCounts => {
  const found = new Map(rows.map(({ count, state }) => [state, count]))
  // SAFETY: the entries are one for each state.
  const counts = Object.fromEntries(State.literals.map((state) => [state, found.get(state) ?? 0])) as Record<
    State,
    number
  >
  return { counts, approximate: rows.some((row) => row.is_cut) }
}

export const toWorker = (row: WorkerRow): WorkerMeta => ({
  id: row.id,
  queues: row.queues,
  kinds: row.kinds.map((kind, index) => ({ kind, version: row.versions[index] ?? 0 })),
  capacity: row.capacity,
  running: row.running,
  startedAtMs: Number(row.started_at_ms),
  seenAtMs: Number(row.seen_at_ms),
  isLive: row.is_live,
  status: row.is_draining ? "draining" : row.is_quiet ? "quiet" : "working",
  isResigned: row.is_resigned,
  command: row.command === null ? undefined : {
    seq: Number(row.command_seq),
    command: row.command,
    actor: row.command_actor ?? undefined,
    atMs: Number(row.command_at_ms),
    isApplied: row.applied_seq >= row.command_seq
  }
})

const optionalNumber = (value: bigint | null): number | undefined => value === null ? undefined : Number(value)

// SAFETY: a fence in the store is a whole number below 2^53.
export const toFence = (value: bigint | null): Fence => Number(value) as Fence

export interface JobRow {
  readonly id: JobId
  readonly kind: string
  readonly schema_version: number
  readonly state: State
  readonly queue: string
  readonly partition_key: string
  readonly priority: number
  readonly attempt: number
  readonly max_attempts: number
  readonly crash_attempt: number
  readonly crash_limit: number
  readonly fence: bigint
  readonly fingerprint: string
  readonly tags: ReadonlyArray<string> | null
  readonly enqueued_at_ms: bigint
  readonly scheduled_at_ms: bigint
  readonly deadline_at_ms: bigint | null
  readonly claimed_at_ms: bigint | null
  readonly finished_at_ms: bigint | null
  readonly lease_expires_at_ms: bigint | null
  readonly worker: string | null
  readonly orphaned: boolean
  readonly reason: string | null
}

/** Without jobs one row, in which those columns are null. */
export type ListedRow =
  & { readonly next_ms: bigint | null; readonly next_id: string | null; readonly is_cut: boolean }
  & (JobRow | { readonly [column in keyof JobRow]: null })

/** All null for a job without attempts. */
export interface AttemptRow {
  readonly fence: bigint | null
  readonly worker: string | null
  readonly started_at_ms: bigint | null
  readonly ended_at_ms: bigint | null
  readonly outcome: string | null
  readonly error_tag: string | null
  readonly error_text: string | null
  readonly log: string | null
}

export interface OpaqueRow {
  readonly version: number | null
  readonly bytes: Uint8Array | null
}

export interface ProgressRow {
  readonly current: bigint | null
  readonly total: bigint | null
  readonly message: string | null
  readonly fence: bigint | null
  readonly updated_at_ms: bigint | null
}

/** All null where `fence` is. */
export interface TrackedRow {
  readonly fence: bigint | null
  readonly updated_at_ms: bigint
  readonly omitted: number
  readonly is_waiting: boolean
  readonly names: ReadonlyArray<string>
  readonly states: ReadonlyArray<TrackedState>
  readonly ages_ms: ReadonlyArray<bigint>
}

export interface CountRow {
  readonly state: State
  readonly count: number
  readonly is_cut: boolean
}

export interface WorkerRow {
  readonly id: WorkerId
  readonly queues: ReadonlyArray<string>
  readonly kinds: ReadonlyArray<string>
  readonly versions: ReadonlyArray<number>
  readonly capacity: number
  readonly running: number
  readonly started_at_ms: bigint
  readonly seen_at_ms: bigint
  readonly is_live: boolean
  readonly is_quiet: boolean
  readonly is_resigned: boolean
  readonly is_draining: boolean
  readonly command: WorkerCommand | null
  readonly command_actor: string | null
  readonly command_at_ms: bigint | null
  readonly command_seq: bigint
  readonly applied_seq: bigint
}

export interface FailureRow {
  readonly tag: string | null
  readonly message: string | null
  readonly encoded: Uint8Array | null
}
