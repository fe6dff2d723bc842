/** Tells what happens to attempts: telemetry events if somebody listens, metrics, and a warning where one is due. */
import type { InterruptionReason, JobId, OutcomeName, State, TerminalReason, WorkerId } from "@headgate/core"
import type { CallEnd, CallFault } from "@headgate/core/DeathCallbacks"
import type { RedriveStep } from "@headgate/core/Duties"
import type { Event, Telemetry } from "@headgate/core/Events"
import type { EndedAtGate } from "@headgate/core/Gate"
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { RedrivePause } from "@headgate/core/Redrive"
import type { StuckEvidence, StuckReason } from "@headgate/core/Stuck"
import type { WorkerOrders } from "@headgate/core/WorkerControl"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type { LocalAttempt } from "./Attempt.ts"
import * as Metrics from "./Metrics.ts"

export class Reporter {
  readonly worker: WorkerId
  private readonly telemetry: Telemetry
  private readonly context: Context.Context<never>
  private readonly ended = new Map<OutcomeName, number>()

  constructor(worker: WorkerId, telemetry: Telemetry, context: Context.Context<never>) {
    this.worker = worker
    this.telemetry = telemetry
    this.context = context
  }

  emit(event: Event): void {
    if (!this.telemetry.isListening) return
    try {
      this.telemetry.emit(event)
    } catch {
      // A listener's fault is its own.
    }
  }

  warn(message: string, ...details: ReadonlyArray<unknown>): void {
    Effect.runForkWith(this.context)(Effect.logWarning(message, ...details))
  }

  inform(message: string): void {
    Effect.runForkWith(this.context)(Effect.logInfo(message))
  }

  claimed(count: number): void {
    if (count > 0) Metrics.claimedJobs.updateUnsafe(count, this.context)
  }

  started(attempt: LocalAttempt): void {
    if (!this.telemetry.isListening) return
    const { kind, lease, queue } = attempt.claim
    this.emit({ _tag: "JobStarted", jobId: lease.jobId, kind, queue, fence: lease.fence })
  }

  /** The store has recorded the end. Counted when `flush` is called. */
  settled(attempt: LocalAttempt, outcome: OutcomeName, end: RecordedEnd): void {
    const { state } = end
    this.ended.set(outcome, (this.ended.get(outcome) ?? 0) + 1)
    if (state === "quarantined") {
      const { crashAttempt, kind, lease: { jobId } } = attempt.claim
      this.quarantined(jobId, kind, outcome === "crashed" ? crashAttempt + 1 : crashAttempt, end)
    }
    if (!this.telemetry.isListening || attempt.startedAt === undefined) return
    const { kind, lease, queue } = attempt.claim
    const durationMs = (attempt.endedAt ?? monotonicMs()) - attempt.startedAt
    this.emit({ _tag: "JobEnded", jobId: lease.jobId, kind, queue, fence: lease.fence, outcome, state, durationMs })
  }

  /** Never silent: the job stays where it is until somebody looks at it. */
  quarantined(jobId: string, kind: string, crashAttempt: number, end: Omit<RecordedEnd, "state">): void {
    const { closedFingerprint: fingerprint } = end
    const reason = end.reason === "fingerprint" ? "fingerprint" : "crash_limit"
    Metrics.quarantinedJobs.updateUnsafe(1, this.context)
    this.emit({ _tag: "JobQuarantined", jobId, kind, crashAttempt, reason })
    if (fingerprint !== undefined) {
      this.emit({ _tag: "FingerprintClosed", fingerprint, kind, jobId })
      this.warn(`Jobs with the fingerprint ${fingerprint}, of kind ${kind}, crash: none starts any more`)
    }
    // Of the others the fingerprint's own warning speaks.
    if (reason === "crash_limit") {
      const often = crashAttempt === 1 ? "once" : `${crashAttempt} times`
      this.warn(`Job ${jobId} of kind ${kind} is quarantined: it crashed ${often}`)
    }
  }

  /** By the sweep or at the gate. */
  turnedAway(jobs: ReadonlyArray<EndedAtGate>): void {
    for (const { reason } of jobs) {
      Metrics.turnedAwayFor(reason).updateUnsafe(1, this.context)
      if (reason === "fingerprint") Metrics.quarantinedJobs.updateUnsafe(1, this.context)
    }
    this.emit({ _tag: "JobsTurnedAway", jobs })
  }

