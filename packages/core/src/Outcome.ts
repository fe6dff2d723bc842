/**
 * How an attempt ended: what a worker settles and a store applies. Plain data, since one is made for every job.
 * Delays are whole milliseconds, counted by the store from its own now.
 */
import type { StoredError } from "./ErrorText.ts"

/** The error of an attempt as it is stored; `encoded` is the typed failure in the task's own error schema. */
export interface OutcomeError extends StoredError {
  readonly encoded?: Uint8Array | undefined
}

/** Opaque to the store. */
export interface OutcomeResult {
  readonly version: number
  readonly bytes: Uint8Array
}

export type Outcome =
  | { readonly _tag: "Success"; readonly result?: OutcomeResult | undefined }
  /** `isLast`: archived as `exhausted`, whatever the job's own limit says. */
  | { readonly _tag: "Retry"; readonly delayMs: number; readonly error: OutcomeError; readonly isLast?: true }
  | { readonly _tag: "TimedOut"; readonly delayMs: number; readonly error: OutcomeError }
  | { readonly _tag: "Fatal"; readonly error: OutcomeError }
  | { readonly _tag: "NotAFailure"; readonly delayMs: number; readonly error?: OutcomeError | undefined }
  | RateLimited
  | { readonly _tag: "Snooze"; readonly delayMs: number; readonly error?: OutcomeError | undefined }
  /** With an error its message is what is stored as the reason. */
  | { readonly _tag: "Skip"; readonly reason: string; readonly error?: OutcomeError | undefined }
  | { readonly _tag: "Revoke" }
  | { readonly _tag: "Undecodable"; readonly reason: string }
  | { readonly _tag: "CheckpointStale"; readonly reason: string }
  | { readonly _tag: "Released" }
  /** A defect. Without `delayMs` the store applies its own crash backoff. */
  | { readonly _tag: "Crashed"; readonly delayMs?: number | undefined; readonly error: OutcomeError }
  /** The worker stopped the handler at the job's deadline. */
  | { readonly _tag: "DeadlinePassed" }

/** Without `delayMs` the job is available at once, and only a pushed back rate class holds it. */
export interface RateLimited {
  readonly _tag: "RateLimited"
  readonly delayMs?: number | undefined
  /** Closes the buckets of rate classes that the job names for so long, at most a day, for every job that names them. */
  readonly pushBackMs?: number | undefined
  /** Pushes back this class alone. */
  readonly rateClass?: string | undefined
  readonly error?: OutcomeError | undefined
}

const names = {
  Success: "success",
  Retry: "retry",
  TimedOut: "timed_out",
  Fatal: "fatal",
  NotAFailure: "not_a_failure",
  RateLimited: "rate_limited",
  Snooze: "snooze",
  Skip: "skip",
  Revoke: "revoke",
  Undecodable: "undecodable",
  CheckpointStale: "checkpoint_stale",
  Released: "released",
  Crashed: "crashed",
  DeadlinePassed: "deadline_passed"
} as const satisfies Record<Outcome["_tag"], string>

/** The outcome's name in the state machine, in SQL and in JSON. */
export type OutcomeName = (typeof names)[Outcome["_tag"]]

export const outcomeNames: ReadonlyArray<OutcomeName> = Object.values(names)

export const outcomeName = (outcome: Outcome): OutcomeName => names[outcome._tag]

/** Success without a result. */
export const success: Outcome = { _tag: "Success" }
export const successWith = (version: number, bytes: Uint8Array): Outcome => ({
  _tag: "Success",
  result: { version, bytes }
})
export const retry = (delayMs: number, error: OutcomeError): Outcome => ({ _tag: "Retry", delayMs, error })
/** A failure that uses up a limit below the job's own. */
export const exhausted = (error: OutcomeError): Outcome => ({ _tag: "Retry", delayMs: 0, error, isLast: true })
export const timedOut = (delayMs: number, error: OutcomeError): Outcome => ({ _tag: "TimedOut", delayMs, error })
export const fatal = (error: OutcomeError): Outcome => ({ _tag: "Fatal", error })
export const notAFailure = (delayMs: number, error?: OutcomeError): Outcome => ({
  _tag: "NotAFailure",
  delayMs,
  error
})
export const rateLimited = (options: Omit<RateLimited, "_tag"> = {}): Outcome => ({ _tag: "RateLimited", ...options })
/** The job waits for `pushBackMs`, 1 s at least, and its rate classes, or the one named, are pushed back for as long. */
export const pushedBack = (pushBackMs: number, options: Pick<RateLimited, "rateClass" | "error"> = {}): Outcome => ({
  _tag: "RateLimited",
  delayMs: Math.max(pushBackMs, MIN_PAUSE_MS),
  pushBackMs,
  ...options
})
export const snooze = (delayMs: number, error?: OutcomeError): Outcome => ({ _tag: "Snooze", delayMs, error })
export const skip = (reason: string, error?: OutcomeError): Outcome => ({ _tag: "Skip", reason, error })
export const revoke: Outcome = { _tag: "Revoke" }
export const undecodable = (reason: string): Outcome => ({ _tag: "Undecodable", reason })
export const checkpointStale = (reason: string): Outcome => ({ _tag: "CheckpointStale", reason })
export const released: Outcome = { _tag: "Released" }
export const crashed = (error: OutcomeError, delayMs?: number): Outcome => ({ _tag: "Crashed", delayMs, error })
export const deadlinePassed: Outcome = { _tag: "DeadlinePassed" }

const MIN_PAUSE_MS = 1000
