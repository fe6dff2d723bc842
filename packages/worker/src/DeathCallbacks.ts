/**
 * Calls the death handlers a worker was given. Each kind has slots of its own, so that one whose handler is slow or fails
 * keeps nobody else's waiting. A death is claimed for the handler's timeout and a bit more, and settled under the claim's
 * fence: what this process does not live to settle is called again, here or elsewhere, under the same key.
 */
import type { CallEnd, CallFault, ClaimedDeath, DeathCallbacks } from "@headgate/core/DeathCallbacks"
import type { DeathRegistration } from "@headgate/core/DeathHandler"
import { storedError } from "@headgate/core/ErrorText"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { retryDelayMs } from "@headgate/core/Retry"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import { CurrentLogAnnotations } from "effect/References"
import { Nudge } from "./Nudge.ts"
import type { Outage } from "./Outage.ts"
import { backoffMs } from "./Ownership.ts"
import type { Reporter } from "./Reporter.ts"
import { until } from "./Until.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface DeathCallsParts {
  readonly settings: WorkerSettings
  readonly registrations: ReadonlyArray<DeathRegistration>
  readonly callbacks: DeathCallbacks["Service"]
  readonly context: Context.Context<never>
  readonly reporter: Reporter
  readonly outage: Outage
  /** False while the worker takes no work. */
  readonly isTaking: () => boolean
}

/** A kind, or an alias of one, and the calls under way for it; a handler that does not stop keeps its slot. */
interface Lane {
  readonly kind: string
  readonly registration: DeathRegistration
  readonly leaseMs: number
  taken: number
  /** There may be more than what was claimed last. */
  isFull: boolean
}

interface Call extends ClaimedDeath {
  readonly lane: Lane
  readonly fiber: Fiber.Fiber<unknown, unknown>
  /** Monotonic. The claim is current until then. */
  readonly until: number
  isStopped: boolean
}

export class DeathCalls {
  private readonly parts: DeathCallsParts
  private readonly lanes: ReadonlyArray<Lane>
  private readonly calls = new Set<Call>()
  private readonly nudge = new Nudge()
  private declaredAt = 0

  constructor(parts: DeathCallsParts) {
    this.parts = parts
    this.lanes = parts.registrations.flatMap((registration) => {
      const { aliases, kind } = registration.definition
      const leaseMs = registration.settings.timeoutMs + AFTER_TIMEOUT_MS
      return [kind, ...aliases].map((name) => ({ kind: name, registration, leaseMs, taken: 0, isFull: false }))
    })
  }

  /** From its answer on, what dies is recorded. */
  readonly declare = Effect.suspend(() => {
    const at = monotonicMs()
    const declared = this.parts.callbacks.declare(this.lanes.map(({ kind }) => kind))
    return Effect.map(declared, () => void (this.declaredAt = at))
  })

  /** Looks for deaths until it is interrupted, which loses no claim: `finish` waits for their calls. */
  readonly run: Effect.Effect<never> = Effect.suspend(() => Effect.forever(Effect.uninterruptibleMask(this.round)))

  /** Waits for the calls under way until the grace ends; then they are interrupted, and not counted. */
  readonly finish: Effect.Effect<void> = Effect.suspend(() => {
    const isDone = () => this.calls.size === 0
    const stop = Effect.sync(() => {
      for (const call of this.calls) {
        call.isStopped = true
        call.fiber.interruptUnsafe()
      }
    })
    const graceEnd = monotonicMs() + this.parts.settings.shutdownGraceMs
    const rest = Effect.suspend(() => {
      const stoppedEnd = monotonicMs() + CLEAN_UP_MS
      return Effect.andThen(stop, until(isDone, () => stoppedEnd))
    })
    return Effect.andThen(until(isDone, () => graceEnd), rest)
  })

  private readonly round = (restore: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>) =>
    Effect.gen({ self: this }, function*() {
      const { outage, settings } = this.parts
      if (monotonicMs() - this.declaredAt > DECLARE_AGAIN_MS) {
        yield* outage.watch("DeathCallbacks.declare", this.declare)
      }
      yield* this.take
      yield* restore(this.nudge.wait(settings.pollMs * (0.9 + 0.2 * Math.random())))
    })

