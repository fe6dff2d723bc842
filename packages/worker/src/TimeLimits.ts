/**
 * The limits of one attempt that are finer than its timeout: on a step's body, and on the time without progress. Made
 * for the attempts that have one alone, and looked at by the watchdog: they take no timers of their own.
 *
 * Only the handler's own doing counts. While a call of the attempt's is at the store, the time without progress stands
 * still, and its end is progress; so an outage that the lease outlasts charges nothing.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import { wholeMillis } from "@headgate/core/Millis"
import type { OutcomeError } from "@headgate/core/Outcome"
import type { Invalid } from "@headgate/core/Refusals"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { Attempt } from "./Attempt.ts"

/** A limit that was met, and what is stored for it. */
export interface Overrun {
  readonly reason: "step_timeout" | "progress_stalled"
  readonly error: OutcomeError
}

interface Body {
  readonly timeoutMs: number
  dueAt: number
}

export class TimeLimits {
  readonly stallMs: number | undefined
  /** Monotonic. */
  progressAt = monotonicMs()
  /** By the identity of their step. */
  private readonly bodies = new Map<string, Body>()
  private callsAtStore = 0
  private sleeps = 0
  private readonly lookBy: (at: number) => void

  /** `lookBy` is told of each limit that may be met earlier than those before it. */
  constructor(stallMs: number | undefined, lookBy: (at: number) => void) {
    this.stallMs = stallMs
    this.lookBy = lookBy
    this.progressed()
  }

  /** When the first of them is met, if nothing happens. */
  get dueAt(): number {
    if (this.sleeps > 0) return Number.POSITIVE_INFINITY
    let dueAt = this.stallDueAt
    for (const body of this.bodies.values()) dueAt = Math.min(dueAt, body.dueAt)
    return dueAt
  }

  /** `steps` are those under way. */
  overrun(now: number, steps: ReadonlySet<string> | undefined): Overrun | undefined {
    if (now < this.dueAt) return undefined
    for (const [step, { dueAt, timeoutMs }] of this.bodies) if (now >= dueAt) return stepTimeout(step, timeoutMs)
    return this.stallMs === undefined ? undefined : progressStalled(this.stallMs, [...steps ?? []])
  }

  open(step: string, timeoutMs: number): void {
    this.bodies.set(step, { timeoutMs, dueAt: Number.POSITIVE_INFINITY })
    this.restart(step)
  }

  close(step: string): void {
    this.bodies.delete(step)
  }

  /** What the body waits for is not its own doing. */
  hold(step: string): void {
    const body = this.bodies.get(step)
    if (body !== undefined) body.dueAt = Number.POSITIVE_INFINITY
  }

  restart(step: string): void {
    const body = this.bodies.get(step)
    if (body === undefined) return
    body.dueAt = monotonicMs() + body.timeoutMs
    this.lookBy(body.dueAt)
  }

  enterStore(): void {
    this.callsAtStore++
  }

  leaveStore(): void {
    this.callsAtStore--
    this.progressed()
  }

  /** The attempt is being put down: nothing of it is late any more. */
  enterSleep(): void {
    this.sleeps++
  }

  leaveSleep(): void {
    this.sleeps--
  }

  private progressed(): void {
    if (this.stallMs === undefined) return
    this.progressAt = monotonicMs()
    this.lookBy(this.stallDueAt)
  }

  private get stallDueAt(): number {
    return this.stallMs === undefined || this.callsAtStore > 0
      ? Number.POSITIVE_INFINITY
      : this.progressAt + this.stallMs
  }
}

/** A time limit of a step's own, or else that of its task. */
export const stepTimeoutMs = (
  { definition }: Attempt,
  timeout: Duration.Input | undefined
): Effect.Effect<number | undefined, Invalid> =>
  timeout === undefined
    ? Effect.succeed(definition.stepTimeoutMs)
    : Effect.fromResult(wholeMillis("timeout", timeout))

/** The body of a step within its time. Without a limit it is the body itself. */
export const within = <A, E, R>(
  attempt: Attempt,
  step: string,
  timeoutMs: number | undefined,
  body: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  timeoutMs === undefined ? body : Effect.suspend(() => {
    const limits = attempt.limited()
    return during(body, () => limits.open(step, timeoutMs), () => limits.close(step))
  })

/** A part of a body that waits for the store; with its end the body's time starts anew. */
export const between = <A, E, R>(
  { limits }: Attempt,
  step: string,
  wait: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  limits === undefined ? wait : during(wait, () => limits.hold(step), () => limits.restart(step))

/** A call of the attempt's that is at the store until it answers, and is progress then. */
export const atStore = <A, E, R>({ limits }: Attempt, call: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  limits?.stallMs === undefined ? call : during(call, () => limits.enterStore(), () => limits.leaveStore())

/** The handler's own part of such a call. */
export const inHandler = <A, E, R>({ limits }: Attempt, part: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  limits?.stallMs === undefined ? part : during(part, () => limits.leaveStore(), () => limits.enterStore())

/** A durable sleep on its way to the store. */
export const puttingDown = <A, E, R>({ limits }: Attempt, sleep: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  limits === undefined ? sleep : during(sleep, () => limits.enterSleep(), () => limits.leaveSleep())

const during = <A, E, R>(effect: Effect.Effect<A, E, R>, enter: () => void, leave: () => void) =>
  Effect.suspend(() => {
    enter()
    return Effect.onExit(effect, () => Effect.sync(leave))
  })

const stepTimeout = (step: string, timeoutMs: number): Overrun => ({
  reason: "step_timeout",
  error: errorOf("StepTimeout", `step ${step} did not end within ${timeoutMs} ms`)
})

const progressStalled = (stallMs: number, steps: ReadonlyArray<string>): Overrun => ({
  reason: "progress_stalled",
  error: errorOf("ProgressStalled", `the attempt made no progress for ${stallMs} ms${inside(steps)}`)
})

const inside = (steps: ReadonlyArray<string>): string => steps.length === 0 ? "" : `, in ${steps.join(", ")}`

const errorOf = (tag: string, message: string): OutcomeError => ({ tag, message, text: `${tag}: ${message}` })
