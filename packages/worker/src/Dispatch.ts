/**
 * Runs claims as attempts: resolve, resume, run, normalise, settle, report. One fiber per attempt, started as soon as
 * there is a slot; nothing that a handler does reaches another attempt.
 */
import type { Claim, InterruptionReason, LostLease, TaskDefinition } from "@headgate/core"
import { CodecError } from "@headgate/core/Codec"
import { storedError } from "@headgate/core/ErrorText"
import type { Registration } from "@headgate/core/Handler"
import { type HeartbeatSession, monotonicMs } from "@headgate/core/Heartbeat"
import * as Outcome from "@headgate/core/Outcome"
import { defaultRetry } from "@headgate/core/Retry"
import type { StuckEvidence } from "@headgate/core/Stuck"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { LocalAttempt } from "./Attempt.ts"
import type { AttemptContexts } from "./AttemptContexts.ts"
import type { InFlight } from "./InFlight.ts"
import { normalise, ofEnding } from "./Normalise.ts"
import type { Reporter } from "./Reporter.ts"
import type { Settler } from "./Settler.ts"
import type { Stuck } from "./Stuck.ts"
import { Watchdog } from "./Watchdog.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface DispatchParts {
  readonly settings: WorkerSettings
  readonly inFlight: InFlight
  readonly registrations: ReadonlyMap<string, Registration>
  readonly session: HeartbeatSession
  readonly contexts: AttemptContexts
  readonly settler: Settler
  readonly reporter: Reporter
  readonly stuck: Stuck
  /** The last slot was taken by a handler that does not stop, or the first of them came free again. */
  readonly stuckChanged: () => void
  /** A slot became free. */
  readonly freed: () => void
  /** An attempt was settled by a write of its own, which may have opened a limit for others. */
  readonly settledItself: () => void
}

export class Dispatch {
  readonly watchdog: Watchdog
  private isDraining = false
  private isQuiet = false
  private isFilling = false
  /** By kind: when content of it was last closed. The gate may have answered before. */
  private readonly closedAt = new Map<string, number>()
  private readonly parts: DispatchParts

  constructor(parts: DispatchParts) {
    this.parts = parts
    const { buffer, running } = parts.inFlight
    this.watchdog = new Watchdog({
      attempts: () => buffer.length === 0 ? [...running] : [...running, ...buffer],
      graceMs: parts.settings.handlerGraceMs,
      stop: (attempt, reason) => attempt.startedAt === undefined ? this.handBack(attempt) : this.stop(attempt, reason),
      overran: (attempt, { error, reason }) => {
        if (reason === "progress_stalled") this.tellStuck(attempt, "stalled")
        this.stop(attempt, reason, error)
      },
      giveUp: (attempt) => this.giveUp(attempt),
      tick: (now) => this.handBackOverdue(now)
    })
  }

  /** Takes over what one call of the gate gave; `sentAt` is when that call was sent. All are tracked before any starts. */
  accept(claims: ReadonlyArray<Claim>, sentAt: number): void {
    const { inFlight, registrations, session, settings, settler } = this.parts
    const receivedAt = monotonicMs()
    for (const claim of claims) {
      const registration = registrations.get(claim.kind) ?? unknownKind(claim.kind)
      const tracked = session.track(claim.lease, sentAt)
      const attempt = new LocalAttempt(claim, registration, settings.leaseMs, tracked, receivedAt)
      const earlier = inFlight.holder(claim.lease.jobId, undefined)
      if (earlier !== undefined) this.stop(earlier, "lease_lost")
      inFlight.hold(attempt)
      const closedAt = this.closedAt.get(claim.kind)
      if (closedAt !== undefined && closedAt >= sentAt) settler.push(attempt, Outcome.released)
      else inFlight.buffer.push(attempt)
    }
    if (this.isDraining || this.isQuiet || inFlight.isStuck) this.handBackBuffer()
    // Not at once: the next call of the gate is sent first, and on its way while these run.
    else setImmediate(this.fill)
    if (inFlight.buffer.length > 0) this.watchdog.lookBy(receivedAt + inFlight.prefetch.patienceMs)
  }

