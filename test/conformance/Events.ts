/** How each event of the state machine is brought about, so that one case of its row decides. */
import type { OutcomeName } from "@headgate/core/Outcome"
import type { NewJob, SettlementArguments, Step } from "./Scenario.ts"
import { type Options, READY_MS, WAIT_MS } from "./StateSetups.ts"
import type { Cell } from "./StateTable.ts"

export interface Trigger {
  /** What the job must say of itself from the start. */
  readonly options?: Options
  /** Between the set-up and the event. */
  readonly before?: ReadonlyArray<Step>
  /** The last one is the event. */
  readonly steps: ReadonlyArray<Step>
  /** When the job would be due next. */
  readonly dueMs?: number
}

/** Undefined for what the corpus has no words for yet. */
export const triggerOf = (cell: Cell): Trigger | undefined => {
  if (cell.row.kind === "outcome") return outcome(cell)
  return lifecycle[cell.row.event]?.(cell)
}

const lifecycle: Readonly<Record<string, (cell: Cell) => Trigger | undefined>> = {
  enqueued: ({ case: { when } }) => {
    const later = when === undefined ? {} : { scheduled_at_ms: 60_000 }
    return { steps: [{ enqueue: { id: "j1", kind: "greet", ...later, pending: when === "pending_requested" } }] }
  },
  operator_promote: () => ({ steps: [{ promote: { job: "j1" } }] }),
  schedule_due: () => ({ steps: [{ advance_ms: WAIT_MS }, { promote_due: { limit: 9 } }] }),
  backoff_due: () => ({ steps: [{ advance_ms: WAIT_MS }, { promote_due: { limit: 9 } }] }),
  admitted: () => ({ steps: [{ admit: { worker: "w2" }, as: "claim" }] }),
  lease_lost: (cell) => {
    const dueMs = READY_MS + 30_000 + 5000
    return {
      options: limits(cell, dueMs),
      before: closing(cell),
      steps: [{ advance_ms: 30_000 }, { reclaim: { limit: 9 } }],
      dueMs
    }
  },
  superseded: () => ({
    before: [saturated(1, "cancel_running"), { advance_ms: 1 }, { enqueue: RIVAL }],
    steps: [{ admit: { worker: "w2" }, answers: { jobs: [RIVAL.id], ended: { j1: "superseded" } } }]
  }),
  discarded: () => ({
    before: [saturated(0, "discard")],
    steps: [{ admit: { worker: "w2" }, answers: { jobs: [], ended: { j1: "discarded" } } }]
  }),
  cancelled_incoming: () => ({
    before: [saturated(0, "cancel_incoming")],
    steps: [{ admit: { worker: "w2" }, answers: { jobs: [], ended: { j1: "cancelled_incoming" } } }]
  }),
  fingerprint_quarantined: () => ({
    before: closed,
    steps: [{ quarantine_sweep: { limit: 9 }, answers: { jobs: ["j1"] } }]
  }),
  deadline_passed: () => ({ options: { deadline_at_ms: READY_MS + 10_000 }, steps: [{ advance_ms: 10_000 }, expired] }),
  queue_timeout: () => ({ options: { queue_timeout_ms: 20_000 }, steps: [{ advance_ms: 25_000 }, expired] }),
  operator_cancel: () => ({ steps: [{ cancel: { job: "j1" }, answers: { cancel: "cancelled" } }] }),
  operator_retry: ({ case: { when } }) => ({
    options: { ...UNIQUE, deadline_at_ms: READY_MS + 10_000 },
    before: [
      ...when === "deadline_before_next_due" ? [{ advance_ms: 10_000 }] : [],
      ...when === "unique_key_taken" ? [{ enqueue: { ...RIVAL, ...UNIQUE } }] : []
    ],
    steps: [{ retry: { job: "j1" }, ...refusal(when) }]
  }),
  operator_release: ({ case: { when } }) => ({
    options: UNIQUE,
    before: when === "unique_key_taken" ? [{ enqueue: { ...RIVAL, ...UNIQUE } }] : [],
    steps: [{ release: { job: "j1" }, ...refusal(when) }]
  }),
  replaced: ({ case: { when }, from }) => {
    const replace = when === "no_time_named" ? ["priority"] as const : ["scheduled_at"] as const
    const later = when === "delayed" || from === "pending" ? { scheduled_at_ms: READY_MS + 9000 } : {}
    const enqueue: NewJob = { ...RIVAL, ...later, unique: { ...UNIQUE.unique, replace } }
    return {
      options: UNIQUE,
      steps: [{ enqueue, refused: "Duplicate", answers: { existing_id: "j1", replaced: true } }]
    }
  },
  rescheduled: ({ case: { when }, from }) => {
    if (when === "no_time_named") return { steps: [{ reschedule: { job: "j1", behind: true } }] }
    const dueMs = when === "delayed" || from === "pending" ? READY_MS + 9000 : READY_MS - 1000
    return { steps: [{ reschedule: { job: "j1", at_ms: dueMs } }], dueMs }
  },
  edited: () => ({ steps: [{ edit: { job: "j1", payload: "grace" } }] }),
  operator_delete: () => ({ steps: [{ delete: { job: "j1" } }] }),
  evicted: ({ case: { to }, from }) =>
    to === "deleted" && from !== "completed" && from !== "cancelled" ? undefined : {
      options: { retention_ms: 10_000 },
      steps: [{ advance_ms: 10_000 }, { evict: { limit: 9 } }]
    }
}