  private readonly take: Effect.Effect<void> = Effect.suspend(() => {
    const { callbacks, outage, reporter, settings } = this.parts
    const free = this.lanes.filter(({ registration, taken }) => taken < registration.settings.concurrency)
    if (free.length === 0 || !this.parts.isTaking()) return Effect.void
    const requests = free.map(({ kind, leaseMs, registration: { definition, settings }, taken }) => ({
      kind,
      version: definition.version,
      most: settings.concurrency - taken,
      leaseMs,
      maxCalls: settings.maxCalls
    }))
    const sentAt = monotonicMs()
    return Effect.map(outage.watch("DeathCallbacks.claim", callbacks.claim(settings.id, requests)), (answer) => {
      if (answer === undefined) return
      const { claims, givenUp } = answer
      for (const { jobId, key, kind } of givenUp) reporter.callGivenUp({ jobId, key, kind }, CALLS_LOST)
      for (const [n, lane] of free.entries()) {
        const own = claims.filter(({ death }) => death.kind === lane.kind)
        lane.isFull = own.length >= requests[n]!.most
        for (const claimed of own) this.start(lane, claimed, sentAt + lane.leaseMs)
      }
    })
  })

  private start(lane: Lane, claimed: ClaimedDeath, until: number): void {
    const { context, run } = lane.registration
    const { jobId, key, kind } = claimed.death
    const annotations = { ...Context.get(context, CurrentLogAnnotations), jobId, kind, deathKey: key }
    const handle = Effect.scoped(Effect.suspend(() => run(claimed.death)))
    const fiber = Effect.runForkWith(Context.add(context, CurrentLogAnnotations, annotations))(handle)
    const call: Call = { ...claimed, lane, fiber, until, isStopped: false }
    lane.taken++
    this.calls.add(call)
    Effect.runForkWith(this.parts.context)(this.attend(call))
  }

  private readonly attend = Effect.fnUntraced(function*(this: DeathCalls, call: Call) {
    const { fiber, lane } = call
    const { timeoutMs } = lane.registration.settings
    const inTime = yield* Effect.timeoutOption(Fiber.await(fiber), timeoutMs)
    if (Option.isSome(inTime)) {
      yield* this.settle(call, endOf(call, inTime.value))
    } else {
      fiber.interruptUnsafe()
      const late = yield* Effect.timeoutOption(Fiber.await(fiber), DEAF_MS)
      const hasSucceeded = Option.isSome(late) && Exit.isSuccess(late.value)
      yield* this.settle(call, hasSucceeded ? DELIVERED : failed(call, timedOut(timeoutMs)))
    }
    this.calls.delete(call)
    // One that does not stop: nobody else of its kind may use its slot.
    yield* Fiber.await(fiber)
    lane.taken--
    if (lane.isFull) this.nudge.give()
  })

  /** As long as the claim is current; after that the death is called again, whatever this call has done. */
  private settle(call: Call, end: CallEnd, faults = 0): Effect.Effect<void> {
    const { callbacks, outage, reporter } = this.parts
    const { death: { jobId, key, kind }, fence } = call
    const answered = outage.watch("DeathCallbacks.settle", callbacks.settle([{ key, fence, end }]))
    return Effect.flatMap(answered, (answer) => {
      if (answer?.[0] === true) {
        if (end._tag === "given_up") reporter.callGivenUp({ jobId, key, kind }, end.fault)
        else reporter.called(end._tag)
        return Effect.void
      }
      if (answer !== undefined) return Effect.logDebug(`the death ${key} was called again before this call had ended`)
      const again = Effect.suspend(() => this.settle(call, end, faults + 1))
      return monotonicMs() < call.until ? Effect.delay(again, backoffMs(faults)) : Effect.void
    })
  }
}

const endOf = (call: Call, exit: Exit.Exit<unknown, unknown>): CallEnd => {
  if (Exit.isSuccess(exit)) return DELIVERED
  if (call.isStopped && Cause.hasInterruptsOnly(exit.cause)) return { _tag: "handed_back" }
  return failed(call, Cause.hasInterruptsOnly(exit.cause) ? SELF_INTERRUPTED : storedError(Cause.squash(exit.cause)))
}

const failed = ({ death, lane }: Call, { message, tag }: CallFault): CallEnd => {
  const { maxCalls, retry } = lane.registration.settings
  const fault = { tag, message }
  return death.call >= maxCalls
    ? { _tag: "given_up", fault }
    : { _tag: "retry", delayMs: retryDelayMs(retry, death.call, Math.random()), fault }
}

const DELIVERED: CallEnd = { _tag: "delivered" }

const timedOut = (timeoutMs: number): CallFault => ({
  tag: "CallTimeout",
  message: `the call did not end within ${timeoutMs} ms`
})

const SELF_INTERRUPTED: CallFault = { tag: "SelfInterrupted", message: "the handler interrupted itself" }
const CALLS_LOST: CallFault = { tag: "CallLost", message: "no worker has survived a call" }

/** To be interrupted, to settle, and for clocks that differ. */
const AFTER_TIMEOUT_MS = 15_000
const DECLARE_AGAIN_MS = 3_600_000
const DEAF_MS = 250
const CLEAN_UP_MS = 2000
