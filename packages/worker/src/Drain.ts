/**
 * The end of a worker: of its scope, or because it was told to end. Nothing is claimed any more and buffered claims are
 * handed back at once; handlers get the grace to finish, with their leases kept; what still runs is interrupted and
 * released, uncharged. One that obeys has `handlerGrace`, 2 s at most, to clean up, and is released then all the same: the
 * fence refuses what it still writes. One that does not let itself be stopped is left to its fence and its lease. What
 * was settled reaches the store, while that answers.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Admission } from "./Admission.ts"
import type { Dispatch } from "./Dispatch.ts"
import type { InFlight } from "./InFlight.ts"
import type { Settler } from "./Settler.ts"
import type { Stuck } from "./Stuck.ts"
import { until } from "./Until.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface DrainParts {
  readonly settings: WorkerSettings
  readonly context: Context.Context<never>
  readonly admission: Admission
  readonly dispatch: Dispatch
  readonly inFlight: InFlight
  readonly settler: Settler
  readonly stuck: Stuck
  /** The worker has begun to drain. */
  readonly begun: () => void
}

export class Drain {
  private readonly parts: DrainParts
  /** Monotonic. Brought forward by whoever can wait less. */
  private graceEnd = Number.POSITIVE_INFINITY
  private fiber: Fiber.Fiber<void> | undefined
  hasBegun = false

  constructor(parts: DrainParts) {
    this.parts = parts
  }

  /** Within `shutdownGrace` from now, unless it was to end sooner already; or for as long as the handlers take. */
  begin(within: "grace" | "any time"): Fiber.Fiber<void> {
    const { context, settings } = this.parts
    if (within === "grace") this.graceEnd = Math.min(this.graceEnd, monotonicMs() + settings.shutdownGraceMs)
    this.hasBegun = true
    return this.fiber ??= Effect.runForkWith(context)(this.run, { uninterruptible: true })
  }

  /** At the end of the worker's scope. */
  readonly finish: Effect.Effect<void> = Effect.suspend(() => Effect.asVoid(Fiber.await(this.begin("grace"))))

  private readonly run: Effect.Effect<void> = Effect.gen({ self: this }, function*() {
    const { admission, begun, dispatch, inFlight, settings, settler, stuck } = this.parts
    const isQuiet = () => inFlight.running.size <= inFlight.zombies
    admission.stop()
    dispatch.drain()
    begun()
    yield* until(isQuiet, () => this.graceEnd)
    for (const attempt of inFlight.running) dispatch.stop(attempt, "shutdown")
    const interruptedAt = monotonicMs()
    yield* until(isQuiet, () => interruptedAt + DEAF_MS)
    const isCleanedUp = () => [...inFlight.running].every(({ isDeaf, isZombie }) => isDeaf || isZombie)
    yield* until(isCleanedUp, () => interruptedAt + Math.min(settings.handlerGraceMs, MAX_CLEAN_UP_MS))
    dispatch.giveUpRest()
    // A call of the gate without an answer yet may still bring claims, to be handed back.
    const askedAt = monotonicMs()
    const isDone = () => admission.hasEnded && settler.isDone && stuck.isIdle
    yield* until(isDone, () => Math.max(this.graceEnd, askedAt + ANSWER_MS))
    settler.close()
    dispatch.watchdog.close()
  })
}

const DEAF_MS = 250
const MAX_CLEAN_UP_MS = 2000
const ANSWER_MS = 3000
