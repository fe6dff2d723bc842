/**
 * How many jobs to claim beyond the free slots: a few times as many as handlers end while the gate answers, so that short
 * jobs do not wait for it and long ones are left to others; some where the wait for the gate is a good part of a job.
 * What waited for a slot too long goes back to the queue, and for as long again nothing is claimed ahead.
 */
import type { WorkerSettings } from "./WorkerOptions.ts"

export class Prefetch {
  /** Longest wait of a claim for its slot. */
  readonly patienceMs: number
  private readonly fixed: number | undefined
  private readonly concurrency: number
  private target = 0
  private ended = 0
  /** When the last answered call of the gate was sent. */
  private sentAt = 0
  private pausedUntil = 0

  constructor({ concurrency, leaseMs, prefetch }: WorkerSettings) {
    this.fixed = prefetch
    this.concurrency = concurrency
    this.patienceMs = prefetch === undefined ? Math.min(leaseMs, PATIENCE_MS) : leaseMs
  }

  ahead(now: number): number {
    return now < this.pausedUntil ? 0 : this.fixed ?? this.target
  }

  /** A handler ended. */
  freed(): void {
    this.ended++
  }

  /** The most that one call may claim of so much room. Halves take turns: one runs while the other is claimed. */
  share(room: number): number {
    return this.fixed === undefined ? (room + 1) >> 1 : room
  }

  /**
   * Little's law: the rate of ends from one call to the next, times how long an answer takes. Three times that: what the
   * last call brought, what the next is to bring, and room to grow. One short pause does not undo it, and while there is
   * nothing to run, the pace that was known before stays.
   */
  answered(sentAt: number, now: number, isIdle: boolean): void {
    if (this.ended === 0 && (isIdle || now - this.sentAt < this.patienceMs)) {
      if (isIdle) this.sentAt = sentAt
      return
    }
    const answerMs = now - sentAt
    const cycleMs = Math.max(sentAt - this.sentAt, answerMs)
    const isBrief = this.concurrency * cycleMs <= BRIEF * answerMs * this.ended
    const wanted = Math.max(
      isBrief ? Math.max(2, this.concurrency >> 2) : 0,
      Math.floor(3 * this.ended * answerMs / cycleMs)
    )
    this.target = Math.min(MAX_PREFETCH, Math.max(wanted, this.target >> 1))
    this.ended = 0
    this.sentAt = sentAt
  }

  /** A claim waited too long: the pace known before is not that of now. */
  pause(now: number): void {
    this.pausedUntil = now + this.patienceMs
    this.target >>= 1
  }
}

/** The most it chooses by itself. */
export const MAX_PREFETCH = 1000
const PATIENCE_MS = 500
/** A job is brief when it takes less than so many answers of the gate. */
const BRIEF = 20
