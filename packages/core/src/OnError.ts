/**
 * What becomes of a job whose handler failed, by the tag of the error. Plain data, named in a task's `onError`; the
 * worker turns it into the outcome it settles. Reading it never throws, whatever a task's own function answers, so that
 * no failure is lost on its way to the store.
 */
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { MAX_ATTEMPTS_LIMIT, refuseText } from "./EnqueueGuard.ts"
import { refuseInteger, wholeMillis } from "./Millis.ts"
import * as Outcome from "./Outcome.ts"
import { Invalid } from "./Refusals.ts"
import {
  BAD_DELAY_MS,
  isRetryPolicy,
  MAX_RETRY_DELAY_MS,
  retryDelayMs,
  type RetryPolicy,
  streakBackoffMs
} from "./Retry.ts"
import { cutUtf8, toStorableText } from "./Text.ts"

/** Of the reason of a skipped job. */
export const MAX_SKIP_REASON_BYTES = 1024

export type OnError =
  | { readonly type: "retry"; readonly policy: RetryPolicy | undefined; readonly maxAttempts: number | undefined }
  | { readonly type: "snooze"; readonly duration: Duration.Input }
  | { readonly type: "skip"; readonly reason: string }
  | { readonly type: "stop" }
  | {
    readonly type: "rateLimited"
    readonly retryAfter: Duration.Input | undefined
    readonly class: string | undefined
  }
  | { readonly type: "notAFailure" }

export interface RetryOnError {
  readonly policy?: RetryPolicy | undefined
  readonly maxAttempts?: number | undefined
}

/** The same for each error of a tag, or decided by the error at hand. */
export type OnErrorEntry<E> = OnError | ((error: E) => OnError)

/** One entry for each tag of the task's errors, none missing and none too many. */
export type OnErrors<E> = [E] extends [never] ? "onError needs a task that declares its errors"
  : [E] extends [{ readonly _tag: string }] ? string extends E["_tag"] ? Untagged
    : { readonly [Tag in E["_tag"]]: OnErrorEntry<OfTag<E, Tag>> }
  : Untagged

type Untagged = "onError needs a literal _tag on each error of the task"

type OfTag<E, Tag> = E extends { readonly _tag: infer Tags } ? Tag extends Tags ? E : never : never

const stop: OnError = { type: "stop" }

const notAFailure: OnError = { type: "notAFailure" }

/**
 * Constructors. A setting that breaks a rule is refused where the task is defined (`Invalid`, field `onError.<tag>`).
 * Where an entry is a function there is nobody left to refuse: see at each what counts instead.
 */
export const OnError = {
  /**
   * Consumes an attempt; again after the policy's delay, by default that of the task. `maxAttempts` (1 to 1000): with so
   * many failures, of whatever tag, this one is not tried again, and the job is archived as `exhausted`. The job's own
   * limit counts beside it. A function that throws, or answers none of these, gives `retry()`; with a policy that is none
   * the job waits for 1 s.
   */
  retry: (options: RetryOnError = {}): OnError => ({
    type: "retry",
    policy: options.policy,
    maxAttempts: options.maxAttempts
  }),
  /**
   * Again after so long, 1 ms at least; nothing is counted, however often. From a function, what is no such duration
   * is 1 s, and what is longer than a year a year.
   */
  snooze: (duration: Duration.Input): OnError => ({ type: "snooze", duration }),
  /** Ends the job as of no use: archived, reason `skipped`, nothing counted. The text is stored: 1 to 1024 bytes. */
  skip: (reason: string): OnError => ({ type: "skip", reason }),
  /** Ends the job as failed: archived, reason `fatal`, one attempt consumed. */
  stop,
  /**
   * A limit elsewhere was met; no attempt is consumed. The job waits for `retryAfter`, 1 s at least, and so do all jobs of
   * its rate classes, or of `class` alone, one of the task's: a day at most. Without it the job alone waits: 1 s, growing
   * to 5 min while it repeats. From a function, what is no duration of 1 ms at least counts as none, and a class that the
   * job is not charged to is passed over.
   */
  rateLimited: (
    retryAfter?: Duration.Input | undefined,
    options?: { readonly class?: string | { readonly name: string } | undefined }
  ): OnError => ({
    type: "rateLimited",
    retryAfter,
    class: typeof options?.class === "object" ? options.class.name : options?.class
  }),
  /** Nobody's fault: again after 1 s, growing to 5 min while it repeats; nothing is counted. */
  notAFailure
}

/** The refusals of the entries that are no functions. */
export const refuseOnErrors = (
  { isFailure, onError, rates = [] }: {
    readonly isFailure?: unknown
    readonly onError?: unknown
    readonly rates?: ReadonlyArray<{ readonly name: string }> | undefined
  }
): ReadonlyArray<Invalid | undefined> => {
  if (onError === undefined) return []
  const invalid = (message: string) => [new Invalid({ field: "onError", message })]
  if (isFailure !== undefined) return invalid("a task has onError or isFailure, not both")
  if (typeof onError !== "object" || onError === null) return invalid("onError is an entry for each tag of an error")
  const classes = rates.map(({ name }) => name)
  return Object.entries(onError).map(([tag, entry]) =>
    typeof entry === "function" ? undefined : refuseOnError(`onError.${tag}`, entry, classes)
  )
}

