/**
 * How a worker stands: at work or quiet, on duty or resigned, or at its end, as its operators or the program itself have
 * told it. What they said last holds; the heartbeat tells the store.
 */
import type { HeartbeatSession } from "@headgate/core/Heartbeat"
import type { WorkerOrders } from "@headgate/core/WorkerControl"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import type { Admission } from "./Admission.ts"
import type { Dispatch } from "./Dispatch.ts"
import type { Drain } from "./Drain.ts"
import type { InFlight } from "./InFlight.ts"
import type { LaunchedProcess } from "./LaunchedProcess.ts"
import type { Reporter } from "./Reporter.ts"

/** Why a worker has ended before its scope: told to by an operator, or its process takes too much memory. */
export type WorkerEnd = "restart" | "terminate" | "memory"

interface StandingParts {
  readonly admission: Admission
  readonly dispatch: Dispatch
  readonly drain: Drain
  readonly inFlight: InFlight
  readonly session: HeartbeatSession
  readonly reporter: Reporter
  readonly launched: LaunchedProcess | undefined
}

export class Standing {
  isQuiet = false
  isResigned = false
  /** Completes when the worker was told to end, and has drained. */
  readonly ended: Effect.Effect<WorkerEnd>
  private told: WorkerOrders | undefined
  private readonly end = Deferred.makeUnsafe<WorkerEnd>()
  private readonly onDuty = Latch.makeUnsafe(true)
  private readonly offDuty = Latch.makeUnsafe(false)
  private readonly parts: StandingParts

  constructor(parts: StandingParts) {
    this.parts = parts
    this.ended = Deferred.await(this.end)
  }

  /** What an operator said came with a heartbeat's answer. */
  obey(orders: WorkerOrders): void {
    const before = this.told
    this.told = orders
    const isResume = orders.command === "resume"
    if (orders.isQuiet) this.isQuiet = true
    else if (before?.isQuiet || isResume) this.isQuiet = false
    if (orders.isResigned) this.isResigned = true
    else if (before?.isResigned || isResume) this.isResigned = false
    this.parts.reporter.told(orders)
    this.changed()
    if (orders.end !== undefined) this.drainFor(orders.end)
  }

  quiet(): void {
    this.isQuiet = true
    this.changed()
  }

  resume(): void {
    this.isQuiet = false
    this.isResigned = false
    this.changed()
  }

  /** With nobody waiting for the work that is left, a drain takes what time it needs. */
  drainFor(why: WorkerEnd): void {
    const { drain, launched, reporter } = this.parts
    const draining = drain.begin(why === "terminate" ? "grace" : "any time")
    draining.addObserver(() => {
      if (!Deferred.doneUnsafe(this.end, Exit.succeed(why))) return
      reporter.hasEnded(why)
      launched?.end()
    })
  }

  /** Also when the worker has begun to drain, and when its last slot was taken by a handler that does not stop. */
  changed(): void {
    const { admission, dispatch, drain, inFlight, session } = this.parts
    const { isQuiet, isResigned } = this
    admission.setQuiet(isQuiet)
    dispatch.setQuiet(isQuiet)
    if (isResigned || drain.hasBegun || inFlight.isStuck) {
      this.onDuty.closeUnsafe()
      this.offDuty.openUnsafe()
    } else {
      this.offDuty.closeUnsafe()
      this.onDuty.openUnsafe()
    }
    session.stand?.({ appliedSeq: this.told?.seq ?? 0, isQuiet, isResigned, isDraining: drain.hasBegun })
  }

  /** Does the duties while they are the worker's to do: given up, they are interrupted. */
  whileOnDuty(duties: Effect.Effect<void>): Effect.Effect<never> {
    const spell = Effect.raceFirst(duties, this.offDuty.await)
    return Effect.forever(Effect.andThen(this.onDuty.await, spell))
  }
}
