/**
 * Runs attempts that have a slot: decode, resume, run, close the scope, normalise, hand to the settler. One fiber per
 * attempt; what does not come to its end is given up.
 */
import { storedError } from "@headgate/core/ErrorText"
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as Outcome from "@headgate/core/Outcome"
import type { StuckEvidence } from "@headgate/core/Stuck"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import type { LocalAttempt } from "./Attempt.ts"
import type { AttemptContexts } from "./AttemptContexts.ts"
import type { InFlight } from "./InFlight.ts"
import { normalise, ofEnding } from "./Normalise.ts"
import type { Reporter } from "./Reporter.ts"
import type { Settler } from "./Settler.ts"
import type { Stuck } from "./Stuck.ts"
import type { Watchdog } from "./Watchdog.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

export interface RunnerParts {
  readonly settings: WorkerSettings
  readonly inFlight: InFlight
  readonly contexts: AttemptContexts
  readonly settler: Settler
  readonly reporter: Reporter
  readonly stuck: Stuck
  readonly watchdog: Watchdog
  /** The last slot was taken by a handler that does not stop, or the first of them came free again. */
  readonly stuckChanged: () => void
  /** A slot became free. */
  readonly freed: () => void
  /** An attempt was settled by a write of its own, which may have opened a limit for others. */
  readonly settledItself: () => void
}

export class Runner {
  private readonly parts: RunnerParts

  constructor(parts: RunnerParts) {
    this.parts = parts
  }

  /** What the task's own code throws on the way to its handler is a defect of that job alone. */
  start(attempt: LocalAttempt): void {
    try {
      this.begin(attempt)
    } catch (defect) {
      this.finish(attempt, Outcome.crashed(storedError(defect)))
    }
  }

  private begin(attempt: LocalAttempt): void {
    const { claim, definition } = attempt
    const now = monotonicMs()
    this.setDue(attempt, now)
    if (!attempt.isOwned()) return this.parts.settler.push(attempt, Outcome.released)
    if (attempt.dueAt <= now) return this.conclude(attempt, Outcome.deadlinePassed)
    attempt.startedAt = now
    attempt.ahead?.end()
    attempt.lookBy = this.lookBy
    if (definition.stallTimeoutMs !== undefined) attempt.limited()
    this.parts.inFlight.running.add(attempt)
    this.parts.reporter.started(attempt)
    const payload = definition.decodePayload(claim.payload, claim.schemaVersion)
    if (Result.isSuccess(payload)) this.run(attempt, payload.success)
    else this.finish(attempt, Outcome.undecodable(payload.failure.message))
  }

  private setDue(attempt: LocalAttempt, now: number): void {
    const { claimedAtMs, deadlineAtMs, timeoutMs } = attempt.claim
    if (timeoutMs !== undefined) attempt.dueAt = now + timeoutMs
    if (deadlineAtMs === undefined) return
    const deadlineAt = attempt.receivedAt + deadlineAtMs - claimedAtMs
    if (deadlineAt >= attempt.dueAt) return
    attempt.dueAt = deadlineAt
    attempt.dueReason = "deadline"
  }

  private run(attempt: LocalAttempt, payload: unknown): void {
    const scope = Scope.makeUnsafe()
    const { context, program } = this.parts.contexts.prepare(attempt, payload, scope)
    const fiber = Effect.runForkWith(context)(Effect.withFiber((fiber) => {
      attempt.fiber = fiber
      return program
    }))
    fiber.addObserver((exit) => {
      if (attempt.work === undefined) return this.closeScope(attempt, exit, scope)
      attempt.fiber = undefined
      attempt.work.join(exit, () => this.closeScope(attempt, exit, scope))
    })
    if (attempt.endedAt === undefined) this.parts.watchdog.lookBy(Math.min(attempt.dueAt, attempt.tracked.validUntil()))
  }

  /** What the handler answered stands; what its scope's finalizers do changes nothing. */
  private closeScope(attempt: LocalAttempt, exit: Exit.Exit<unknown, unknown>, scope: Scope.Closeable): void {
    attempt.endedAt = monotonicMs()
    const outcome = normalise(attempt, exit)
    this.parts.contexts.endSpan(attempt, exit, outcome)
    if (scope.state._tag !== "Open") return this.finish(attempt, outcome)
    attempt.outcome = outcome
    attempt.isClosing = true
    const closing = Effect.runForkWith(attempt.registration.context)(Scope.close(scope, exit))
    attempt.closing = closing
    closing.addObserver(() => this.finish(attempt, outcome))
    this.parts.watchdog.lookBy(attempt.endedAt + this.parts.settings.handlerGraceMs)
  }

  private finish(attempt: LocalAttempt, outcome: Outcome.Outcome | undefined): void {
    this.parts.inFlight.running.delete(attempt)
    if (attempt.isZombie) this.countZombies(-1)
    else this.conclude(attempt, outcome)
    this.parts.freed()
  }

  /** Nothing more is heard of it but the answer to its settlement. Without an outcome there is nothing to settle. */
  conclude(attempt: LocalAttempt, outcome: Outcome.Outcome | undefined): void {
    const { inFlight, reporter, settler } = this.parts
    if (outcome !== undefined && !attempt.isReleased) return settler.push(attempt, outcome)
    inFlight.release(attempt)
    const { ending } = attempt
    if (ending?._tag === "Settled") {
      reporter.settled(attempt, ending.outcome, ending)
      this.parts.settledItself()
    } else reporter.lost(attempt, ending?._tag === "Interrupted" ? ending.reason : "lease_lost")
  }

  /** Its attempt ends without the handler, which keeps its slot until it ends by itself; the fence refuses its writes. */
  giveUp(attempt: LocalAttempt): void {
    const { ending } = attempt
    if (keepsJob(attempt)) return
    if (ending?._tag === "Settled" && !attempt.isInterrupted) {
      attempt.isInterrupted = true
      attempt.interruptFibers()
      return
    }
    attempt.isZombie = true
    this.countZombies(1)
    this.tellStuck(attempt, "not_stopping")
    const outcome = attempt.outcome ?? (ending === undefined ? undefined : ofEnding(attempt, ending))
    this.parts.contexts.endSpan(attempt, Exit.interrupt(), outcome)
    this.conclude(attempt, outcome)
  }

  private countZombies(change: 1 | -1): void {
    const { inFlight, reporter, stuckChanged } = this.parts
    const wasStuck = inFlight.isStuck
    inFlight.zombies += change
    reporter.zombies(inFlight.zombies)
    if (inFlight.isStuck !== wasStuck) stuckChanged()
  }

  tellStuck(attempt: LocalAttempt, stage: StuckEvidence["stage"]): void {
    this.parts.stuck.tell(attempt, stage, this.parts.watchdog.lagMs())
  }

  /** What still runs when a drain can wait no longer. */
  giveUpRest(): void {
    for (const attempt of this.parts.inFlight.running) {
      if (attempt.isZombie) continue
      if (keepsJob(attempt)) this.tellStuck(attempt, "not_stopping")
      else this.giveUp(attempt)
    }
  }

  private readonly lookBy = (at: number): void => this.parts.watchdog.lookBy(at)
}

/** Deaf to a shutdown it works on until the process ends; before that nobody else may start the job. */
const keepsJob = ({ ending, isDeaf }: LocalAttempt): boolean =>
  isDeaf && ending?._tag === "Interrupted" && ending.reason === "shutdown"