  /** The store says that a lease is no longer current. */
  lose(lost: LostLease): void {
    const attempt = this.parts.inFlight.holder(lost.jobId, lost.fence)
    if (attempt === undefined) return
    this.parts.inFlight.release(attempt)
    this.stop(attempt, lost.reason)
  }

  /** Interrupts the attempt for `reason`; a claim that waits for its slot is dropped. */
  stop(attempt: LocalAttempt, reason: InterruptionReason, error?: Outcome.OutcomeError): void {
    if (endsOwnership(reason)) this.parts.inFlight.release(attempt)
    const isStopped = attempt.interrupt({ _tag: "Interrupted", reason, error })
    if (attempt.startedAt !== undefined) {
      if (isStopped) this.watchdog.lookBy(monotonicMs() + this.parts.settings.handlerGraceMs)
      return
    }
    // One that is being handed back is reported by the answer to that.
    if (isStopped && this.unbuffer(attempt)) this.conclude(attempt, undefined)
  }

  /** What still runs when a drain can wait no longer. */
  giveUpRest(): void {
    for (const attempt of this.parts.inFlight.running) {
      if (attempt.isZombie) continue
      if (keepsJob(attempt)) this.tellStuck(attempt, "not_stopping")
      else this.giveUp(attempt)
    }
  }

  /** Of a kind whose content was found to crash: the store decides which of those that wait here may start. */
  handBackKind(kind: string): void {
    const { inFlight: { buffer }, settler } = this.parts
    this.closedAt.set(kind, monotonicMs())
    for (const attempt of buffer.splice(0)) {
      if (attempt.claim.kind === kind) settler.push(attempt, Outcome.released)
      else buffer.push(attempt)
    }
  }

  /** From now on claims are handed back instead of started; those in the buffer are handed back at once. */
  drain(): void {
    this.isDraining = true
    this.handBackBuffer()
  }

  /** The same, until it is over. */
  setQuiet(isQuiet: boolean): void {
    this.isQuiet = isQuiet
    if (isQuiet) this.handBackBuffer()
  }

  /** Nothing of it has started: it goes back uncharged, also when its lease ran out here. The fence decides whose it is. */
  private handBack(attempt: LocalAttempt): void {
    if (this.unbuffer(attempt)) this.parts.settler.push(attempt, Outcome.released)
  }

  private unbuffer(attempt: LocalAttempt): boolean {
    const { buffer } = this.parts.inFlight
    const at = buffer.indexOf(attempt)
    if (at !== -1) buffer.splice(at, 1)
    return at !== -1
  }

  private handBackBuffer(): void {
    for (const attempt of this.parts.inFlight.buffer.splice(0)) this.parts.settler.push(attempt, Outcome.released)
  }

  /** Another worker may have a free slot for what has waited here for too long. */
  private handBackOverdue(now: number): void {
    const { inFlight, settler } = this.parts
    const { patienceMs } = inFlight.prefetch
    const [oldest] = inFlight.buffer
    if (oldest === undefined || now - oldest.receivedAt < patienceMs) return
    for (const attempt of inFlight.buffer.splice(0)) {
      if (now - attempt.receivedAt < patienceMs) inFlight.buffer.push(attempt)
      else settler.push(attempt, Outcome.released)
    }
    inFlight.prefetch.pause(now)
  }

  /**
   * Starts what waits while there are slots, and no crash is on its way to the store. A handler that ends at once frees
   * its slot within the loop.
   */
  readonly fill = (): void => {
    if (this.isFilling || this.isDraining) return
    this.isFilling = true
    const { inFlight, settler } = this.parts
    try {
      while (inFlight.hasSlot() && !this.isDraining && !settler.awaitsCrash) {
        const next = inFlight.buffer.shift()
        if (next === undefined) break
        this.start(next)
      }
    } finally {
      this.isFilling = false
    }
  }

  /** What the task's own code throws on the way to its handler is a defect of that job alone. */
  private start(attempt: LocalAttempt): void {
    try {
      this.begin(attempt)
    } catch (defect) {
      this.finish(attempt, Outcome.crashed(storedError(defect)))
    }
  }