/** The outcomes settled for `$held`. */
const outcome = (cell: Cell): Trigger => {
  // SAFETY: the outcomes of the table are those of core, which its tests compare.
  const name = cell.row.event as OutcomeName
  const isLate = name === "released" && cell.case.when !== undefined
  const settlement = settlementOf("$held", name, cell.case.when !== undefined)
  const dueMs = READY_MS + (name === "crashed" ? 5000 : isLate ? 1 : settlement.delay_ms ?? 0)
  return {
    options: limits(cell, dueMs),
    before: [...closing(cell), ...isLate ? [{ advance_ms: 1 }] : []],
    steps: [{ settle: settlement, answers: { state: cell.case.to ?? "" } }],
    dueMs
  }
}

export const settlementOf = (claim: string, outcome: OutcomeName, isDelayed: boolean): SettlementArguments => ({
  claim,
  outcome,
  ...DELAYED.includes(outcome) || (outcome === "rate_limited" && isDelayed) ? { delay_ms: 2000 } : {},
  ...REASONED.includes(outcome) ? { reason: "a reason" } : {}
})

/** Makes the case's condition hold. A case that stands above the deadline's must win against a deadline that is due too. */
const limits = ({ case: each, row }: Cell, dueMs: number): Options => {
  const ofDeadline = row.cases.findIndex(({ when }) => when === "deadline_before_next_due")
  const isDue = row.cases.indexOf(each) <= ofDeadline
  return {
    ...ofDeadline < 0 ? {} : { deadline_at_ms: isDue ? dueMs : dueMs + 1 },
    max_attempts: each.when === "attempts_used_up" ? 2 : 9,
    crash_limit: each.when === "crash_limit_reached" ? 2 : 9,
    ...each.when === "retention_zero" ? { retention_ms: 0 } : {}
  }
}

const refusal = (when: string | undefined): Pick<Step, "refused" | "answers"> => {
  if (when === "deadline_before_next_due") return { refused: "Invalid" }
  return when === "unique_key_taken" ? { refused: "KeyTaken", answers: { holder_id: RIVAL.id } } : {}
}

const saturated = (max: number, on_saturated: "discard" | "cancel_incoming" | "cancel_running"): Step => ({
  set_limit: { name: "most", scope: "kind", kind: "greet", max, on_saturated }
})

/** Three jobs of the same content crash at once. */
const closed: ReadonlyArray<Step> = [
  { enqueue: { id: "bad", many: 3, kind: "greet", priority: 9 } },
  { admit: { worker: "w2", capacity: 3 }, as: ["bad1", "bad2", "bad3"] },
  { settle: ["$bad1", "$bad2", "$bad3"].map((claim) => ({ claim, outcome: "crashed" as const })) }
]

const closing = ({ case: { when } }: Cell): ReadonlyArray<Step> => when === "fingerprint_closed" ? closed : []

const expired: Step = { expire: { limit: 9 }, answers: { jobs: ["j1"] } }
const UNIQUE = { unique: { key: "k" } } as const
const RIVAL = { id: "j2", kind: "greet" } as const
const DELAYED: ReadonlyArray<string> = ["retry", "timed_out", "not_a_failure", "snooze"]
const REASONED: ReadonlyArray<string> = ["skip", "undecodable", "checkpoint_stale"]
