/**
 * The end of a worker's scope. Nothing is claimed any more and buffered claims are handed back at once; handlers get the
 * grace to finish, with their leases kept; what still runs is interrupted and released, uncharged. One that obeys has
 * `handlerGrace`, 2 s at most, to clean up, and is released then all the same: the fence refuses what it still writes.
 * One that does not let itself be stopped is left to its fence and its lease. What was settled reaches the store, while
 * that answers.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as Effect from "effect/Effect"
import type { Admission } from "./Admission.ts"
import type { Dispatch } from "./Dispatch.ts"
import type { InFlight } from "./InFlight.ts"
import type { Settler } from "./Settler.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface DrainParts {
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
  const interruptedAt = monotonicMs()
  yield* until(isQuiet, interruptedAt + DEAF_MS)
  const isCleanedUp = () => [...inFlight.running].every(({ isDeaf, isZombie }) => isDeaf || isZombie)
  yield* until(isCleanedUp, interruptedAt + Math.min(settings.handlerGraceMs, MAX_CLEAN_UP_MS))
  dispatch.giveUpRest()
  // A call of the gate without an answer yet may still bring claims, to be handed back.
  yield* until(() => admission.hasEnded && settler.isDone, Math.max(graceEnd, monotonicMs() + ANSWER_MS))
  settler.close()
  dispatch.watchdog.close()
})

const until = (isDone: () => boolean, end: number): Effect.Effect<void> =>
  Effect.suspend(() =>
    isDone() || monotonicMs() >= end ? Effect.void : Effect.andThen(Effect.sleep(LOOK_MS), until(isDone, end))
  )

const LOOK_MS = 10
const DEAF_MS = 250
const MAX_CLEAN_UP_MS = 2000
const ANSWER_MS = 3000
