/** Counters of the worker, kept by Effect's metric registry. Updated once per batch, never once per job. */
import type { OutcomeName } from "@headgate/core"
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

export const zombieHandlers = Metric.gauge("headgate_zombie_handlers", {
  description: "Handlers that were told to stop and still run"
})

const byOutcome = new Map<OutcomeName, Metric.Counter<number>>()

export const endedAs = (outcome: OutcomeName): Metric.Counter<number> => {
  const known = byOutcome.get(outcome)
  if (known !== undefined) return known
  const counter = Metric.withAttributes(endedAttempts, { outcome })
  byOutcome.set(outcome, counter)
  return counter
}
