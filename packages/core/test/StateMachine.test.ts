import { assert, describe, it } from "@effect/vitest"
import { LifecycleEvent } from "@headgate/core/LifecycleEvent"
import { exhausted, type Outcome, outcomeName, outcomeNames, retry } from "@headgate/core/Outcome"
import {
  isTerminal,
  State,
  TerminalReason,
  terminalStates,
  unfinishedStates,
  waitingStates
} from "@headgate/core/State"
import { lifecycleTransition, type Transition, transition, type TransitionCtx } from "@headgate/core/StateMachine"
import { Ajv2020 } from "ajv/dist/2020.js"
import { readFileSync } from "node:fs"
import { parse } from "yaml"

const corpus = (name: string) => readFileSync(new URL(`../../../conformance/${name}`, import.meta.url), "utf8")
const schema = JSON.parse(corpus("state_machine.schema.json"))
const table: Table = parse(corpus("state_machine.yaml"))

describe("state_machine.yaml", () => {
  it("keeps to its schema", () => {
    const validate = new Ajv2020({ allErrors: true }).compile(schema)
    assert.isTrue(validate(table), JSON.stringify(validate.errors, null, 1))
  })

  it("knows the states, outcomes, events and reasons that the code knows", () => {
    assert.deepStrictEqual(table.states, [...State.literals])
    assert.deepStrictEqual(table.waiting, [...waitingStates])
    assert.deepStrictEqual(table.terminal, [...terminalStates])
    assert.deepStrictEqual(eventsOf("outcome"), [...outcomeNames].sort())
    assert.deepStrictEqual(eventsOf("lifecycle"), [...LifecycleEvent.literals].sort())
    const reasons = table.rows.flatMap((row) => row.cases.flatMap((each) => each.reason ?? []))
    assert.deepStrictEqual([...new Set(reasons)].sort(), [...TerminalReason.literals].sort())
  })

  it("decides every case: one row a cell, one unconditional case at the end of each row", () => {
    const cells = table.rows.flatMap((row) => row.from.map((from) => `${row.kind} ${row.event} from ${from}`))
    assert.deepStrictEqual(cells.filter((cell, index) => cells.indexOf(cell) !== index), [])
    for (const row of table.rows) {
      assert.deepStrictEqual(row.cases.map((each) => each.when === undefined).indexOf(true), row.cases.length - 1)
    }
  })

  it("never lets a terminal state move by itself, and lets a job become running only with a new fence", () => {
    const byHand = ["operator_retry", "operator_release", "operator_delete", "evicted"]
    for (const row of table.rows) {
      if (row.from.some((state) => state !== "none" && isTerminal(state))) assert.include(byHand, row.event)
      assert.strictEqual(row.cases.some((each) => each.to === "running"), row.fence === 1)
    }
  })
})

describe("transition", () => {
  it("a retry that is the last exhausts the job, whatever its own limit", () => {
    const error = { tag: "E", message: "", text: "E" }
    const facts = ctxOf(new Set())
    assert.strictEqual(transition("running", retry(0, error), facts)?.to, "retryable")
    assert.deepInclude(transition("running", exhausted(error), facts), {
      to: "archived",
      reason: "exhausted",
      attempt: 1
    })
  })

  for (const outcome of outcomes()) {
    const name = outcomeName(outcome)
    it(`${name} does what the table says, from every state under every condition`, () => {
      for (const state of State.literals) {
        for (const facts of combinations) {
          const expected = moveInTable("outcome", state, name, facts)
          assert.deepStrictEqual(transition(state, outcome, ctxOf(facts)), expected, cellText(state, facts))
        }
      }
    })
  }
})

describe("lifecycleTransition", () => {
  for (const event of LifecycleEvent.literals) {
    it(`${event} does what the table says, from every state under every condition`, () => {
      for (const state of ["none", ...State.literals] as const) {
        for (const facts of combinations) {
          const expected = moveInTable("lifecycle", state, event, facts)
          assert.deepStrictEqual(lifecycleTransition(state, event, ctxOf(facts)), expected, cellText(state, facts))
        }
      }
    })
  }
})

describe("State", () => {
  it("counts each state as either unfinished or terminal", () => {
    assert.deepStrictEqual([...unfinishedStates, ...terminalStates].sort(), [...State.literals].sort())
  })
})

interface Table {
  readonly states: ReadonlyArray<State>
  readonly waiting: ReadonlyArray<State>
  readonly terminal: ReadonlyArray<State>
  readonly conditions: Readonly<Record<string, string>>
  readonly rows: ReadonlyArray<Row>
}

