/**
 * Background work that keeps the queue healthy, done by one process at a time under a store lease. Every sweep is
 * bounded by `limit`, skips rows that others hold, and re-checks its condition in the statement that writes.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { JobId, WorkerId } from "./Ids.ts"
import type { RedrivePause, RedriveState } from "./Redrive.ts"
import type { StoreUnavailable } from "./Refusals.ts"
import type { State, TerminalReason } from "./State.ts"

/** The name of the duty that carries redrives out. */
export const REDRIVE_DUTY = "redrive"

/** A job whose lease ran out. `state` is `retryable`, or `quarantined` when a limit of crashes was reached: see `reason`. */
export interface Reclaimed {
  readonly jobId: JobId
  readonly kind: string
  readonly worker: string
  readonly crashAttempt: number
  readonly state: State
  readonly reason?: TerminalReason | undefined
  /** The fingerprint that this crash has closed. */
  readonly closedFingerprint?: string | undefined
}

export interface QuarantineSweep {
  /** Jobs that waited under a closed fingerprint, and are quarantined now. */
  readonly jobIds: ReadonlyArray<JobId>
  /** No job is left that the sweep has not looked at since its fingerprint was closed. */
  readonly isDone: boolean
}

export interface Promotion {
  readonly promoted: number
  /** Store time until the next waiting job falls due; undefined when none waits. */
  readonly nextDueInMs: number | undefined
}

/** A step of a redrive, and where the redrive stands after it. */
export interface RedriveStep {
  readonly redriveId: string
  /** Jobs of this step that became available. */
  readonly moved: number
  readonly state: RedriveState
  readonly pausedFor: RedrivePause | undefined
}

export interface RedriveRound {
  /** Undefined when none was due. */
  readonly step: RedriveStep | undefined
  /** Store time until the next step is due; undefined when no redrive runs. */
  readonly nextDueInMs: number | undefined
}

export class Duties extends Context.Service<Duties, {
  /** True when `holder` holds the duty for the next `leaseMs`; call again to keep it. */
  readonly claimDuty: (duty: string, holder: WorkerId, leaseMs: number) => Effect.Effect<boolean, StoreUnavailable>
  readonly releaseDuty: (duty: string, holder: WorkerId) => Effect.Effect<void, StoreUnavailable>
  /** `scheduled` and `retryable` jobs that are due become `available`, and pinned ones that are free to fall back do. */
  readonly promoteDue: (limit: number) => Effect.Effect<Promotion, StoreUnavailable>
  /**
   * Running jobs with an expired lease: charged as a crash, sent behind the work already waiting, or quarantined. All
   * that one worker lost at once is one strike for each fingerprint.
   */
  readonly reclaimExpired: (limit: number) => Effect.Effect<ReadonlyArray<Reclaimed>, StoreUnavailable>
  /** Jobs past their deadline or their time in the queue are archived; a running holder is refused from then on. */
  readonly expireDue: (limit: number) => Effect.Effect<ReadonlyArray<JobId>, StoreUnavailable>
  /** Looks at the next `limit` jobs of the store for those that wait under a closed fingerprint. Rests while none is new. */
  readonly quarantineSweep: (limit: number) => Effect.Effect<QuarantineSweep, StoreUnavailable>
  /** Terminal jobs past their retention are deleted, with their step records, attempts, progress and output. */
  readonly evictRetained: (limit: number) => Effect.Effect<number, StoreUnavailable>
  /** Notes which of the first waiting jobs are held, and by which policy; answers how many intervals it opened or closed. */
  readonly observeHolds: (limit: number) => Effect.Effect<number, StoreUnavailable>
  /** The next step of the redrive that is due: a batch of its jobs is moved, or the outcome of its stage is looked at. */
  readonly redriveStep: Effect.Effect<RedriveRound, StoreUnavailable>
}>()("@headgate/core/Duties") {}