  /** By the sweep or at the gate. */
  expired(jobIds: ReadonlyArray<JobId>): void {
    Metrics.expiredJobs.updateUnsafe(jobIds.length, this.context)
    this.emit({ _tag: "JobsExpired", jobIds })
  }

  redriven(step: RedriveStep): void {
    const { moved, pausedFor, redriveId, state } = step
    if (moved > 0) Metrics.redrivenJobs.updateUnsafe(moved, this.context)
    if (moved > 0 || state !== "running") this.emit({ _tag: "JobsRedriven", ...step })
    if (state === "paused") {
      this.warn(`Redrive ${redriveId} has paused: ${PAUSED[pausedFor ?? "failures"]}. Resume or cancel it`)
    }
  }

  /** A death handler was called. */
  called(end: CallEnd["_tag"]): void {
    Metrics.deathCallsEndedAs(end).updateUnsafe(1, this.context)
  }

  /** Never silent: nobody calls the handler again before an operator says so. */
  callGivenUp(death: { readonly key: string; readonly jobId: string; readonly kind: string }, fault: CallFault): void {
    Metrics.deathCallsEndedAs("given_up").updateUnsafe(1, this.context)
    this.emit({ _tag: "DeathHandlerGaveUp", ...death, error: `${fault.tag}: ${fault.message}` })
    this.warn(
      `The death handler of ${death.kind} has failed too often for ${death.key}: ${fault.tag}: ${fault.message}`
    )
  }

  evicted(count: number): void {
    Metrics.evictedJobs.updateUnsafe(count, this.context)
    this.emit({ _tag: "JobsEvicted", count })
  }

  flush(): void {
    for (const [outcome, count] of this.ended) Metrics.endedAs(outcome).updateUnsafe(count, this.context)
    this.ended.clear()
  }

  lost(attempt: LocalAttempt, reason: InterruptionReason): void {
    Metrics.lostLeases.updateUnsafe(1, this.context)
    this.emit({ _tag: "LeaseLost", jobId: attempt.claim.lease.jobId, kind: attempt.claim.kind, reason })
  }

  stuck(evidence: StuckEvidence): void {
    const { concurrency, jobId, kind, reason, stuckForMs, stage, zombies } = evidence
    this.emit({ _tag: "JobStuck", ...evidence })
    if (stage === "stalled") {
      return this.warn(`Job ${jobId} of kind ${kind} made no progress for ${stuckForMs} ms, and is interrupted`)
    }
    this.warn(`A handler does not stop: job ${jobId} of kind ${kind} ${STUCK[reason] ?? `was interrupted (${reason})`}`)
    if (zombies >= concurrency) {
      this.warn(`All ${concurrency} slots of worker ${this.worker} are taken by handlers that do not stop`)
    }
  }

  told({ actor, command }: WorkerOrders): void {
    this.emit({ _tag: "WorkerTold", worker: this.worker, command, actor })
    this.inform(`Worker ${this.worker} was told to ${command}${actor === undefined ? "" : ` by ${actor}`}`)
  }

  overMemory(bytes: number, limit: number): void {
    this.emit({ _tag: "MemoryLimitReached", worker: this.worker, bytes, limit })
    this.warn(`Worker ${this.worker} drains and ends: its process takes ${bytes} bytes, and its limit is ${limit}`)
  }

  hasEnded(why: string): void {
    this.inform(`Worker ${this.worker} has ended (${why})`)
  }

  zombies(count: number): void {
    Metrics.zombieHandlers.updateUnsafe(count, this.context)
  }
}

export interface RecordedEnd {
  readonly state: State | "deleted"
  readonly reason?: TerminalReason | undefined
  /** The fingerprint that this end has closed. */
  readonly closedFingerprint?: string | undefined
}

const STUCK: Partial<Record<StuckReason, string>> = {
  finalizers: "has answered, and its finalizers still run",
  ended: "has ended its attempt, and still runs"
}

const PAUSED: Record<RedrivePause, string> = {
  failures: "too many jobs of a stage failed again",
  unanswered: "no job of a stage came to an end in time"
}
