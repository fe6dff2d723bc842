/**
 * Tells of attempts that do not come to their end: gathers the evidence, reports it, and calls the worker's `onStuck`
 * with it. That call has `handlerGrace`, like a handler that was told to stop; what becomes of it changes nothing.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { StuckEvidence, StuckReason } from "@headgate/core/Stuck"
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { LocalAttempt } from "./Attempt.ts"
import { lookAt, MAX_FIBERS } from "./FiberLook.ts"
import type { InFlight } from "./InFlight.ts"
import { MAX_TIMER_MS } from "./Nudge.ts"
import type { Reporter } from "./Reporter.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface StuckParts {
  readonly settings: WorkerSettings
  readonly context: Context.Context<never>
  readonly inFlight: InFlight
  readonly reporter: Reporter
}

export class Stuck {
  private calls = 0
  private readonly parts: StuckParts

  constructor(parts: StuckParts) {
    this.parts = parts
  }

  /** No call of `onStuck` is under way. */
  get isIdle(): boolean {
    return this.calls === 0
  }

  tell(attempt: LocalAttempt, stage: StuckEvidence["stage"], loopLagMs: number): void {
    const { inFlight, reporter, settings } = this.parts
    const evidence = evidenceOf(attempt, stage, {
      worker: settings.id,
      loopLagMs,
      zombies: inFlight.zombies,
      concurrency: settings.concurrency
    })
    reporter.stuck(evidence)
    if (settings.onStuck !== undefined) this.call(settings.onStuck, evidence)
  }

  private call(onStuck: NonNullable<WorkerSettings["onStuck"]>, evidence: StuckEvidence): void {
    const { context, reporter, settings: { handlerGraceMs } } = this.parts
    this.calls++
    let isOver = false
    const over = (fault: string | undefined, ...details: ReadonlyArray<unknown>): void => {
      if (isOver) return
      isOver = true
      clearTimeout(timer)
      this.calls--
      if (fault !== undefined) reporter.warn(`onStuck ${fault}, for job ${evidence.jobId}`, ...details)
    }
    const fiber = Effect.runForkWith(context)(Effect.suspend(() => onStuck(evidence)))
    const timer = setTimeout(() => {
      over(`did not end within ${handlerGraceMs} ms`)
      fiber.interruptUnsafe()
    }, Math.min(handlerGraceMs, MAX_TIMER_MS))
    fiber.addObserver((exit) => Exit.isSuccess(exit) ? over(undefined) : over("failed", Cause.pretty(exit.cause)))
  }
}

type WorkerFacts = Pick<StuckEvidence, "worker" | "loopLagMs" | "zombies" | "concurrency">

const evidenceOf = (attempt: LocalAttempt, stage: StuckEvidence["stage"], facts: WorkerFacts): StuckEvidence => {
  const { claim, startedAt, stepsUnderWay } = attempt
  const now = monotonicMs()
  const since = (at: number | undefined): number => Math.max(0, Math.round(now - (at ?? now)))
  return {
    stage,
    reason: stage === "stalled" ? "progress_stalled" : reasonOf(attempt),
    jobId: claim.lease.jobId,
    kind: claim.kind,
    queue: claim.queue,
    attempt: claim.attempt,
    fence: claim.lease.fence,
    runningForMs: since(startedAt),
    stuckForMs: since(stage === "stalled" ? attempt.limits?.progressAt : attempt.toldAt ?? attempt.endedAt),
    steps: [...stepsUnderWay ?? []],
    fibers: [attempt.closing ?? attempt.fiber, ...attempt.work?.fibers ?? []].flatMap(lookAt).slice(0, MAX_FIBERS),
    ...facts
  }
}

const reasonOf = ({ ending, isClosing }: LocalAttempt): StuckReason =>
  isClosing || ending === undefined ? "finalizers" : ending._tag === "Interrupted" ? ending.reason : "ended"