const refuseOnError = (field: string, on: unknown, classes: ReadonlyArray<string>): Invalid | undefined => {
  if (!isOnError(on)) return new Invalid({ field, message: `${field} is none of what OnError makes, nor a function` })
  switch (on.type) {
    case "retry":
      if (on.policy !== undefined && !isRetryPolicy(on.policy)) {
        return new Invalid({ field, message: `${field} has a policy that is none of what Retry makes` })
      }
      return on.maxAttempts === undefined
        ? undefined
        : refuseInteger(`${field}.maxAttempts`, on.maxAttempts, 1, MAX_ATTEMPTS_LIMIT)
    case "snooze":
      return Result.getOrUndefined(Result.flip(wholeMillis(field, on.duration)))
    case "skip":
      return refuseText(field, on.reason, 1, MAX_SKIP_REASON_BYTES)
    case "rateLimited":
      if (on.class !== undefined && !classes.includes(on.class)) {
        return new Invalid({
          field,
          message: `${field} names the class ${on.class}, which is not among the task's rates`
        })
      }
      return on.retryAfter === undefined
        ? undefined
        : Result.getOrUndefined(Result.flip(wholeMillis(field, on.retryAfter)))
    default:
      return undefined
  }
}

/** What the task says of one of its own errors; undefined where it says nothing. Never throws. */
export type ErrorRule = (error: unknown) => OnError | undefined

export const errorRule = <E>({ isFailure, onError }: {
  readonly isFailure?: ((error: E) => boolean) | undefined
  readonly onError?: OnErrors<E> | undefined
}): ErrorRule => {
  // SAFETY: entries of another form were refused where the task was defined.
  if (onError !== undefined) return byTag(onError as Readonly<Record<string, OnErrorEntry<unknown>>>)
  if (isFailure === undefined) return () => undefined
  return (error) => {
    try {
      // SAFETY: the worker asks only about errors that the task's error schema encodes.
      return isFailure(error as E) ? undefined : notAFailure
    } catch {
      return undefined
    }
  }
}

const byTag = (entries: Readonly<Record<string, OnErrorEntry<unknown>>>): ErrorRule => (error) => {
  try {
    const tag = typeof error === "object" && error !== null && "_tag" in error ? String(error._tag) : ""
    const entry = Object.hasOwn(entries, tag) ? entries[tag] : undefined
    const answer = typeof entry === "function" ? entry(error) : entry
    if (isOnError(answer)) return answer
  } catch {
    // What a function throws says nothing of its error.
  }
  return OnError.retry()
}

const TYPES: ReadonlySet<unknown> = new Set<OnError["type"]>([
  "retry",
  "snooze",
  "skip",
  "stop",
  "rateLimited",
  "notAFailure"
])

const isOnError = (value: unknown): value is OnError =>
  typeof value === "object" && value !== null && "type" in value && TYPES.has(value.type)

export interface FailedAttempt {
  /** Failures before this one. */
  readonly attempt: number
  /** Attempts in a row before this one that were no failures or rate limited. */
  readonly streak: number
  /** The task's own policy. */
  readonly retry: RetryPolicy
  /** In [0, 1): drives the jitter. */
  readonly random: number
}

/** The outcome to settle, with the error that is stored with it. */
export const outcomeOnError = (on: OnError, error: Outcome.OutcomeError, failed: FailedAttempt): Outcome.Outcome => {
  switch (on.type) {
    case "retry": {
      const failures = failed.attempt + 1
      if (on.maxAttempts !== undefined && failures >= on.maxAttempts) return Outcome.exhausted(error)
      return Outcome.retry(retryDelayMs(on.policy ?? failed.retry, failures, failed.random), error)
    }
    case "snooze":
      return Outcome.snooze(delayMs(on.duration) ?? BAD_DELAY_MS, error)
    case "skip": {
      const reason = storableReason(on.reason) ?? storableReason(error.message) ?? error.tag
      return Outcome.skip(reason, { ...error, message: reason, text: `${reason}\nCaused by: ${error.text}` })
    }
    case "stop":
      return Outcome.fatal(error)
    case "rateLimited": {
      const pushBackMs = delayMs(on.retryAfter)
      if (pushBackMs === undefined) return Outcome.rateLimited({ delayMs: streakBackoffMs(failed.streak + 1), error })
      const rateClass = on.class === undefined ? undefined : toStorableText(String(on.class))
      return Outcome.pushedBack(pushBackMs, { rateClass, error })
    }
    case "notAFailure":
      return Outcome.notAFailure(streakBackoffMs(failed.streak + 1), error)
  }
}

/** Undefined for what is no duration, or rounds to nothing. */
const delayMs = (input: Duration.Input | undefined): number | undefined => {
  try {
    const ms = Math.round(Option.match(input === undefined ? Option.none() : Duration.fromInput(input), {
      onNone: () => 0,
      onSome: Duration.toMillis
    }))
    return ms >= 1 ? Math.min(ms, MAX_RETRY_DELAY_MS) : undefined
  } catch {
    return undefined
  }
}

const storableReason = (reason: unknown): string | undefined =>
  typeof reason === "string" && reason !== ""
    ? toStorableText(cutUtf8(reason, MAX_SKIP_REASON_BYTES))
    : undefined
