/** What this worker holds now: handlers that run, claims that wait for a slot, and leases not given back yet. */
import type { JobId, LeaseRef } from "@headgate/core"
import type { LocalAttempt } from "./Attempt.ts"
import { MAX_PREFETCH, Prefetch } from "./Prefetch.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

export class InFlight {
  /** Attempts whose fiber is alive, zombies among them: each takes a slot. */
  readonly running = new Set<LocalAttempt>()
  /** Claims without a slot, in the gate's order. */
  readonly buffer: Array<LocalAttempt> = []
  /** Leases this process believes in: running, buffered, or waiting for their settlement. */
  held = 0
  zombies = 0
  private readonly byJob = new Map<JobId, LocalAttempt>()
  readonly prefetch: Prefetch
  private readonly settings: WorkerSettings

  constructor(settings: WorkerSettings) {
    this.settings = settings
    this.prefetch = new Prefetch(settings)
  }

  hold(attempt: LocalAttempt): void {
    this.held++
    this.byJob.set(attempt.claim.lease.jobId, attempt)
  }

  /** The lease ended, by whatever way. */
  release(attempt: LocalAttempt): void {
    if (attempt.isReleased) return
    attempt.isReleased = true
    attempt.tracked.end()
    attempt.ahead?.end()
    this.held--
    const { jobId } = attempt.claim.lease
    if (this.byJob.get(jobId) === attempt) this.byJob.delete(jobId)
  }

  holder(jobId: JobId, fence: LeaseRef["fence"] | undefined): LocalAttempt | undefined {
    const attempt = this.byJob.get(jobId)
    return attempt === undefined || (fence !== undefined && fence !== attempt.claim.lease.fence) ? undefined : attempt
  }

  hasSlot(): boolean {
    return this.running.size < this.settings.concurrency
  }

  /** How many claims the next call of the gate may bring. */
  free(now: number): number {
    // Its slots are not coming back soon: what it claimed ahead would only wait here.
    if (this.isStuck) return 0
    const room = this.room(now)
    const claims = room - this.running.size - this.buffer.length
    return Math.max(0, Math.min(claims, this.most(room), leaseCapacity(this.settings) - this.held))
  }

  /** How many claims any call may bring where all of the room is free: not more than one settlement is to write. */
  most(room: number): number {
    return Math.max(this.settings.concurrency, Math.min(MAX_PREFETCH, this.prefetch.share(room)))
  }

  /** Slots, and places for claims that wait for one. */
  room(now: number): number {
    return this.settings.concurrency + this.prefetch.ahead(now)
  }

  get isStuck(): boolean {
    return this.zombies >= this.settings.concurrency
  }
}

/** Room for a second round of claims while the first is being settled. */
export const leaseCapacity = (settings: WorkerSettings): number =>
  2 * (settings.concurrency + (settings.prefetch ?? MAX_PREFETCH))
