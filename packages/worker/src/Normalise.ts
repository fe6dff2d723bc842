/**
 * From the way a handler's fiber ended to the outcome the store applies. Never throws, whatever the handler failed with.
 *
 * - A typed failure consumes an attempt. It stays one when finalizers die behind it.
 * - A defect consumes a crash attempt. A handler that interrupts itself, which nobody asked for, counts as one.
 * - An ending that was set while the handler ran decides instead.
 */
import { CodecError } from "@headgate/core/Codec"
import { MAX_ERROR_TEXT_BYTES, storedError } from "@headgate/core/ErrorText"
import { outcomeOnError } from "@headgate/core/OnError"
import * as Outcome from "@headgate/core/Outcome"
import { MAX_OUTPUT_BYTES } from "@headgate/core/Output"
import { DuplicateStep, ForeignTransaction, Invalid, StoreUnavailable } from "@headgate/core/Refusals"
import { retryDelayMs, streakBackoffMs } from "@headgate/core/Retry"
import type * as Cause from "effect/Cause"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { SqlError } from "effect/sql/SqlError"
import type { Ending, LocalAttempt } from "./Attempt.ts"
import { isUnreachable } from "./DatabaseFault.ts"

/** The handler succeeded, but its result is above the limit: stored as the error of a job that is not retried. */
export class ResultTooLarge extends Schema.TaggedError<ResultTooLarge>()("ResultTooLarge", {
  message: Schema.String,
  limit: Schema.Number,
  actual: Schema.Number
}) {}

/** Undefined: there is nothing left to settle. */
export const normalise = (
  attempt: LocalAttempt,
  exit: Exit.Exit<unknown, unknown>
): Outcome.Outcome | undefined => {
  if (attempt.isReleased) return undefined
  const { ending } = attempt
  if (ending !== undefined) return ofEnding(attempt, ending)
  return safely(() => Exit.isSuccess(exit) ? ofSuccess(attempt, exit.value) : ofCause(attempt, exit.cause))
}

const safely = (outcome: () => Outcome.Outcome): Outcome.Outcome => {
  try {
    return outcome()
  } catch (defect) {
    return Outcome.crashed(storedError(defect))
  }
}

/** The outcome an ending stands for, whatever the handler does after it. */
export const ofEnding = (attempt: LocalAttempt, ending: Ending): Outcome.Outcome | undefined => {
  if (ending._tag === "Chosen") return ending.outcome
  if (ending._tag === "Settled") return undefined
  if (ending._tag === "Failed") {
    const { cause } = ending
    return safely(() => ofCause(attempt, cause))
  }
  switch (ending.reason) {
    case "timeout":
    case "step_timeout":
    case "progress_stalled":
      return Outcome.timedOut(nextDelayMs(attempt), ending.error ?? taskTimeout(attempt))
    case "deadline":
      return Outcome.deadlinePassed
    case "shutdown":
      return Outcome.released
    case "lease_lost":
    case "operator_cancel":
    case "superseded":
      return undefined
  }
}

const ofSuccess = ({ claim, definition }: LocalAttempt, value: unknown): Outcome.Outcome => {
  if (value === undefined) return Outcome.success
  const encoded = definition.success.encode(value)
  if (Result.isFailure(encoded)) return Outcome.fatal(storedError(encoded.failure))
  const bytes = encoded.success
  if (bytes.length > MAX_OUTPUT_BYTES) {
    const message = `the result is ${bytes.length} bytes, the limit is ${MAX_OUTPUT_BYTES}`
    return Outcome.fatal(storedError(new ResultTooLarge({ message, limit: MAX_OUTPUT_BYTES, actual: bytes.length })))
  }
  // A job that is deleted by its success has nowhere to keep a result.
  return bytes.length === 0 || claim.retentionMs === 0
    ? Outcome.success
    : Outcome.successWith(definition.version, bytes)
}

const ofCause = (attempt: LocalAttempt, cause: Cause.Cause<unknown>): Outcome.Outcome => {
  let died: Cause.Die | undefined
  let deaths = 0
  for (const reason of cause.reasons) {
    if (reason._tag === "Fail") return ofFailure(attempt, reason.error)
    if (reason._tag !== "Die") continue
    died ??= reason
    deaths++
  }
  if (died === undefined) return Outcome.crashed(SELF_INTERRUPTED)
  // A finalizer that dies turns the failure before it into a defect of the same value.
  return deaths > 1 && isTypedFailure(attempt, died.defect)
    ? ofFailure(attempt, died.defect)
    : Outcome.crashed(storedError(died.defect))
}

const ofFailure = (attempt: LocalAttempt, error: unknown): Outcome.Outcome => {
  const { claim, definition } = attempt
  const stored = storedError(error)
  const encoded = definition.error.encode(error)
  if (Result.isFailure(encoded)) return ofUnmapped(attempt, error, stored)
  const bytes = encoded.success
  const known = bytes.length > 0 && bytes.length <= MAX_ERROR_TEXT_BYTES ? { ...stored, encoded: bytes } : stored
  // What the task says of an error that it declares comes first, also of one of the library's own.
  const said = definition.onError(error)
  if (said === undefined) return ofUnmapped(attempt, error, known)
  return outcomeOnError(said, known, {
    attempt: claim.attempt,
    streak: claim.streak,
    retry: definition.retry,
    random: Math.random()
  })
}

const ofUnmapped = (attempt: LocalAttempt, error: unknown, stored: Outcome.OutcomeError): Outcome.Outcome => {
  if (isRefusal(error)) return Outcome.fatal(stored)
  // An outage of the database, in whatever call of the handler's: nothing is charged for it.
  if (error instanceof StoreUnavailable || (error instanceof SqlError && isUnreachable(error))) {
    return Outcome.notAFailure(streakBackoffMs(attempt.claim.streak + 1), stored)
  }
  return Outcome.retry(nextDelayMs(attempt), stored)
}

const isTypedFailure = ({ definition }: LocalAttempt, error: unknown): boolean =>
  isRefusal(error) || error instanceof CodecError || error instanceof SqlError || error instanceof StoreUnavailable ||
  Result.isSuccess(definition.error.encode(error))

/**
 * A mistake in the handler's code: another try would meet it again. What does not decode is not among them: the job's own
 * payload and records end the attempt by themselves, so it is some other job's, and may be mended.
 */
const isRefusal = (error: unknown): boolean =>
  error instanceof DuplicateStep || error instanceof Invalid || error instanceof ForeignTransaction ||
  (error instanceof CodecError && error.direction === "encode")

const nextDelayMs = ({ claim, definition }: LocalAttempt): number =>
  retryDelayMs(definition.retry, claim.attempt + 1, Math.random())

const taskTimeout = ({ claim }: LocalAttempt): Outcome.OutcomeError => {
  const message = `the attempt did not end within ${claim.timeoutMs} ms`
  return { tag: "TaskTimeout", message, text: `TaskTimeout: ${message}` }
}

const SELF_INTERRUPTED: Outcome.OutcomeError = {
  tag: "SelfInterrupted",
  message: "the handler interrupted itself",
  text: "SelfInterrupted: the handler interrupted itself, or waited for a fiber that was interrupted"
}
