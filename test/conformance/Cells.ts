/**
 * The state machine as scenarios: one for each cell, in which its condition holds and those above it do not; and one for
 * each state, in which everything is tried that no row of the table names.
 */
/* oxlint-disable unicorn/no-thenable -- the last part of a scenario is its `then` */
import { type OutcomeName, outcomeNames } from "@headgate/core/Outcome"
import { join } from "node:path"
import { root, type ScenarioFile } from "./Corpus.ts"
import { settlementOf, type Trigger, triggerOf } from "./Events.ts"
import type { JobAssertion, Scenario, Step } from "./Scenario.ts"
import { inState, standing } from "./StateSetups.ts"
import { applies, type Cell, cells, states, terminal, titleOf } from "./StateTable.ts"

/** Cells that the corpus has no words for yet. */
export const unspoken: ReadonlyArray<string> = cells.filter((cell) => triggerOf(cell) === undefined).map(titleOf)

export const moves: ReadonlyArray<ScenarioFile> = cells.flatMap((cell) => {
  const trigger = triggerOf(cell)
  if (trigger === undefined) return []
  const { before = [], options = {}, steps } = trigger
  const given = cell.from === "none" ? [] : [...inState(cell.from, options), ...before]
  return fileOf({ promise: titleOf(cell), given, when: steps, then: [expected(cell, trigger)] })
})

export const standstills: ReadonlyArray<ScenarioFile> = states.map((state) => {
  const { scheduled_at_ms: _, ...counters } = standing(state)
  return fileOf({
    promise: `nothing but its rows moves a job that is ${state}`,
    given: inState(state, lateIn(state)),
    when: [...operators(state), ...outcomes(state), { advance_ms: 25_000 }, ...sweeps(state)],
    // SAFETY: a state of the table is one of core's, which its tests compare.
    then: [{ job: "j1", state, ...counters } as JobAssertion]
  })
})

function fileOf(scenario: Scenario): ScenarioFile {
  return { area: "state_machine", path: join(root, "state_machine.yaml"), scenario, lineOf: () => 1 }
}

function expected({ case: { reason, refused, to }, from, row }: Cell, { dueMs }: Trigger): JobAssertion {
  if (to === "deleted") return { job: "j1", state: "deleted" }
  const before = standing(from)
  const count = (value: number, change: 0 | 1 | "reset" = 0) =>
    refused !== undefined ? value : change === "reset" ? 0 : value + change
  const isWaiting = to !== undefined && reason === undefined
  const kept = row.position === "kept" ? before.scheduled_at_ms : undefined
  const position = row.position === "next_due" ? dueMs : kept
  // SAFETY: a state of the table is one of core's, which its tests compare.
  return {
    job: "j1",
    state: to === undefined || to === "same" ? from : to,
    ...refused === undefined ? { reason: reason ?? null } : {},
    attempt: count(before.attempt, row.attempt),
    crash_attempt: count(before.crash_attempt, row.crash_attempt),
    fence: count(before.fence, row.fence),
    ...isWaiting && position !== undefined ? { scheduled_at_ms: position } : {}
  } as JobAssertion
}

/** What has passed when the sweeps come, where that is nothing to them. */
function lateIn(state: string) {
  const deadline = terminal.includes(state) ? { deadline_at_ms: 20_000 } : {}
  return applies("queue_timeout", "lifecycle", state) ? deadline : { ...deadline, queue_timeout_ms: 20_000 }
}

function operators(state: string): ReadonlyArray<Step> {
  const job = "j1"
  const events: ReadonlyArray<readonly [event: string, step: Step]> = [
    ["operator_promote", { promote: { job } }],
    ["operator_retry", { retry: { job } }],
    ["operator_release", { release: { job } }],
    ["rescheduled", { reschedule: { job, at_ms: 9000 } }],
    ["rescheduled", { reschedule: { job, behind: true } }],
    ["edited", { edit: { job, payload: "grace" } }],
    ["operator_delete", { delete: { job } }]
  ]
  const wrong = events.filter(([event]) => !applies(event, "lifecycle", state))
    .map(([, step]) => ({ ...step, refused: "WrongState", answers: { state } }))
  if (applies("operator_cancel", "lifecycle", state)) return wrong
  const cancel = state === "cancelled" ? "cancelled" : `already_${state}`
  return [...wrong, { cancel: { job }, answers: { cancel } }]
}

/** Settled by the worker that had lost the job. */
function outcomes(state: string): ReadonlyArray<Step> {
  if (state === "pending") return []
  return outcomeNames.map((name: OutcomeName) => ({
    settle: settlementOf("$lost", name, false),
    refused: "LeaseRejected",
    answers: { state }
  }))
}

function sweeps(state: string): ReadonlyArray<Step> {
  const isDue = applies("schedule_due", "lifecycle", state) || applies("backoff_due", "lifecycle", state)
  return [
    ...isDue ? [] : [{ promote_due: { limit: 9 } }],
    ...applies("lease_lost", "lifecycle", state) ? [] : [{ reclaim: { limit: 9 }, answers: { jobs: [] } }],
    { expire: { limit: 9 }, answers: { jobs: [] } },
    { quarantine_sweep: { limit: 9 }, answers: { jobs: [] } },
    ...applies("evicted", "lifecycle", state) ? [] : [{ evict: { limit: 9 } }],
    ...applies("admitted", "lifecycle", state) ? [] : [{ admit: { worker: "w2", capacity: 9 }, answers: { jobs: [] } }]
  ]
}
