/**
 * The background work every queue needs, done by whichever worker holds the duty's lease: due jobs become available,
 * expired leases are reclaimed, overdue jobs are archived, finished ones evicted, poison is taken out, what is held is
 * noted, and dead letters are brought back. A loop survives whatever the store answers, and a drain gives the duties up,
 * so that another worker takes them over at once.
 */
import { Duties, REDRIVE_DUTY } from "@headgate/core/Duties"
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import type { Outage } from "./Outage.ts"
import { backoffMs } from "./Ownership.ts"
import type { Reporter } from "./Reporter.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

interface HousekeepingParts {
  readonly settings: WorkerSettings
  readonly duties: Duties["Service"]
  readonly reporter: Reporter
  readonly outage: Outage
  /** Jobs became available. */
  readonly wake: () => void
}

/** One round of a duty; answers how long to wait for the next. */
interface Duty {
  readonly name: string
  readonly leaseMs: number
  readonly sweep: Effect.Effect<number, StoreUnavailable>
}

const SWEEP_LIMIT = 1000

/** Runs until interrupted, and resigns then. */
export const run = (parts: HousekeepingParts): Effect.Effect<void> =>
  Effect.forEach(dutiesOf(parts), (duty) => keepUp(parts, duty), { concurrency: "unbounded", discard: true })

const dutiesOf = (parts: HousekeepingParts): ReadonlyArray<Duty> => {
  // So short that the duties of a dead worker are taken over before the leases on its jobs have run out.
  const leaseMs = Math.min(Math.max(parts.settings.leaseMs / 2, MIN_DUTY_LEASE_MS), MAX_DUTY_LEASE_MS)
  return [
    promote(parts, leaseMs),
    reclaim(parts, leaseMs),
    expire(parts, leaseMs),
    quarantine(parts, leaseMs),
    evict(parts),
    observe(parts),
    redrive(parts, leaseMs)
  ]
}

const promote = ({ duties, wake }: HousekeepingParts, leaseMs: number): Duty => ({
  name: "promote",
  leaseMs,
  sweep: Effect.map(duties.promoteDue(SWEEP_LIMIT), ({ nextDueInMs, promoted }) => {
    if (promoted > 0) wake()
    return promoted >= SWEEP_LIMIT
      ? 0
      : Math.min(Math.max(nextDueInMs ?? MAX_PROMOTE_MS, MIN_PROMOTE_MS), MAX_PROMOTE_MS)
  })
})

const reclaim = ({ duties, reporter, settings }: HousekeepingParts, leaseMs: number): Duty => ({
  name: "reclaim",
  leaseMs,
  sweep: Effect.map(duties.reclaimExpired(SWEEP_LIMIT), (reclaimed) => {
    for (const lost of reclaimed) {
      const { crashAttempt, jobId, kind, state, worker } = lost
      reporter.emit({ _tag: "JobReclaimed", jobId, kind, worker, state })
      if (state === "quarantined") reporter.quarantined(jobId, kind, crashAttempt, lost)
    }
    return reclaimed.length >= SWEEP_LIMIT ? 0 : Math.min(RECLAIM_MS, settings.leaseMs / 4)
  })
})

const expire = ({ duties, reporter }: HousekeepingParts, leaseMs: number): Duty => ({
  name: "expire",
  leaseMs,
  sweep: Effect.map(duties.expireDue(SWEEP_LIMIT), (jobIds) => {
    if (jobIds.length > 0) reporter.expired(jobIds)
    return jobIds.length >= SWEEP_LIMIT ? 0 : SWEEP_MS
  })
})

const quarantine = ({ duties, reporter }: HousekeepingParts, leaseMs: number): Duty => ({
  name: "quarantine",
  leaseMs,
  sweep: Effect.map(duties.quarantineSweep(SWEEP_LIMIT), ({ isDone, jobIds }) => {
    if (jobIds.length > 0) reporter.turnedAway(jobIds.map((jobId) => ({ jobId, reason: "fingerprint" as const })))
    return isDone ? SWEEP_MS : BETWEEN_PARTS_MS
  })
})

const evict = ({ duties, reporter }: HousekeepingParts): Duty => ({
  name: "evict",
  leaseMs: 3 * EVICT_MS,
  sweep: Effect.map(duties.evictRetained(SWEEP_LIMIT), (count) => {
    if (count > 0) reporter.evicted(count)
    return count >= SWEEP_LIMIT ? 0 : EVICT_MS
  })
})

const observe = ({ duties }: HousekeepingParts): Duty => ({
  name: "observe",
  leaseMs: 3 * OBSERVE_MS,
  sweep: Effect.as(duties.observeHolds(OBSERVE_LIMIT), OBSERVE_MS)
})

const redrive = ({ duties, reporter, wake }: HousekeepingParts, leaseMs: number): Duty => ({
  name: REDRIVE_DUTY,
  leaseMs,
  sweep: Effect.map(duties.redriveStep, ({ nextDueInMs, step }) => {
    if (step !== undefined) reporter.redriven(step)
    if (step !== undefined && step.moved > 0) wake()
    // Without a step the one that is due is being steered or done elsewhere.
    return Math.min(Math.max(nextDueInMs ?? SWEEP_MS, step === undefined ? MIN_REDRIVE_MS : 0), SWEEP_MS)
  })
})

const keepUp = (parts: HousekeepingParts, duty: Duty): Effect.Effect<never> => {
  const { duties, outage, settings } = parts
  const { leaseMs } = duty
  let heldUntil = 0
  let faults = 0
  const hold = Effect.suspend(() => {
    const sentAt = monotonicMs()
    if (heldUntil - sentAt > leaseMs / 2) return Effect.succeed(true)
    return Effect.map(duties.claimDuty(duty.name, settings.id, leaseMs), (isHeld) => {
      heldUntil = isHeld ? sentAt + leaseMs : 0
      return isHeld
    })
  })
  const round = Effect.flatMap(hold, (isHeld) => isHeld ? duty.sweep : Effect.succeed(leaseMs / 2))
  const pause = (ms: number) => Effect.sleep(ms * (0.9 + 0.2 * Math.random()))
  const next = Effect.flatMap(outage.watch(`Duties.${duty.name}`, round), (ms) => {
    faults = ms === undefined ? faults + 1 : 0
    return pause(ms ?? backoffMs(faults))
  })
  const resign = Effect.suspend(() =>
    heldUntil === 0
      ? Effect.void
      : Effect.ignore(Effect.timeout(Effect.interruptible(duties.releaseDuty(duty.name, settings.id)), RESIGN_MS))
  )
  return Effect.onExit(Effect.forever(next), () => resign)
}

const MIN_PROMOTE_MS = 50
const MAX_PROMOTE_MS = 500
const SWEEP_MS = 1000
const RECLAIM_MS = 750
/** Between two parts of a sweep over all jobs, which is in no hurry: the gate turns away what it meets. */
const BETWEEN_PARTS_MS = 20
const EVICT_MS = 30_000
const OBSERVE_MS = 10_000
const OBSERVE_LIMIT = 500
const MIN_REDRIVE_MS = 50
const MIN_DUTY_LEASE_MS = 1000
const MAX_DUTY_LEASE_MS = 15_000
const RESIGN_MS = 1000
