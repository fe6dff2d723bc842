/** Work that a handler forked inside its attempt with `Job.track`, as operators see it while the attempt runs. */
import * as Result from "effect/Result"
import { refuseText } from "./EnqueueGuard.ts"
import type { Fence } from "./Ids.ts"
import type { Invalid } from "./Refusals.ts"

/** In UTF-8 bytes. */
export const MAX_TRACKED_NAME_BYTES = 128

/** Of an attempt that tracks more, what runs is shown before what has ended, and the newest before the rest. */
export const MAX_TRACKED_SHOWN = 100

/** `stopped`: it was interrupted. */
export type TrackedState = "running" | "done" | "failed" | "stopped"

/** `inStateForMs`: when the report is sent. */
export interface TrackedReport {
  /** The handler has ended, and the attempt waits for the work that runs. */
  readonly isWaiting: boolean
  readonly work: ReadonlyArray<{ readonly name: string; readonly state: TrackedState; readonly inStateForMs: number }>
  /** Work that is not among it. */
  readonly omitted: number
}

export interface TrackedWork {
  readonly name: string
  readonly state: TrackedState
  /** When it came into this state, in epoch milliseconds on the store's clock. */
  readonly enteredAtMs: number
}

/** The latest report of the attempt that runs: `fence` names it, `updatedAtMs` is the store's time. */
export interface JobTracked {
  readonly fence: Fence
  readonly updatedAtMs: number
  readonly isWaiting: boolean
  readonly work: ReadonlyArray<TrackedWork>
  readonly omitted: number
}

/** 1 to 128 UTF-8 bytes without NUL or half pairs. Names need not differ. */
export const validateTrackedName = (name: string): Result.Result<string, Invalid> => {
  const refusal = refuseText("name", name, 1, MAX_TRACKED_NAME_BYTES)
  return refusal === undefined ? Result.succeed(name) : Result.fail(refusal)
}
