/**
 * Gives claims their slots: each is started as soon as one is free, handed back when it has waited for too long or the
 * worker takes no work, and stopped for whatever ends it from outside.
 */
import type { Claim, InterruptionReason, LostLease } from "@headgate/core"
import type { Registration } from "@headgate/core/Handler"
import { type HeartbeatSession, monotonicMs } from "@headgate/core/Heartbeat"
import * as Outcome from "@headgate/core/Outcome"
import { LocalAttempt } from "./Attempt.ts"
import { Runner, type RunnerParts } from "./Runner.ts"
import { unknownKind } from "./UnknownKind.ts"
import { Watchdog } from "./Watchdog.ts"

interface DispatchParts extends Omit<RunnerParts, "watchdog"> {
  readonly registrations: ReadonlyMap<string, Registration>
  readonly session: HeartbeatSession
}

export class Dispatch {
  readonly watchdog: Watchdog
  private isDraining = false
  private isQuiet = false
  private isFilling = false
  /** By kind: when content of it was last closed. The gate may have answered before. */
  private readonly closedAt = new Map<string, number>()
  private readonly runner: Runner
  private readonly parts: DispatchParts

  constructor(parts: DispatchParts) {
    this.parts = parts
    const { buffer, running } = parts.inFlight
    this.watchdog = new Watchdog({
      attempts: () => buffer.length === 0 ? [...running] : [...running, ...buffer],
      graceMs: parts.settings.handlerGraceMs,
      stop: (attempt, reason) => attempt.startedAt === undefined ? this.handBack(attempt) : this.stop(attempt, reason),
      overran: (attempt, { error, reason }) => {
        if (reason === "progress_stalled") this.runner.tellStuck(attempt, "stalled")
        this.stop(attempt, reason, error)
      },
      giveUp: (attempt) => this.runner.giveUp(attempt),
      tick: (now) => this.handBackOverdue(now)
    })
    this.runner = new Runner({
      ...parts,
      watchdog: this.watchdog,
      freed: () => {
        if (buffer.length > 0) this.fill()
        parts.freed()
      },
      stuckChanged: () => this.stuckChanged()
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
    if (isStopped && this.unbuffer(attempt)) this.runner.conclude(attempt, undefined)
  }

  /** What still runs when a drain can wait no longer. */
  giveUpRest(): void {
    this.runner.giveUpRest()
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

  /** With its last slot a worker hands over: what waits here goes back, and its duties go to others. */
  private stuckChanged(): void {
    const { inFlight, stuckChanged } = this.parts
    if (inFlight.isStuck) this.handBackBuffer()
    stuckChanged()
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
        this.runner.start(next)
      }
    } finally {
      this.isFilling = false
    }
    this.expectNext()
  }

  /** The next round: as many of those that wait as there are slots, once all of the round before have started. */
  private expectNext(): void {
    const { contexts, inFlight: { buffer }, settings } = this.parts
    const count = Math.min(buffer.length, settings.concurrency)
    for (let at = 0; at < count; at++) {
      const attempt = buffer[at]!
      if (attempt.ahead !== undefined) return
      contexts.expect(attempt)
    }
  }
}

const endsOwnership = (reason: InterruptionReason): boolean =>
  reason === "lease_lost" || reason === "operator_cancel" || reason === "superseded"
