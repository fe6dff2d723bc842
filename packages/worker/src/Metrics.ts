/** Counters of the worker, kept by Effect's metric registry. Updated once per batch, never once per job. */
import type { OutcomeName } from "@headgate/core"
import type { CallEnd } from "@headgate/core/DeathCallbacks"
import type { EndedAtGate } from "@headgate/core/Gate"
import * as Metric from "effect/Metric"

export const claimedJobs = Metric.counter("headgate_jobs_claimed_total", {
  description: "Jobs claimed by this process",
  incremental: true
})

export const endedAttempts = Metric.counter("headgate_attempts_ended_total", {
  description: "Attempts of this process whose end the store has recorded, by outcome",
  incremental: true
})

export const lostLeases = Metric.counter("headgate_leases_lost_total", {
  description: "Attempts that stopped owning their job before they could settle",
  incremental: true
})

export const quarantinedJobs = Metric.counter("headgate_jobs_quarantined_total", {
  description: "Jobs that this process has seen leave the queue for crashing, or for content that crashes",
  incremental: true
})

export const turnedAwayJobs = Metric.counter("headgate_jobs_turned_away_total", {
  description: "Jobs that a call or a sweep of this process ended for a policy, by reason",
  incremental: true
})

export const expiredJobs = Metric.counter("headgate_jobs_expired_total", {
  description: "Jobs that a call or a sweep of this process found past their deadline or their time in the queue",
  incremental: true
})

export const evictedJobs = Metric.counter("headgate_jobs_evicted_total", {
  description: "Ended jobs that a sweep of this process removed after their retention",
  incremental: true
})

export const redrivenJobs = Metric.counter("headgate_jobs_redriven_total", {
  description: "Archived jobs that a duty of this process brought back for a redrive",
  incremental: true
})

export const deathCalls = Metric.counter("headgate_death_calls_total", {
  description: "Calls of death handlers by this process, by how they ended",
  incremental: true
})

export const zombieHandlers = Metric.gauge("headgate_zombie_handlers", {
  description: "Handlers that were told to stop and still run"
})

/** One counter a value of the attribute, made when it is first asked for. */
const by = <Value extends string>(counter: Metric.Counter<number>, attribute: string) => {
  const known = new Map<Value, Metric.Counter<number>>()
  return (value: Value): Metric.Counter<number> => {
    const found = known.get(value)
    if (found !== undefined) return found
    const made = Metric.withAttributes(counter, { [attribute]: value })
    known.set(value, made)
    return made
  }
}

export const endedAs = by<OutcomeName>(endedAttempts, "outcome")

export const turnedAwayFor = by<EndedAtGate["reason"]>(turnedAwayJobs, "reason")

export const deathCallsEndedAs = by<CallEnd["_tag"]>(deathCalls, "end")
