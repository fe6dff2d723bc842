/** The `Job` service of a job that runs in an isolated child: facts come from the worker, endings go back to it. */
import type { ActualCost, Job, JobFacts } from "@headgate/core/Job"
import { type InterruptionReason, MAX_CHARGE } from "@headgate/core/Leases"
import { refuseInteger } from "@headgate/core/Millis"
import type { Invalid } from "@headgate/core/Refusals"
import { traceContext } from "@headgate/core/TraceContext"
import type * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import { type ChosenEnding, Frame, jsonFrame } from "./IsolatedFrames.ts"
import { notInChild } from "./IsolatedLimits.ts"
import { extensionMs } from "./LeaseExtension.ts"
import type { Tracked } from "./Tracked.ts"
import { reported } from "./TrackedReports.ts"

type JobShape = Job["Service"]

export class ServedJob implements JobShape {
  /** The first ending stands. */
  ending: ChosenEnding | undefined = undefined
  /** Work that it tracks failed first. */
  failure: Cause.Cause<unknown> | undefined = undefined
  isInterrupted = false
  readonly facts: JobFacts
  private reason: InterruptionReason | undefined = undefined
  private fiber: Fiber.Fiber<unknown, unknown> | undefined = undefined
  /** Undefined until it tracks something. */
  private work: Tracked | undefined = undefined
  private readonly extensions = new Map<number, () => void>()
  private asked = 0
  private readonly say: (frame: Buffer) => void

  constructor(facts: Omit<JobFacts, "trace">, say: (frame: Buffer) => void) {
    this.facts = { ...facts, deadlineAtMs: facts.deadlineAtMs, trace: traceContext(facts.headers) }
    this.say = say
  }

  attach(fiber: Fiber.Fiber<unknown, unknown>): void {
    this.fiber = fiber
    // An ending that was chosen before the fiber was known here.
    if (this.ending !== undefined) fiber.interruptUnsafe()
  }

  interrupt(reason: InterruptionReason | undefined): void {
    if (this.hasEnded) return
    this.isInterrupted = true
    this.reason = reason
    this.interruptFibers()
  }

  /** Answers when all that it tracks has ended. */
  joined(exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> {
    const { work } = this
    if (work === undefined) return Effect.void
    return Effect.callback<void>((resume) => work.join(exit, () => resume(Effect.void)))
  }

  /** The worker has extended the lease. */
  extended(id: number): void {
    this.extensions.get(id)?.()
    this.extensions.delete(id)
  }

  /** Interrupts it as without a lease, and waits for its finalizers. */
  get lose(): Effect.Effect<void> {
    return Effect.suspend(() => {
      this.interrupt("lease_lost")
      return this.fiber === undefined ? Effect.void : Effect.asVoid(Fiber.await(this.fiber))
    })
  }

  get interruption(): JobShape["interruption"] {
    return Effect.sync(() => Option.fromUndefinedOr(this.reason))
  }

  get revoke(): Effect.Effect<never> {
    return this.choose({ _tag: "Revoke" })
  }

  get release(): Effect.Effect<never> {
    return this.choose({ _tag: "Release" })
  }

  snooze(duration: Duration.Input): Effect.Effect<never> {
    return this.choose({ _tag: "Snooze", ms: millis(duration) })
  }

  skip(reason: string): Effect.Effect<never> {
    return this.choose({ _tag: "Skip", reason })
  }

  rateLimited(options?: { readonly retryAfter?: Duration.Input | undefined }): Effect.Effect<never> {
    const retryAfter = options?.retryAfter
    return this.choose({
      _tag: "RateLimited",
      ...(retryAfter === undefined ? {} : { retryAfterMs: millis(retryAfter) })
    })
  }

  charge(actual: number | ActualCost): Effect.Effect<void, Invalid> {
    return Effect.suspend(() => {
      const refusal = refuseInteger("actual", typeof actual === "number" ? actual : actual.actual, 0, MAX_CHARGE)
      if (refusal !== undefined) return Effect.fail(refusal)
      return Effect.sync(() => this.say(jsonFrame(Frame.charge, { actual: sent(actual) })))
    })
  }

  extendLease(duration: Duration.Input): Effect.Effect<void, Invalid> {
    return Effect.flatMap(Effect.fromResult(extensionMs(duration)), (ms) =>
      Effect.callback<void>((resume) => {
        const id = this.asked++
        this.extensions.set(id, () => resume(Effect.void))
        this.say(jsonFrame(Frame.extend, { id, ms }))
      }))
  }

  track<A, E, R>(name: string, effect: Effect.Effect<A, E, R>): Effect.Effect<Fiber.Fiber<A, E>, E | Invalid, R> {
    return Effect.suspend(() => (this.work ??= this.makeWork()).track(name, effect))
  }

  private makeWork(): Tracked {
    return reported({
      hasEnded: () => this.hasEnded,
      failed: (cause) => {
        if (this.hasEnded) return
        this.failure = cause
        this.interruptFibers()
      },
      send: (report) => Effect.sync(() => this.say(jsonFrame(Frame.tracked, report)))
    })
  }

  private get hasEnded(): boolean {
    return this.isInterrupted || this.ending !== undefined || this.failure !== undefined
  }

  private interruptFibers(): void {
    this.fiber?.interruptUnsafe()
    this.work?.interrupt()
  }

  completeWith(): Effect.Effect<never, Invalid> {
    return Effect.fail(notInChild)
  }

  private choose(ending: ChosenEnding): Effect.Effect<never> {
    return Effect.suspend(() => {
      if (!this.hasEnded) this.ending = ending
      this.interruptFibers()
      return Effect.interrupt
    })
  }
}

/** A rate class travels by its name. */
const sent = (actual: number | ActualCost): number | ActualCost =>
  typeof actual === "number" || typeof actual.class === "string"
    ? actual
    : { ...actual, class: actual.class.name }

/** What is no duration is refused by the worker, like one of its own handlers'. */
const millis = (duration: Duration.Input): number | null =>
  Option.match(Duration.fromInput(duration), { onNone: () => null, onSome: Duration.toMillis })
