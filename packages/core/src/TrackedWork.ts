/** Work that a handler forked inside its attempt with `Job.track`, as operators see it while the attempt runs. */
import * as Result from "effect/Result"
import type { Fence } from "./Ids.ts"
import { Invalid } from "./Refusals.ts"
import { isStorableText, utf8Length } from "./Text.ts"

/** In UTF-8 bytes. */
export const MAX_TRACKED_NAME_BYTES = 128

/** Of an attempt that tracks more, what runs is shown before what has ended, and the newest before the rest. */
export const MAX_TRACKED_SHOWN = 100

/** `stopped`: it was interrupted. */
export type TrackedState = "running" | "done" | "failed" | "stopped"

/** Times are milliseconds ago, when the report is sent. */
export interface TrackedReport {
  /** The handler has ended, and the attempt waits for the work that runs. */
  readonly isWaiting: boolean
  readonly work: ReadonlyArray<{ readonly name: string; readonly state: TrackedState; readonly agoMs: number }>
  /** Work that is not among it. */
  readonly omitted: number
}

export interface TrackedWork {
  readonly name: string
  readonly state: TrackedState
  /** When it came into this state, in epoch milliseconds on the store's clock. */
  readonly sinceMs: number
}

/** The latest report of the attempt that runs: `fence` names it, `updatedAtMs` is the store's time. */
export interface JobTracked {
  readonly fence: Fence
  readonly updatedAtMs: number
  readonly isWaiting: boolean
  readonly work: ReadonlyArray<TrackedWork>
  readonly omitted: number
}

/** Not empty, at most 128 UTF-8 bytes without NUL or half pairs. Names need not differ. */
export const validateTrackedName = (name: string): Result.Result<string, Invalid> => {
  const field = "name"
  const limit = MAX_TRACKED_NAME_BYTES
  if (typeof name !== "string" || name === "") {
    return Result.fail(new Invalid({ field, message: "tracked work needs a name" }))
  }
  const actual = utf8Length(name)
  if (actual > limit) {
    const message = `the name of tracked work takes ${actual} bytes, the limit is ${limit}`
    return Result.fail(new Invalid({ field, message, limit, actual }))
  }
  return isStorableText(name) ? Result.succeed(name) : Result.fail(
    new Invalid({ field, message: "the name of tracked work holds NUL or half of a surrogate pair" })
  )
}
