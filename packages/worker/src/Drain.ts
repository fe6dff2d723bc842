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
  /** Ends when the admission loop has ended. */
  readonly admissionEnded: Effect.Effect<unknown>
}

export const drain = Effect.fnUntraced(function*(parts: DrainParts) {
  const { admission, admissionEnded, dispatch, inFlight, settings, settler } = parts
  const graceEnd = monotonicMs() + settings.shutdownGraceMs
  admission.stop()
  dispatch.drain()
  yield* within(quiet(inFlight), settings.shutdownGraceMs)
  for (const attempt of [...inFlight.running]) dispatch.stop(attempt, "shutdown")
  yield* within(quiet(inFlight), DEAF_MS)
  // A call of the gate that is still unanswered may bring claims to hand back.
  yield* within(admissionEnded, Math.max(ANSWER_MS, graceEnd - monotonicMs()))
  yield* within(settler.idle, ANSWER_MS)
  settler.close()
  dispatch.watchdog.close()
})

/** No handler runs but zombies. */
const quiet = (inFlight: InFlight): Effect.Effect<void> =>
  Effect.suspend(() => inFlight.running.size <= inFlight.zombies ? Effect.void : Effect.andThen(Effect.sleep(LOOK_MS), quiet(inFlight)))

const within = (effect: Effect.Effect<unknown>, ms: number): Effect.Effect<void> =>
  Effect.raceFirst(Effect.asVoid(effect), Effect.sleep(ms))

const LOOK_MS = 10
const DEAF_MS = 250
const ANSWER_MS = 3000
