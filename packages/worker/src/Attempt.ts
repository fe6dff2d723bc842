/**
 * One run of one job by this worker: the claim it came with, its lease as this process may believe in it, and why it
 * ends. Shared by everything an attempt is given: the `Job` service, the steps, the reports.
 */
import type {
  Charge,
  Claim,
  InterruptionReason,
  Outcome,
  OutcomeError,
  OutcomeName,
  Registration,
  State,
  TaskDefinition,
  TrackedLease
} from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import type { Span } from "effect/Tracer"
import type { AheadMark } from "./AheadMark.ts"
import type { NewestLines } from "./AttemptLog.ts"
import { isInterruptible } from "./FiberLook.ts"
import { TimeLimits } from "./TimeLimits.ts"
import type { Tracked } from "./Tracked.ts"

/** Why an attempt ends before, or instead of, its handler's own answer. */
export type Ending =
  /** The handler chose it: snooze, skip, revoke... The worker settles it. */
  | { readonly _tag: "Chosen"; readonly outcome: Outcome }
  /** Ownership ended. Timeout, deadline and shutdown are settled; after the others there is nothing left to settle. */
  | {
    readonly _tag: "Interrupted"
    readonly reason: InterruptionReason
    /** What is stored for a limit other than the attempt's own timeout. */
    readonly error?: OutcomeError | undefined
  }
  /** Work that it tracks failed or died before the handler ended: settled as if the handler had. */
  | { readonly _tag: "Failed"; readonly cause: Cause.Cause<unknown> }
  /** The store settled it already (a durable sleep, a transactional completion). */
  | { readonly _tag: "Settled"; readonly outcome: OutcomeName; readonly state: State | "deleted" }

export interface Attempt {
  readonly claim: Claim
  readonly definition: TaskDefinition
  readonly leaseMs: number
  readonly tracked: TrackedLease
  /** Set once; the first ending stands. */
  readonly ending: Ending | undefined
  /** Sets the ending if there is none, interrupts the attempt's root fiber and never returns. */
  readonly end: (ending: Ending) => Effect.Effect<never>
  /** Undefined while it has none but its timeout and deadline. */
  readonly limits: TimeLimits | undefined
  /** The same, made when the first limit is set. */
  readonly limited: () => TimeLimits
  /** The steps whose bodies run; undefined until it uses one. */
  stepsUnderWay: ReadonlySet<string> | undefined
  /** What the handler says it cost; undefined until it says something. */
  charges: ReadonlyArray<Charge> | undefined
  /** What the handler logged; undefined until it logs something. */
  log: NewestLines | undefined
  /** Monotonic; undefined while the claim waits in the buffer. */
  readonly startedAt: number | undefined
  /** What was written for its first step while it waited for its slot. */
  readonly ahead: AheadMark | undefined
  /** No ending yet, and the lease is valid on this process's clock: a step may start. */
  readonly isOwned: () => boolean
}

/** The attempt as the worker drives it. */
export class LocalAttempt implements Attempt {
  ending: Ending | undefined = undefined
  fiber: Fiber.Fiber<unknown, unknown> | undefined = undefined
  startedAt: number | undefined = undefined
  endedAt: number | undefined = undefined
  /** When the handler must stop, and for which reason. */
  dueAt = Number.POSITIVE_INFINITY
  dueReason: "timeout" | "deadline" = "timeout"
  limits: TimeLimits | undefined = undefined
  stepsUnderWay: ReadonlySet<string> | undefined = undefined
  /** Whoever watches it hears of limits that may be met earlier than those before them. */
  lookBy: (at: number) => void = nobodyWatches
  /** Monotonic: when it was told to stop. */
  toldAt: number | undefined = undefined
  /** The finalizers of its scope. */
  closing: Fiber.Fiber<unknown, unknown> | undefined = undefined
  /** When patience with a handler that was told to stop, or with its finalizers, is over. */
  stuckAt = Number.POSITIVE_INFINITY
  isInterrupted = false
  /** Its interruption found it where it takes none. One that took it, and still runs, is cleaning up. */
  isDeaf = false
  /** How the handler ended, while the attempt's own finalizers run. */
  outcome: Outcome | undefined = undefined
  /** Undefined until it is next to start. */
  ahead: AheadMark | undefined = undefined
  charges: ReadonlyArray<Charge> | undefined = undefined
  log: NewestLines | undefined = undefined
  /** Undefined when it is not traced, and once the span has ended. */
  span: Span | undefined = undefined
  /** Undefined until it tracks something. */
  work: Tracked | undefined = undefined
  isClosing = false
  isZombie = false
  /** The lease was given back: nothing of this attempt is settled any more. */
  isReleased = false
  readonly claim: Claim
  readonly registration: Registration
  readonly leaseMs: number
  readonly tracked: TrackedLease
  /** Monotonic time at which the claim arrived here. */
  readonly receivedAt: number

  constructor(claim: Claim, registration: Registration, leaseMs: number, tracked: TrackedLease, receivedAt: number) {
    this.claim = claim
    this.registration = registration
    this.leaseMs = leaseMs
    this.tracked = tracked
    this.receivedAt = receivedAt
  }

  get definition(): TaskDefinition {
    return this.registration.definition
  }

  readonly isOwned = (): boolean => this.ending === undefined && this.tracked.validUntil() > monotonicMs()

  limited(): TimeLimits {
    return this.limits ??= new TimeLimits(this.definition.stallTimeoutMs, (at) => this.lookBy(at))
  }

  readonly end = (ending: Ending): Effect.Effect<never> =>
    Effect.suspend(() => {
      this.interrupt(ending)
      // Not `never`: inside an uninterruptible region that would hang for good.
      return Effect.interrupt
    })

  /** False when the attempt was ending already. */
  interrupt(ending: Ending): boolean {
    if (this.ending !== undefined) return false
    this.ending = ending
    this.isInterrupted = true
    this.toldAt = monotonicMs()
    this.isDeaf = (this.fiber !== undefined && !isInterruptible(this.fiber)) || this.work?.isDeaf === true
    this.interruptFibers()
    return true
  }

  interruptFibers(): void {
    this.fiber?.interruptUnsafe()
    this.work?.interrupt()
  }
}

const nobodyWatches = (): void => {}