interface Row {
  readonly event: string
  readonly kind: "outcome" | "lifecycle"
  readonly from: ReadonlyArray<State | "none">
  readonly cases: ReadonlyArray<
    {
      readonly when?: Condition
      readonly to?: State | "deleted" | "same"
      readonly reason?: TerminalReason
      readonly refused?: string
    }
  >
  readonly attempt?: 1 | "reset"
  readonly crash_attempt?: 1 | "reset"
  readonly fence?: 1
  readonly strikes?: 1 | "reset" | "limit_minus_one"
}

/** What the table says; undefined where it has no row, or where the first case that holds refuses. */
function moveInTable(
  kind: Row["kind"],
  state: State | "none",
  event: string,
  facts: ReadonlySet<Condition>
): Transition | undefined {
  const row = table.rows.find((row) => row.kind === kind && row.event === event && row.from.includes(state))
  const chosen = row?.cases.find((each) => each.when === undefined || facts.has(each.when))
  if (row === undefined || chosen?.to === undefined) return undefined
  return {
    to: chosen.to === "same" ? state as State : chosen.to,
    reason: chosen.reason,
    attempt: row.attempt ?? 0,
    crashAttempt: row.crash_attempt ?? 0,
    fence: row.fence ?? 0,
    strikes: row.strikes ?? 0
  }
}

/** Each condition of the table as the facts that make it hold; `retention_zero` and `own_retention_unset` exclude each other. */
function ctxOf(facts: ReadonlySet<Condition>): TransitionCtx {
  const nextDueMs = facts.has("delayed") ? 1_500 : 1_000
  return {
    attempt: facts.has("attempts_used_up") ? 4 : 3,
    maxAttempts: 5,
    crashAttempt: facts.has("crash_limit_reached") ? 2 : 1,
    crashLimit: 3,
    nowMs: 1_000,
    nextDueMs,
    deadlineMs: facts.has("deadline_before_next_due") ? nextDueMs : facts.has("delayed") ? undefined : nextDueMs + 1,
    retentionMs: facts.has("retention_zero") ? 0 : facts.has("own_retention_unset") ? undefined : 60_000,
    pending: facts.has("pending_requested"),
    namesTime: !facts.has("no_time_named"),
    fingerprintClosed: facts.has("fingerprint_closed"),
    uniqueKeyTaken: facts.has("unique_key_taken")
  }
}

type Condition = (typeof conditions)[number]
const conditions = [
  "pending_requested",
  "delayed",
  "no_time_named",
  "attempts_used_up",
  "crash_limit_reached",
  "fingerprint_closed",
  "deadline_before_next_due",
  "retention_zero",
  "own_retention_unset",
  "unique_key_taken"
] as const

const combinations: ReadonlyArray<ReadonlySet<Condition>> = Array.from(
  { length: 2 ** conditions.length },
  (_, bits) => new Set(conditions.filter((_, index) => (bits >> index) % 2 === 1))
).filter((facts) => !(facts.has("retention_zero") && facts.has("own_retention_unset")))

function outcomes(): ReadonlyArray<Outcome> {
  const error = { tag: "Boom", message: "boom", text: "Boom: boom" }
  const every: { readonly [Tag in Outcome["_tag"]]: Extract<Outcome, { readonly _tag: Tag }> } = {
    Success: { _tag: "Success" },
    Retry: { _tag: "Retry", delayMs: 500, error },
    TimedOut: { _tag: "TimedOut", delayMs: 500, error },
    Fatal: { _tag: "Fatal", error },
    NotAFailure: { _tag: "NotAFailure", delayMs: 500 },
    RateLimited: { _tag: "RateLimited" },
    Snooze: { _tag: "Snooze", delayMs: 500 },
    Skip: { _tag: "Skip", reason: "not needed" },
    Revoke: { _tag: "Revoke" },
    Undecodable: { _tag: "Undecodable", reason: "version 9" },
    CheckpointStale: { _tag: "CheckpointStale", reason: "steps changed" },
    Released: { _tag: "Released" },
    Crashed: { _tag: "Crashed", error },
    DeadlinePassed: { _tag: "DeadlinePassed" }
  }
  return Object.values(every)
}

function eventsOf(kind: Row["kind"]): ReadonlyArray<string> {
  return [...new Set(table.rows.flatMap((row) => row.kind === kind ? row.event : []))].sort()
}

function cellText(state: string, facts: ReadonlySet<Condition>): string {
  return `from ${state} when ${[...facts].join(", ") || "nothing holds"}`
}
