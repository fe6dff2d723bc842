/**
 * The end of a worker's scope. Nothing is claimed any more and buffered claims are handed back at once; handlers get the
 * grace to finish, with their leases kept; what still runs is interrupted and released, uncharged. A handler that does
 * not let itself be stopped is left to its fence and its lease. What was settled reaches the store, while that answers.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as Effect from "effect/Effect"
import type { Admission } from "./Admission.ts"
import type { Dispatch } from "./Dispatch.ts"
import type { InFlight } from "./InFlight.ts"
import type { Settler } from "./Settler.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

export interface DrainParts {
  readonly settings: WorkerSettings
  readonly admission: Admission
  readonly dispatch: Dispatch
  readonly inFlight: InFlight
  readonly settler: Settler
}

export const drain = Effect.fnUntraced(function*(parts: DrainParts) {
  const { admission, dispatch, inFlight, settings, settler } = parts
  const isQuiet = () => inFlight.running.size <= inFlight.zombies
  const graceEnd = monotonicMs() + settings.shutdownGraceMs
  admission.stop()
  dispatch.drain()
  yield* until(isQuiet, graceEnd)
  for (const attempt of inFlight.running) dispatch.stop(attempt, "shutdown")
  yield* until(isQuiet, monotonicMs() + DEAF_MS)
  // A call of the gate without an answer yet may still bring claims, to be handed back.
  yield* until(() => admission.hasEnded && settler.isIdle, Math.max(graceEnd, monotonicMs() + ANSWER_MS))
  settler.close()
  dispatch.watchdog.close()
})

const until = (isDone: () => boolean, end: number): Effect.Effect<void> =>
  Effect.suspend(() =>
    isDone() || monotonicMs() >= end ? Effect.void : Effect.andThen(Effect.sleep(LOOK_MS), until(isDone, end))
  )

const LOOK_MS = 10
const DEAF_MS = 250
const ANSWER_MS = 3000
