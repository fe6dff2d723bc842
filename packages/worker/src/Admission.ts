/**
 * Asks the gate for work, never for more than there is room for. While handlers end in numbers it waits until a quarter
 * of the room is free or nothing is being settled, so that one call serves many; while there is nothing to run it waits
 * for an announcement, a settlement (which may open a limit) or its timer.
 */
import type { AdmitRequest, LeaseId } from "@headgate/core"
import type { Gate } from "@headgate/core/Gate"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { LeaseId as LeaseIds } from "@headgate/core/Ids"
import * as Effect from "effect/Effect"
import type { Dispatch } from "./Dispatch.ts"
import type { InFlight } from "./InFlight.ts"
import { Nudge } from "./Nudge.ts"
import type { Outage } from "./Outage.ts"
import { backoffMs } from "./Ownership.ts"
import type { Reporter } from "./Reporter.ts"
import type { Settler } from "./Settler.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

export interface AdmissionParts {
  readonly settings: WorkerSettings
  readonly queues: ReadonlyArray<string>
  readonly kinds: AdmitRequest["kinds"]
  readonly gate: Gate["Service"]
  readonly inFlight: InFlight
  readonly settler: Settler
  readonly dispatch: Dispatch
  readonly reporter: Reporter
  readonly outage: Outage
}

export class Admission {
  hasEnded = false
  private readonly parts: AdmissionParts
  private readonly nudge = new Nudge()
  /** There may be work that the last call did not see. */
  private isHungry = true
  private isWaitingForRoom = false
  private isStopped = false
  private emptyPolls = 0
  private nextPollAt = 0
  private notBefore = 0
  private faults = 0
  /** Calls whose answer was lost: what they claimed is handed back. */
  private unanswered: ReadonlyArray<Unanswered> = []
  private readonly request: Omit<AdmitRequest, "leaseId" | "capacity">

  constructor(parts: AdmissionParts) {
    this.parts = parts
    const { kinds, queues, settings } = parts
    this.request = { worker: settings.id, queues, kinds, leaseMs: settings.leaseMs, quantum: undefined }
  }

  /** Runs until `stop`. Not to be interrupted: a claim whose answer is thrown away waits for its lease to run out. */
  readonly run: Effect.Effect<void> = Effect.gen({ self: this }, function*() {
    while (!this.isStopped) {
      const pause = this.pauseMs(monotonicMs())
      if (pause > 0) yield* this.nudge.wait(pause)
      else if (yield* this.handBackUnanswered) yield* this.ask
    }
    yield* this.handBackUnanswered
    this.hasEnded = true
  })

  /** There may be new work. */
  readonly wake = (): void => {
    this.isHungry = true
    this.nudge.give()
  }

  /** A handler ended. */
  readonly freed = (): void => {
    if (this.isWaitingForRoom) this.nudge.give()
  }

  readonly stop = (): void => {
    this.isStopped = true
    this.nudge.give()
  }

  /** How long to wait before the next call, unless nudged; 0 to make it now. */
  private pauseMs(now: number): number {
    if (now < this.notBefore) return this.notBefore - now
    const { concurrency, prefetch } = this.parts.settings
    const free = this.parts.inFlight.free(now)
    this.isWaitingForRoom = free < Math.max(1, (concurrency + prefetch) >> 2) && (free === 0 || !this.parts.settler.isIdle)
    if (this.isWaitingForRoom) return MAX_PAUSE_MS
    return this.isHungry ? 0 : this.nextPollAt - now
  }

  private readonly ask: Effect.Effect<void> = Effect.suspend(() => {
    const { dispatch, gate, inFlight, outage, reporter, settings } = this.parts
    const leaseId = LeaseIds.make(crypto.randomUUID())
    const sentAt = monotonicMs()
    const capacity = inFlight.free(sentAt)
    this.isHungry = false
    return Effect.matchCause(gate.admit({ ...this.request, leaseId, capacity }), {
      onFailure: (cause) => {
        outage.failed("Gate.admit", cause)
        this.unanswered = [...this.unanswered, { leaseId, until: sentAt + settings.leaseMs }]
        this.hold()
      },
      onSuccess: ({ claims, more }) => {
        outage.succeeded("Gate.admit")
        this.faults = 0
        reporter.claimed(claims.length)
        if (more || claims.length === capacity) this.isHungry = true
        this.schedulePoll(claims.length > 0)
        dispatch.accept(claims, sentAt)
      }
    })
  })

  /** What calls without an answer claimed; true when nothing is left of it. Later than one lease it came back by itself. */
  private readonly handBackUnanswered: Effect.Effect<boolean> = Effect.suspend(() => {
    const [first, ...others] = this.unanswered
    if (first === undefined) return Effect.succeed(true)
    if (monotonicMs() > first.until) {
      this.unanswered = others
      return this.handBackUnanswered
    }
    return Effect.matchCauseEffect(this.parts.gate.abandon(first.leaseId), {
      onFailure: (cause) => {
        this.parts.outage.failed("Gate.admit", cause)
        this.hold()
        return Effect.succeed(false)
      },
      onSuccess: () => {
        this.unanswered = others
        return this.handBackUnanswered
      }
    })
  })

  private hold(): void {
    this.isHungry = true
    this.notBefore = monotonicMs() + backoffMs(this.faults++)
  }

  /** From a twentieth of the interval after work, doubled while there is none, each 80 to 100 %. */
  private schedulePoll(hadWork: boolean): void {
    const { pollMs } = this.parts.settings
    this.emptyPolls = hadWork ? 0 : this.emptyPolls + 1
    const pause = Math.min(pollMs, Math.max(MIN_POLL_MS, pollMs / 20) * 2 ** Math.min(this.emptyPolls, 10))
    this.nextPollAt = monotonicMs() + pause * (0.8 + 0.2 * Math.random())
  }
}

interface Unanswered {
  readonly leaseId: LeaseId
  /** Monotonic. */
  readonly until: number
}

const MAX_PAUSE_MS = 1000
const MIN_POLL_MS = 10
