/**
 * Reads for operators and tests. No read costs more than the answer is long, and none returns payload, result, output
 * or cursor unless that is what was asked for.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { AttemptLog } from "./AttemptLog.ts"
import type { Checkpoint } from "./Checkpoint.ts"
import type { JobId, WorkerId } from "./Ids.ts"
import { refuseName } from "./Kind.ts"
import { refuseInteger } from "./Millis.ts"
import type { JobOutput, JobResult } from "./Output.ts"
import type { JobProgress } from "./Progress.ts"
import { Invalid, type NotFound, type StoreUnavailable } from "./Refusals.ts"
import { State, TerminalReason } from "./State.ts"
import type { JobTracked } from "./TrackedWork.ts"
import type { WorkerCommand } from "./WorkerControl.ts"

export interface JobSummary {
  readonly id: JobId
  readonly kind: string
  readonly schemaVersion: number
  readonly state: State
  readonly queue: string
  readonly partitionKey: string
  readonly priority: number
  readonly attempt: number
  readonly maxAttempts: number
  readonly crashAttempt: number
  readonly crashLimit: number
  readonly fence: number
  readonly fingerprint: string
  readonly tags: ReadonlyArray<string>
  readonly enqueuedAtMs: number
  readonly scheduledAtMs: number
  readonly deadlineAtMs: number | undefined
  readonly claimedAtMs: number | undefined
  readonly finishedAtMs: number | undefined
  readonly leaseExpiresAtMs: number | undefined
  readonly worker: string | undefined
  /** Was reclaimed after a crash at least once. */
  readonly orphaned: boolean
  /** Why it stands where it stands: `exhausted`, `fatal`, `deadline`, `crash_limit`... */
  readonly reason: string | undefined
}

/** Which jobs to list. `available` ones are not: they stand in the order of the gate, group by group. */
export interface JobsQuery {
  readonly state: Exclude<State, "available">
  readonly kind?: string | undefined
  readonly queue?: string | undefined
  readonly reason?: TerminalReason | undefined
  /** `next` of the page before. */
  readonly after?: string | undefined
  /** 1 to 1000. Default 50. */
  readonly limit?: number | undefined
}

export interface JobsPage {
  /**
   * The newest first: by their end (`completed` and `cancelled` by the end of their retention), `running` by their start,
   * `pending` by their enqueue. `scheduled` and `retryable` begin with what is due first.
   */
  readonly items: ReadonlyArray<JobSummary>
  /**
   * `after` of the next page; undefined on the last one. A page looks at 10,000 jobs at most, so that one whose conditions
   * few jobs meet may be short or empty, and yet have a next.
   */
  readonly next: string | undefined
  /**
   * More than 10,000 are `running`, `pending`, `quarantined` or `undecodable`, and only so many of them were looked at: of
   * those that rest a `queue` selects its own.
   */
  readonly approximate: boolean
}

/** One ended attempt. A clean first success has no row of its own: it is read from the job. */
export interface AttemptRecord {
  readonly fence: number
  readonly worker: string
  readonly startedAtMs: number
  readonly endedAtMs: number
  readonly outcome: string
  readonly errorTag: string | undefined
  readonly errorText: string | undefined
  /** Undefined when it logged nothing, succeeded, or lost its lease: whoever lost that can no longer write. */
  readonly log: AttemptLog | undefined
}

/** The error of a job's latest ended attempt. */
export interface JobFailure {
  readonly tag: string
  readonly message: string
  /** The typed failure in the task's own error schema; undefined for defects, timeouts and undeclared errors. */
  readonly encoded: Uint8Array | undefined
}

export interface StateCounts {
  readonly counts: Readonly<Record<State, number>>
  /** A bounded scan stopped early: the true numbers are at least these. */
  readonly approximate: boolean
}

