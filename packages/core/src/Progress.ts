/**
 * What a running attempt tells operators about its progress. Exact units instead of a fraction (an application with
 * percentages uses a total of 100), and a short message: it is status, not a log.
 */
import * as Result from "effect/Result"
import type { Fence } from "./Ids.ts"
import { refuseInteger } from "./Millis.ts"
import { Invalid } from "./Refusals.ts"
import { isStorableText, utf8Length } from "./Text.ts"

/** In UTF-8 bytes. */
export const MAX_PROGRESS_MESSAGE_BYTES = 512

/** 2^53 - 1: numbers stay exact in every JSON reader. */
export const MAX_PROGRESS_VALUE = Number.MAX_SAFE_INTEGER

export interface ProgressUpdate {
  readonly current: number
  readonly total: number
  readonly message?: string | undefined
}

/** The latest accepted update: `fence` names the attempt that wrote it, `updatedAtMs` is the store's time. */
export interface JobProgress extends ProgressUpdate {
  readonly fence: Fence
  readonly updatedAtMs: number
}

/** 0 <= current <= total, total 1..2^53-1, message at most 512 UTF-8 bytes without NUL or half pairs. */
export const validateProgress = (update: ProgressUpdate): Result.Result<ProgressUpdate, Invalid> => {
  const refusal = refuseInteger("total", update.total, 1, MAX_PROGRESS_VALUE) ??
    refuseInteger("current", update.current, 0, update.total) ??
    (update.message === undefined ? undefined : refuseMessage(update.message))
  return refusal === undefined ? Result.succeed(update) : Result.fail(refusal)
}

const refuseMessage = (message: string): Invalid | undefined => {
  const field = "message"
  if (typeof message !== "string") return new Invalid({ field, message: "the progress message must be text" })
  const bytes = utf8Length(message)
  if (bytes > MAX_PROGRESS_MESSAGE_BYTES) {
    const text = `the progress message takes ${bytes} bytes, the limit is ${MAX_PROGRESS_MESSAGE_BYTES}`
    return new Invalid({ field, message: text, limit: MAX_PROGRESS_MESSAGE_BYTES, actual: bytes })
  }
  return isStorableText(message)
    ? undefined
    : new Invalid({ field, message: "the progress message holds NUL or half of a surrogate pair" })
}