  private begin(attempt: LocalAttempt): void {
    const { claim } = attempt
    const now = monotonicMs()
    this.setDue(attempt, now)
    if (!attempt.isOwned()) return this.parts.settler.push(attempt, Outcome.released)
    if (attempt.dueAt <= now) return this.conclude(attempt, Outcome.deadlinePassed)
    attempt.startedAt = now
    attempt.lookBy = this.lookBy
    if (attempt.definition.stallTimeoutMs !== undefined) attempt.limited()
    this.parts.inFlight.running.add(attempt)
    this.parts.reporter.started(attempt)
    const payload = attempt.definition.decodePayload(claim.payload, claim.schemaVersion)
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
    if (attempt.endedAt === undefined) this.watchdog.lookBy(Math.min(attempt.dueAt, attempt.tracked.validUntil()))
  }

  /** What the handler answered stands; what its scope's finalizers do changes nothing. */
  private closeScope(attempt: LocalAttempt, exit: Exit.Exit<unknown, unknown>, scope: Scope.Closeable): void {
    attempt.endedAt = monotonicMs()
    const outcome = normalise(attempt, exit)
    if (scope.state._tag !== "Open") return this.finish(attempt, outcome)
    attempt.outcome = outcome
    attempt.isClosing = true
    const closing = Effect.runForkWith(attempt.registration.context)(Scope.close(scope, exit))
    attempt.closing = closing
    closing.addObserver(() => this.finish(attempt, outcome))
    this.watchdog.lookBy(attempt.endedAt + this.parts.settings.handlerGraceMs)
  }

  private finish(attempt: LocalAttempt, outcome: Outcome.Outcome | undefined): void {
    const { inFlight } = this.parts
    inFlight.running.delete(attempt)
    if (attempt.isZombie) this.countZombies(-1)
    else this.conclude(attempt, outcome)
    if (inFlight.buffer.length > 0) this.fill()
    this.parts.freed()
  }

  private conclude(attempt: LocalAttempt, outcome: Outcome.Outcome | undefined): void {
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
  private giveUp(attempt: LocalAttempt): void {
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
    this.conclude(attempt, attempt.outcome ?? (ending === undefined ? undefined : ofEnding(attempt, ending)))
  }

  /** With its last slot a worker hands over: what waits here goes back, and its duties go to others. */
  private countZombies(change: 1 | -1): void {
    const { inFlight, reporter, stuckChanged } = this.parts
    const wasStuck = inFlight.isStuck
    inFlight.zombies += change
    reporter.zombies(inFlight.zombies)
    if (inFlight.isStuck === wasStuck) return
    if (inFlight.isStuck) this.handBackBuffer()
    stuckChanged()
  }

  private tellStuck(attempt: LocalAttempt, stage: StuckEvidence["stage"]): void {
    this.parts.stuck.tell(attempt, stage, this.watchdog.lagMs())
  }

  private readonly lookBy = (at: number): void => this.watchdog.lookBy(at)
}

/** Deaf to a shutdown it works on until the process ends; before that nobody else may start the job. */
const keepsJob = ({ ending, isDeaf }: LocalAttempt): boolean =>
  isDeaf && ending?._tag === "Interrupted" && ending.reason === "shutdown"

const endsOwnership = (reason: InterruptionReason): boolean =>
  reason === "lease_lost" || reason === "operator_cancel" || reason === "superseded"

/** The gate gives no kind that was not asked for; a store that does is answered like one with a payload nobody can read. */
const unknownKind = (kind: string): Registration => {
  const unknown = Result.fail(new CodecError({ direction: "decode", message: `no handler for kind ${kind}`, kind }))
  const codec = { encode: () => unknown, decode: () => unknown }
  const definition: TaskDefinition = {
    kind,
    aliases: [],
    version: 1,
    queue: "default",
    policies: [],
    retry: defaultRetry,
    stepSet: undefined,
    steps: [],
    stepMappings: [],
    stepTimeoutMs: undefined,
    stallTimeoutMs: undefined,
    decodePayload: () => unknown,
    success: codec,
    error: codec,
    onError: () => undefined
  }
  return { definition, run: () => Effect.void, context: Context.empty() }
}
