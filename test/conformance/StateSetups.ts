/**
 * Steps that bring the job `j1` into a state, always to the same time, with something on each counter: it has failed
 * once, and then a worker died that held it as `$lost`.
 */
import type { NewJob, Step } from "./Scenario.ts"

/** When every set-up is done, in the time of the scenario. */
export const READY_MS = 3000

/** How long a job that was made to wait for a time waits. */
export const WAIT_MS = 5000

export type Options = Omit<NewJob, "id" | "kind">

/** A running job is held as `$held` for 30 seconds. */
export const inState = (state: string, options: Options): ReadonlyArray<Step> => {
  const limits = { max_attempts: 9, crash_limit: state === "quarantined" ? 2 : 9 }
  const job = { id: "j1", kind: "greet", ...limits, ...options }
  if (state === "pending") return [{ enqueue: { ...job, pending: true } }, { advance_ms: READY_MS }]
  const end = ends[state]
  if (end === undefined) throw new Error(`no way leads to ${state}`)
  return [{ enqueue: job }, ...history, ...end]
}

const admit = (as: string, lease_ms = 30_000): Step => ({ admit: { worker: "w1", lease_ms }, as })

const history: ReadonlyArray<Step> = [
  admit("failed"),
  { settle: { claim: "$failed", outcome: "retry", delay_ms: 1000 } },
  { advance_ms: 1000 },
  { promote_due: { limit: 9 } },
  admit("lost", 1000),
  { advance_ms: 1000 },
  { reclaim: { limit: 9 } },
  { advance_ms: 1000 },
  { promote_due: { limit: 9 } }
]

const ends: Readonly<Record<string, ReadonlyArray<Step>>> = {
  available: [],
  running: [admit("held")],
  scheduled: [admit("held"), { settle: { claim: "$held", outcome: "snooze", delay_ms: WAIT_MS } }],
  retryable: [admit("held"), { settle: { claim: "$held", outcome: "not_a_failure", delay_ms: WAIT_MS } }],
  completed: [admit("held"), { settle: { claim: "$held", outcome: "success" } }],
  archived: [admit("held"), { settle: { claim: "$held", outcome: "skip", reason: "not needed" } }],
  cancelled: [{ cancel: { job: "j1" } }],
  quarantined: [admit("held"), { settle: { claim: "$held", outcome: "crashed" } }],
  undecodable: [admit("held"), { settle: { claim: "$held", outcome: "undecodable", reason: "no such field" } }]
}

export interface Standing {
  readonly attempt: number
  readonly crash_attempt: number
  readonly fence: number
  readonly scheduled_at_ms: number
}

/** What `inState` leaves the job with. */
export const standing = (state: string): Standing => {
  if (state === "none" || state === "pending") return { attempt: 0, crash_attempt: 0, fence: 0, scheduled_at_ms: 0 }
  return {
    attempt: 1,
    crash_attempt: state === "quarantined" ? 2 : 1,
    fence: state === "available" || state === "cancelled" ? 2 : 3,
    scheduled_at_ms: READY_MS + (state === "scheduled" || state === "retryable" ? WAIT_MS : 0)
  }
}
