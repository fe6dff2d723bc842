/**
 * How many jobs to claim beyond the free slots: a few times as many as handlers end while the gate answers, so that short
 * jobs do not wait for it and long ones are left to others. What waited for a slot too long goes back to the queue, and
 * for as long again nothing is claimed ahead.
 */
import type { WorkerSettings } from "./WorkerOptions.ts"

export class Prefetch {
  /** Longest wait of a claim for its slot. */
  readonly patienceMs: number
  private readonly fixed: number | undefined
  private target = 0
  private ended = 0
  /** When the last answered call of the gate was sent. */
  private sentAt = 0
  private pausedUntil = 0

  constructor({ leaseMs, prefetch }: WorkerSettings) {
    this.fixed = prefetch
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
    return this.fixed === undefined ? room >> 1 : room
  }

  /**
   * Little's law: the rate of ends from one call to the next, times how long an answer takes. Three times that: what the
   * last call brought, what the next is to bring, and room to grow. One short pause does not undo it, and while there is
   * nothing to run, the pace that was known before stays.
   */
  answered(sentAt: number, now: number, isIdle: boolean): void {
    const answerMs = now - sentAt
    const cycleMs = Math.max(sentAt - this.sentAt, answerMs)
    const wanted = Math.floor(3 * this.ended * answerMs / cycleMs)
    if (!isIdle || this.ended > 0) this.target = Math.min(MAX_PREFETCH, Math.max(wanted, this.target >> 1))
    this.ended = 0
    this.sentAt = sentAt
  }

  /** A claim waited too long. */
  pause(now: number): void {
    this.pausedUntil = now + this.patienceMs
  }
}

/** The most it chooses by itself. */
export const MAX_PREFETCH = 1000
const PATIENCE_MS = 500
