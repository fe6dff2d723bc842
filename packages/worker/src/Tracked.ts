/**
 * The work that one attempt tracks: forked by `Job.track`, ended before the attempt is settled. Nothing of it exists for
 * an attempt that tracks nothing.
 */
import { isInTransaction } from "@headgate/core/OpenTransaction"
import { Invalid } from "@headgate/core/Refusals"
import {
  MAX_TRACKED_SHOWN,
  type TrackedReport,
  type TrackedState,
  validateTrackedName
} from "@headgate/core/TrackedWork"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import { isInterruptible } from "./FiberLook.ts"

/** Whose work it is. */
export interface TrackingHost {
  /** Nothing more is started. */
  readonly hasEnded: () => boolean
  /** The first of it that fails or dies. */
  readonly failed: (cause: Cause.Cause<unknown>) => void
  /** Operators would see something else now. */
  readonly changed: () => void
  /** Milliseconds on a monotonic clock. */
  readonly now: () => number
}

/** A fiber of tracked work, or below one. */
const IsTracked = Context.Reference<boolean>("@headgate/worker/IsTracked", { defaultValue: () => false })

interface Piece {
  readonly name: string
  readonly fiber: Fiber.Fiber<unknown, unknown>
  state: TrackedState
  since: number
}

export class Tracked {
  private readonly running = new Set<Piece>()
  /** The newest of those that have ended. */
  private readonly ended: Array<Piece> = []
  private omitted = 0
  private isWaiting = false
  /** What fails now fails because it was told to stop. */
  private isStopping = false
  private waiters: Array<() => void> = []
  private readonly host: TrackingHost

  constructor(host: TrackingHost) {
    this.host = host
  }

  track<A, E, R>(name: string, effect: Effect.Effect<A, E, R>): Effect.Effect<Fiber.Fiber<A, E>, E | Invalid, R> {
    const named = Effect.fromResult(validateTrackedName(name))
    const work = Effect.annotateLogs(Effect.provideService(effect, IsTracked, true), "tracked", name)
    const forked = Effect.map(Effect.forkDetach(work), (fiber) => {
      this.add(name, fiber)
      return fiber
    })
    const started = Effect.contextWith((context: Context.Context<never>) => {
      if (isInTransaction(context)) return inTransaction
      // Between fork and `add` there is no place for an interruption.
      return this.host.hasEnded() || this.isStopping ? Effect.interrupt : Effect.uninterruptible(forked)
    })
    return Effect.andThen(named, started)
  }

  /** Tells all of it to stop. */
  interrupt(): void {
    this.isStopping = true
    for (const { fiber } of this.running) fiber.interruptUnsafe()
  }

  /** Some of it does not take an interruption where it stands. */
  get isDeaf(): boolean {
    for (const { fiber } of this.running) if (!isInterruptible(fiber)) return true
    return false
  }

  /** Of the work that runs. */
  get fibers(): ReadonlyArray<Fiber.Fiber<unknown, unknown>> {
    return Array.from(this.running, ({ fiber }) => fiber)
  }

  /** The handler has ended like this; `then` is called once all of its work has. */
  join(exit: Exit.Exit<unknown, unknown>, then: () => void): void {
    if (exit._tag === "Failure") this.interrupt()
    if (this.running.size === 0) return then()
    this.isWaiting = true
    this.waiters.push(then)
    this.host.changed()
  }

  /** Waits until none of it runs. Tracked work itself does not wait: it would wait for its own end. */
  readonly idle: Effect.Effect<void> = Effect.flatMap(
    IsTracked,
    (isTracked) =>
      isTracked || this.running.size === 0
        ? Effect.void
        : Effect.callback<void>((resume) => {
          const waiter = () => resume(Effect.void)
          this.waiters.push(waiter)
          return Effect.sync(() => void (this.waiters = this.waiters.filter((other) => other !== waiter)))
        })
  )

  get report(): TrackedReport {
    const now = this.host.now()
    const newest = [...this.running, ...this.ended.toReversed()].slice(0, MAX_TRACKED_SHOWN)
    return {
      isWaiting: this.isWaiting,
      work: newest.map(({ name, since, state }) => ({ name, state, inStateForMs: now - since })),
      omitted: this.omitted + this.running.size + this.ended.length - newest.length
    }
  }

  private add(name: string, fiber: Fiber.Fiber<unknown, unknown>): void {
    const piece: Piece = { name, fiber, state: "running", since: this.host.now() }
    this.running.add(piece)
    this.host.changed()
    fiber.addObserver((exit) => this.end(piece, exit))
  }

  private end(piece: Piece, exit: Exit.Exit<unknown, unknown>): void {
    this.running.delete(piece)
    piece.state = exit._tag === "Success" ? "done" : Cause.hasInterruptsOnly(exit.cause) ? "stopped" : "failed"
    piece.since = this.host.now()
    this.ended.push(piece)
    if (this.ended.length > MAX_TRACKED_SHOWN) {
      this.ended.shift()
      this.omitted++
    }
    if (exit._tag === "Failure" && piece.state === "failed" && !this.isStopping) {
      this.interrupt()
      this.host.failed(exit.cause)
    }
    this.host.changed()
    if (this.running.size > 0) return
    for (const waiter of this.waiters.splice(0)) waiter()
  }
}

const inTransaction = new Invalid({
  field: "track",
  message: "work cannot be tracked inside an open transaction, which it would outlive"
})
