/**
 * Asks the gate for work, never for more than there is room for, and where handlers end in numbers for many at once: it
 * waits until half of the room is free while claims wait for their slots, until a quarter is while ended attempts are
 * being settled, and for one slot otherwise. While there is nothing to run it waits for an announcement, a settlement
 * (which may open a limit) or its timer.
 */
import type { AdmitRequest, LeaseId } from "@headgate/core"
import type { EndedAtGate, Gate } from "@headgate/core/Gate"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { LeaseId as LeaseIds } from "@headgate/core/Ids"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type { Dispatch } from "./Dispatch.ts"
import type { InFlight } from "./InFlight.ts"
import { Nudge } from "./Nudge.ts"
import type { Outage } from "./Outage.ts"
import { backoffMs } from "./Ownership.ts"
import type { Reporter } from "./Reporter.ts"
import type { Settler } from "./Settler.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface AdmissionParts {
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
  private isQuiet = false
  private emptyPolls = 0
  private nextPollAt = 0
  private notBefore = 0
  private faults = 0
  /** Calls in a row that found nothing, whether or not there was more to see. */
  private fruitless = 0
  /** A call whose answer was lost: what it claimed is handed back before the next one. */
  private unanswered: readonly [] | readonly [Unanswered] = []
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
      else yield* Effect.catchCause(this.ask, (cause) => Effect.sync(() => this.failed(cause)))
    }
    yield* Effect.catchCause(this.handBackUnanswered, (cause) => Effect.sync(() => this.failed(cause)))
    this.hasEnded = true
  })

  /** There may be new work. */
  readonly wake = (): void => {
    this.isHungry = true
    this.nudge.give()
  }

  /** A handler ended. */
  readonly freed = (): void => {
    this.parts.inFlight.prefetch.freed()
    if (this.isWaitingForRoom) this.nudge.give()
  }

  /** While quiet nothing is asked for. */
  setQuiet(isQuiet: boolean): void {
    this.isQuiet = isQuiet
    this.wake()
  }

  readonly stop = (): void => {
    this.isStopped = true
    this.nudge.give()
  }

  /** How long to wait before the next call, unless nudged; 0 to make it now. */
  private pauseMs(now: number): number {
    if (now < this.notBefore) return this.notBefore - now
    if (this.isQuiet && this.unanswered.length === 0) return MAX_PAUSE_MS
    const { inFlight, settler } = this.parts
    const free = inFlight.free(now)
    const room = inFlight.room(now)
    const isFilling = inFlight.buffer.length > 0
    const enough = Math.min(inFlight.most(room), isFilling ? (room + 1) >> 1 : Math.max(1, room >> 2))
    this.isWaitingForRoom = free < enough && (free === 0 || isFilling || !settler.isIdle)
    // Claims that just came in get their slots in the next turn of the event loop, whether or not any of them ends.
    if (this.isWaitingForRoom) return isFilling && inFlight.hasSlot() ? 1 : MAX_PAUSE_MS
    return this.isHungry ? 0 : this.nextPollAt - now
  }

  private readonly ask: Effect.Effect<void, StoreUnavailable> = Effect.suspend(() => {
    const { dispatch, gate, inFlight, outage, reporter, settings } = this.parts
    if (this.unanswered.length > 0) return this.handBackUnanswered
    const leaseId = LeaseIds.make(crypto.randomUUID())
    const sentAt = monotonicMs()
    const capacity = inFlight.free(sentAt)
    const unanswered = { leaseId, until: sentAt + settings.leaseMs }
    this.isHungry = false
    this.unanswered = [unanswered]
    return Effect.map(gate.admit({ ...this.request, leaseId, capacity }), ({ claims, ended, more }) => {
      this.unanswered = []
      this.faults = 0
      inFlight.prefetch.answered(sentAt, monotonicMs(), inFlight.held === 0)
      outage.succeeded(OPERATION)
      reporter.claimed(claims.length)
      if (ended.length > 0) tellEnded(reporter, ended)
      const found = claims.length + ended.length
      this.fruitless = found > 0 ? 0 : this.fruitless + 1
      this.isHungry ||= claims.length === capacity || (more && this.fruitless < MAX_FRUITLESS)
      this.schedulePoll(claims.length > 0)
      dispatch.accept(claims, sentAt)
    })
  })

  /** What calls without an answer claimed. Later than one lease it comes back by itself. */
  private readonly handBackUnanswered: Effect.Effect<void, StoreUnavailable> = Effect.suspend(() => {
    const [first] = this.unanswered
    if (first === undefined) return Effect.void
    const abandon = monotonicMs() > first.until ? Effect.void : this.parts.gate.abandon(first.leaseId)
    return Effect.map(abandon, () => void (this.unanswered = []))
  })

  private failed(cause: Cause.Cause<StoreUnavailable>): void {
    this.parts.outage.failed(OPERATION, cause)
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

const tellEnded = (reporter: Reporter, ended: ReadonlyArray<EndedAtGate>): void => {
  const late = ended.filter(({ reason }) => reason === "deadline" || reason === "queue_timeout")
  const jobs = ended.filter((one) => !late.includes(one))
  if (late.length > 0) reporter.expired(late.map(({ jobId }) => jobId))
  if (jobs.length > 0) reporter.turnedAway(jobs)
}

interface Unanswered {
  readonly leaseId: LeaseId
  /** Monotonic. */
  readonly until: number
}

const OPERATION = "Gate.admit"
const MAX_PAUSE_MS = 1000
const MIN_POLL_MS = 10
/** Where all there is to see is held, looking on at once would be for nothing. */
const MAX_FRUITLESS = 50