export interface WorkerMeta {
  readonly id: WorkerId
  readonly queues: ReadonlyArray<string>
  readonly kinds: ReadonlyArray<{ readonly kind: string; readonly version: number }>
  readonly capacity: number
  readonly running: number
  readonly startedAtMs: number
  readonly seenAtMs: number
  readonly isLive: boolean
  /** As it said at its last heartbeat. `quiet` and `draining` workers take no work. */
  readonly status: "working" | "quiet" | "draining"
  /** It does no duties until it is told to resume. */
  readonly isResigned: boolean
  /** The last command to it, by `WorkerControl.tell`. */
  readonly command: ToldCommand | undefined
}

export interface ToldCommand {
  readonly seq: number
  readonly command: WorkerCommand
  readonly actor: string | undefined
  readonly atMs: number
  /** The worker has said that it took it up, and all before it. */
  readonly isApplied: boolean
}

export class Inspect extends Context.Service<Inspect, {
  readonly job: (id: JobId) => Effect.Effect<JobSummary, NotFound | StoreUnavailable>
  /** Jobs of one state, without payloads, a page at a time. */
  readonly jobs: (query: JobsQuery) => Effect.Effect<JobsPage, Invalid | StoreUnavailable>
  /** Oldest first. */
  readonly attempts: (id: JobId) => Effect.Effect<ReadonlyArray<AttemptRecord>, NotFound | StoreUnavailable>
  /** Undefined for a job that never used steps. */
  readonly checkpoint: (id: JobId) => Effect.Effect<Checkpoint | undefined, NotFound | StoreUnavailable>
  /** As the next attempt will be given it, with its version. */
  readonly payload: (id: JobId) => Effect.Effect<JobResult, NotFound | StoreUnavailable>
  readonly result: (id: JobId) => Effect.Effect<JobResult | undefined, NotFound | StoreUnavailable>
  /** Undefined when the latest attempt left no error. */
  readonly failure: (id: JobId) => Effect.Effect<JobFailure | undefined, NotFound | StoreUnavailable>
  readonly progress: (id: JobId) => Effect.Effect<JobProgress | undefined, NotFound | StoreUnavailable>
  /** What the running attempt tracks; undefined when none runs, or it tracks nothing. */
  readonly tracked: (id: JobId) => Effect.Effect<JobTracked | undefined, NotFound | StoreUnavailable>
  readonly output: (id: JobId) => Effect.Effect<JobOutput | undefined, NotFound | StoreUnavailable>
  /** At most 10,000 rows per state are counted. */
  readonly counts: (queue?: string) => Effect.Effect<StateCounts, StoreUnavailable>
  readonly workers: Effect.Effect<ReadonlyArray<WorkerMeta>, StoreUnavailable>
  /** Kinds with waiting jobs that no live worker knows at the needed version, by queue. */
  readonly unknownKinds: Effect.Effect<
    ReadonlyArray<{ readonly queue: string; readonly kind: string; readonly version: number }>,
    StoreUnavailable
  >
}>()("@headgate/core/Inspect") {}

const MAX_JOBS_PAGE = 1000
const listed: ReadonlySet<string> = new Set(State.literals.filter((state) => state !== "available"))
const reasons: ReadonlySet<string> = new Set(TerminalReason.literals)

export const refuseJobsQuery = ({ after, kind, limit = 1, queue, reason, state }: JobsQuery): Invalid | undefined => {
  if (!listed.has(state)) {
    const message = String(state) === "available"
      ? "available jobs are not listed: Explain.fleet and Policies.partitions tell what waits, and for what"
      : `there is no state ${String(state)}`
    return new Invalid({ field: "state", message })
  }
  if (reason !== undefined && !reasons.has(reason)) {
    return new Invalid({ field: "reason", message: `no job ends for ${String(reason)}` })
  }
  if (after !== undefined && !/^\d{1,15} /.test(after)) {
    return new Invalid({ field: "after", message: "after must be the next of the page before" })
  }
  return (kind === undefined ? undefined : refuseName("kind", kind)) ??
    (queue === undefined ? undefined : refuseName("queue", queue)) ??
    refuseInteger("limit", limit, 1, MAX_JOBS_PAGE, " jobs")
}
