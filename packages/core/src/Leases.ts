/**
 * Time-limited ownership of running jobs. Only the holder of the current lease and fence may renew or settle.
 * Called by the worker; fulfilled by a store.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { AttemptLog } from "./AttemptLog.ts"
import type { Fence, JobId, LeaseRef } from "./Ids.ts"
import type { Outcome } from "./Outcome.ts"
import type { StoreUnavailable } from "./Refusals.ts"
import type { State, TerminalReason } from "./State.ts"

/** Why an attempt stops owning its job; a handler reads it through `Job.interruption`. */
export type InterruptionReason =
  | "lease_lost"
  | "timeout"
  | "step_timeout"
  | "progress_stalled"
  | "deadline"
  | "operator_cancel"
  | "shutdown"
  | "superseded"

export interface LostLease {
  readonly jobId: JobId
  /** Of the attempt that lost its lease: a later attempt of the job on the same worker is not meant. */
  readonly fence?: Fence | undefined
  readonly reason: Extract<InterruptionReason, "lease_lost" | "operator_cancel" | "superseded" | "deadline">
}

export interface Renewal {
  /** Leases that are no longer current. Everything else asked about is still owned. */
  readonly lost: ReadonlyArray<LostLease>
  /** Owned, but not extended: another statement held the row. The next renewal tells. */
  readonly busy: ReadonlyArray<JobId>
}

/** What an attempt really cost a rate class, where that differs from the estimate it was charged at admission. */
export interface Charge {
  /** Left out: every class the job names. One that the job does not name is passed over. */
  readonly class?: string | undefined
  /** Left out: every bucket of the class that the job names. */
  readonly key?: string | undefined
  /** In the unit of the weights; 0 gives all of the estimate back. */
  readonly actual: number
}

/** The most one attempt can be said to have cost. */
export const MAX_CHARGE = 1_000_000_000

/** The longest time from now, a day, that an attempt can have its lease extended to. */
export const MAX_LEASE_EXTENSION_MS = 86_400_000

export interface Settlement {
  readonly lease: LeaseRef
  readonly outcome: Outcome
  /**
   * The buckets get back, or lose, the difference to the estimate, in the transaction that settles; of several for one
   * bucket the last counts. A crash keeps the estimate whatever is said here; a rate-limited attempt gives back what is
   * not said.
   */
  readonly charges?: ReadonlyArray<Charge> | undefined
  /** What the handler logged: kept with the record of an attempt that ended in anything but success. */
  readonly log?: AttemptLog | undefined
  /** No step has begun: what was marked ahead for the first one is taken back. */
  readonly isUnbegun?: boolean | undefined
}

/**
 * The answer for one settlement: applied (the job is now in `state`), refused with what the row had become, or `Busy`:
 * another transaction holds the row, nothing was written and the lease is still the caller's, who settles it again after
 * a pause.
 */
export type Settled =
  | {
    readonly _tag: "Applied"
    readonly jobId: JobId
    readonly state: State | "deleted"
    /** Why it is in a state that it does not leave by itself, where this call brought it there. */
    readonly reason?: TerminalReason | undefined
    /** The fingerprint that this job's crash has closed. */
    readonly closedFingerprint?: string | undefined
  }
  | { readonly _tag: "Busy"; readonly jobId: JobId; readonly state: "running" }
  | { readonly _tag: "Rejected"; readonly jobId: JobId; readonly state: State | "missing" }

export class Leases extends Context.Service<Leases, {
  /**
   * Extends each lease to at least `leaseMs` from store time, in one statement; answers which are lost and why. A lease
   * that lasts longer already stays as it is.
   */
  readonly renew: (leases: ReadonlyArray<LeaseRef>, leaseMs: number) => Effect.Effect<Renewal, StoreUnavailable>
  /**
   * Applies or refuses each outcome by itself, one answer per settlement in the order given. A refused, repeated or
   * `Busy` item never affects the others: only the busy ones are to be tried again. Repeating a settlement whose first
   * answer was lost answers `Applied`.
   */
  readonly settle: (batch: ReadonlyArray<Settlement>) => Effect.Effect<ReadonlyArray<Settled>, StoreUnavailable>
}>()("@headgate/core/Leases") {}
