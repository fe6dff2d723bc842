/**
 * The store against the state machine: every event is brought upon a job in every state, under every combination of the
 * conditions its rows name, and the row must become what core's functions and the table of the corpus both say; where
 * they say nothing, the row must stay as it was, to the last column.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import type { EnvelopeInput } from "@headgate/core/Envelope"
import { Leases } from "@headgate/core/Leases"
import { LifecycleEvent } from "@headgate/core/LifecycleEvent"
import { type Outcome, outcomeName, outcomeNames } from "@headgate/core/Outcome"
import { Producer } from "@headgate/core/Producer"
import { isTerminal, State } from "@headgate/core/State"
import { lifecycleTransition, type Transition, transition, type TransitionCtx } from "@headgate/core/StateMachine"
import type { Store as StoreServices } from "@headgate/core/Store"
import { effectiveUniqueKey, UNIQUE_REPLACE_PRIORITY, UNIQUE_REPLACE_SCHEDULED_AT } from "@headgate/core/UniqueKey"
import { type TestDatabase, Time } from "@headgate/testkit"
import { Effect, Result } from "effect"
import { readFileSync } from "node:fs"
import { parse } from "yaml"
import * as Jobs from "./Jobs.ts"
import * as Store from "./Store.ts"

type Condition =
  | "pending_requested"
  | "delayed"
  | "no_time_named"
  | "attempts_used_up"
  | "crash_limit_reached"
  | "fingerprint_closed"
  | "deadline_before_next_due"
  | "retention_zero"
  | "own_retention_unset"
  | "unique_key_taken"

interface Row {
  readonly event: string
  readonly kind: "outcome" | "lifecycle"
  readonly from: ReadonlyArray<State | "none">
  readonly cases: ReadonlyArray<
    { readonly when?: Condition; readonly to?: string; readonly reason?: string }
  >
  readonly attempt?: 1 | "reset"
  readonly crash_attempt?: 1 | "reset"
  readonly fence?: 1
  readonly strikes?: Transition["strikes"]
}

/** One job upon which the event comes. */
interface Trial {
  readonly id: string
  readonly state: State
  readonly facts: ReadonlySet<Condition>
}

const corpus = new URL("../../../conformance/state_machine.yaml", import.meta.url)
const rows: ReadonlyArray<Row> = parse(readFileSync(corpus, "utf8")).rows

const delayMs = 5000
const errors = { tag: "Boom", message: "boom", text: "Boom: boom" }

const outcomes: { readonly [Tag in Outcome["_tag"]]: Extract<Outcome, { readonly _tag: Tag }> } = {
  Success: { _tag: "Success" },
  Retry: { _tag: "Retry", delayMs, error: errors },
  TimedOut: { _tag: "TimedOut", delayMs, error: errors },
  Fatal: { _tag: "Fatal", error: errors },
  NotAFailure: { _tag: "NotAFailure", delayMs },
  RateLimited: { _tag: "RateLimited" },
  Snooze: { _tag: "Snooze", delayMs },
  Skip: { _tag: "Skip", reason: "not needed" },
  Revoke: { _tag: "Revoke" },
  Undecodable: { _tag: "Undecodable", reason: "version 9" },
  CheckpointStale: { _tag: "CheckpointStale", reason: "steps changed" },
  Released: { _tag: "Released" },
  Crashed: { _tag: "Crashed", error: errors },
  DeadlinePassed: { _tag: "DeadlinePassed" }
}

const dueEvents = ["schedule_due", "backoff_due"] as const

/** One sweep does both. */
const due: Event = {
  code: (state, ctx) =>
    lifecycleTransition(state, "schedule_due", ctx) ?? lifecycleTransition(state, "backoff_due", ctx),
  seed: (_, now) => ({ scheduled_at_ms: now }),
  bring: () => Duties.use((duties) => duties.promoteDue(1000))
}

/** How each lifecycle event is brought about, upon all its trials, and what it needs prepared. */
const lifecycle: Readonly<Record<LifecycleEvent, Event>> = {
  enqueued: { bring: (trials) => each(trials, ({ id }) => enqueue({ id, fingerprint: fingerprintOf(id) })) },
  operator_promote: { bring: (trials) => control(trials, (operations, id) => operations.promote(id)) },
  operator_cancel: { bring: (trials) => control(trials, (operations, id) => operations.cancel(id)) },
  operator_retry: { bring: (trials) => control(trials, (operations, id) => operations.retry(id)) },
  operator_release: { bring: (trials) => control(trials, (operations, id) => operations.release(id)) },
  operator_delete: { bring: (trials) => control(trials, (operations, id) => operations.remove(id)) },
  edited: {
    bring: (trials) =>
      control(trials, (operations, id) => operations.edit(id, { bytes: Store.bytes("grace"), schemaVersion: 2 }))
  },
  rescheduled: {
    bring: (trials, now) =>
      control(trials, (operations, id, facts) =>
        operations.reschedule(
          id,
          facts.has("no_time_named") ? { behind: true } : { atMs: facts.has("delayed") ? now + delayMs : now - 1 }
        ))
  },
  replaced: {
    seed: ({ id }) => ({ unique_key: uniqueKey(id) }),
    bring: (trials, now) =>
      each(trials, ({ facts, id }) =>
        enqueue({
          id: `newcomer of ${id}`,
          uniqueKey: Store.bytes(id),
          uniqueReplace: facts.has("no_time_named") ? UNIQUE_REPLACE_PRIORITY : UNIQUE_REPLACE_SCHEDULED_AT,
          scheduledAtMs: facts.has("delayed") ? now + delayMs : now - 1
        }))
  },
  schedule_due: due,
  backoff_due: due,
  admitted: { bring: () => Store.admit({ capacity: 1000 }), seed: () => ({ crash_attempt: 0 }) },
  lease_lost: {
    seed: ({ state }, now) => state === "running" ? { lease_expires_at_ms: now } : {},
    bring: () => Duties.use((duties) => duties.reclaimExpired(1000))
  },
  deadline_passed: {
    seed: (_, now) => ({ deadline_at_ms: now }),
    bring: () => Duties.use((duties) => duties.expireDue(1000))
  },
  queue_timeout: {
    seed: (_, now) => ({ scheduled_at_ms: now - 5, queue_timeout_ms: 5 }),
    bring: () => Duties.use((duties) => duties.expireDue(1000))
  },
  evicted: {
    seed: ({ facts }, now) => facts.has("own_retention_unset") ? { evict_at_ms: null } : { evict_at_ms: now },
    bring: () => Duties.use((duties) => duties.evictRetained(1000))
  },
  superseded: { bring: (trials) => upon(trials, "supersede") },
  discarded: { bring: (trials) => upon(trials, "discard") },
  cancelled_incoming: { bring: (trials) => upon(trials, "cancel_incoming") },
  fingerprint_quarantined: { bring: (trials) => upon(trials, "quarantine_waiting") }
}

layer(Store.layer, { excludeTestServices: true })("the store does what the state machine says:", (it) => {
  for (const outcome of Object.values(outcomes)) {
    const name = outcomeName(outcome)
    it.effect(`${name}, from every state under every condition`, () =>
      tryOut({
        kind: "outcome",
        event: name,
        code: (state, ctx) => transition(state, outcome, ctx),
        bring: Effect.fnUntraced(function*(trials) {
          const settlements = trials.map(({ facts, id }) => ({
            lease: Jobs.lease(id, fence),
            outcome: outcome._tag === "RateLimited" && facts.has("delayed") ? { ...outcome, delayMs } : outcome
          }))
          const answers = yield* Leases.use((leases) => leases.settle(settlements))
          const refused = answers.filter(({ _tag }) => _tag === "Rejected").map((
            answer
          ) => [answer.jobId, answer.state])
          const idle = trials.filter(({ state }) => state !== "running").map(({ id, state }) => [id, state])
          assert.deepStrictEqual(refused, idle, "the refused settlements")
        })
      }))
  }

  for (const event of LifecycleEvent.literals) {
    it.effect(`${event}, from every state under every condition`, () =>
      tryOut({
        kind: "lifecycle",
        event,
        code: (state, ctx) => lifecycleTransition(state, event, ctx),
        ...lifecycle[event]
      }))
  }

  it.effect("enqueued, from nothing", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      for (const facts of combinations(conditionsOf("lifecycle", "enqueued"))) {
        const id = `new ${[...facts].join(" ")}`
        yield* enqueue({
          id,
          pending: facts.has("pending_requested"),
          scheduledAtMs: facts.has("delayed") ? now + 1 : now
        })
        const ctx = contextOf({ id, state: "available", facts }, "lifecycle", "enqueued", now)
        const expected = inTable("lifecycle", "none", "enqueued", facts)
        assert.deepStrictEqual(lifecycleTransition("none", "enqueued", ctx), expected)
        assert.strictEqual(yield* Jobs.stateOf(id), expected?.to, id)
      }
    }))

  it.effect("the trials cover every event and every condition of the table", () =>
    Effect.sync(() => {
      for (const { cases, event, kind } of rows) {
        const named = cases.flatMap(({ when }) => when === undefined ? [] : [when])
        assert.includeMembers([...conditionsOf(kind, event)], named, event)
      }
      const tried = [...Object.values(outcomes).map(outcomeName), ...Object.keys(lifecycle)]
      assert.deepStrictEqual(
        [...new Set(tried)].sort(),
        [...new Set([...outcomeNames, ...LifecycleEvent.literals])].sort()
      )
      assert.deepStrictEqual([...new Set(rows.map(({ event }) => event))].sort(), [...new Set(tried)].sort())
    }))
})

interface Event {
  /** Where one sweep is two events, what either says. */
  readonly code?: (state: State, ctx: TransitionCtx) => Transition | undefined
  /** Columns the event needs, beside those of the conditions. */
  readonly seed?: (trial: Trial, now: number) => Readonly<Record<string, unknown>>
  readonly bring: (trials: ReadonlyArray<Trial>, now: number) => Effect.Effect<unknown, unknown, Services>
}

interface Experiment extends Event {
  readonly kind: Row["kind"]
  readonly event: string
  readonly code: (state: State, ctx: TransitionCtx) => Transition | undefined
}

type Services = StoreServices | PgClient.PgClient | TestDatabase.TestDatabase

/** All trials of an event at once: its sweeps and batches meet them side by side. */
const tryOut = Effect.fnUntraced(function*({ bring, code, event, kind, seed }: Experiment) {
  const pg = yield* PgClient.PgClient
  yield* pg`TRUNCATE headgate.job, headgate.attempt, headgate.strike, headgate.death, headgate.quarantine_lap`
  const now = yield* Time.freeze()
  const trials = State.literals.flatMap((state) =>
    combinations(conditionsOf(kind, event)).map((facts) => ({ id: `${state} ${[...facts].join(" ")}`, state, facts }))
  ).filter((trial) => isPossible(trial, kind))
  yield* Jobs.seed(...trials.map((trial) => ({ ...columnsOf(trial, kind, event, now), ...seed?.(trial, now) })))
  const rivals = trials.filter(({ facts }) => facts.has("unique_key_taken"))
  yield* Jobs.seed(
    ...rivals.map(({ id }) => ({ id: `rival of ${id}`, state: "running" as const, unique_key: uniqueKey(id) }))
  )
  const strikes = trials.map(({ facts, id }) => {
    const [fingerprint, last_job_id, last_at_ms, kind] = [fingerprintOf(id), id, now, "greet"]
    // A crash closes the fingerprint itself.
    const isCrash = event === "crashed" || event === "lease_lost"
    const isClosed = event === "operator_release" || (facts.has("fingerprint_closed") && !isCrash)
    const strikes = isClosed ? strikeLimit : facts.has("fingerprint_closed") ? strikeLimit - 1 : strikeLimit - 2
    return { fingerprint, strikes, last_at_ms, closed_at_ms: isClosed ? now : null, kind, last_job_id }
  })
  yield* pg`INSERT INTO headgate.strike SELECT r.* FROM jsonb_array_elements(${pg.json(strikes)}) e
    CROSS JOIN LATERAL jsonb_populate_record(null::headgate.strike, e) r`
  const before = yield* allRows
  const struck = yield* allStrikes
  yield* bring(trials, now)
  const after = yield* allRows
  const striking = yield* allStrikes
  for (const trial of trials) {
    const text = `${event} of a job that is ${trial.state} when ${[...trial.facts].join(", ") || "nothing holds"}`
    const expected = inTable(kind, trial.state, event, trial.facts)
    assert.deepStrictEqual(code(trial.state, contextOf(trial, kind, event, now)), expected, `core: ${text}`)
    const [old, found] = [before.get(trial.id), after.get(trial.id)]
    const change = changeOf(struck.get(fingerprintOf(trial.id)), striking.get(fingerprintOf(trial.id)))
    // What is closed, an operator alone opens.
    const isKept = expected?.strikes === "reset" && trial.facts.has("fingerprint_closed")
    assert.strictEqual(change, isKept ? 0 : expected?.strikes ?? 0, `the strikes: ${text}`)
    if (expected === undefined) assert.deepStrictEqual(found, old, text)
    else assert.deepStrictEqual(moveOf(old, found), moveText(expected), text)
  }
})

const allRows = Effect.gen(function*() {
  const pg = yield* PgClient.PgClient
  const found = yield* pg<{ job: JobRow }>`SELECT to_jsonb(j) AS job FROM headgate.job j`
  return new Map(found.map(({ job }) => [job.id, job]))
})

interface StrikeRow {
  readonly fingerprint: string
  readonly strikes: number
  readonly is_closed: boolean
}

const allStrikes = Effect.gen(function*() {
  const pg = yield* PgClient.PgClient
  const found = yield* pg<StrikeRow>`SELECT s.fingerprint, s.strikes, s.closed_at_ms IS NOT NULL AS is_closed
    FROM headgate.strike s`
  return new Map(found.map((strike) => [strike.fingerprint, strike]))
})

/** What happened to the strikes of a fingerprint, in the words of the table. */
const changeOf = (old: StrikeRow | undefined, found: StrikeRow | undefined) => {
  if (found === undefined) return old === undefined ? 0 : "reset"
  if (old?.is_closed && !found.is_closed) return found.strikes === strikeLimit - 1 ? "limit_minus_one" : "opened"
  return found.strikes - (old?.strikes ?? 0)
}

const fingerprintOf = (id: string) => id.replaceAll(" ", "_")

interface JobRow {
  readonly id: string
  readonly state: State
  readonly reason: string | null
  readonly attempt: number
  readonly crash_attempt: number
  readonly fence: number
}

/** What happened, in the words of `moveText`. */
const moveOf = (old: JobRow | undefined, found: JobRow | undefined) => {
  if (old === undefined || found === undefined) return "deleted"
  const change = (before: number, after: number) => after === before ? 0 : after === 0 ? "reset" : after - before
  return {
    to: found.state,
    reason: found.reason,
    attempt: change(old.attempt, found.attempt),
    crashAttempt: change(old.crash_attempt, found.crash_attempt),
    fence: change(old.fence, found.fence)
  }
}

const moveText = ({ attempt, crashAttempt, fence, reason, to }: Transition) =>
  to === "deleted" ? "deleted" : { to, reason: reason ?? null, attempt, crashAttempt, fence }

/** What the table says; undefined where it has no row, or where the first case that holds refuses. */
const inTable = (
  kind: Row["kind"],
  state: State | "none",
  event: string,
  facts: ReadonlySet<Condition>
): Transition | undefined => {
  const names: ReadonlyArray<string> = dueEvents.some((name) => name === event) ? dueEvents : [event]
  const row = rows.find((row) => row.kind === kind && names.includes(row.event) && row.from.includes(state))
  const chosen = row?.cases.find(({ when }) => when === undefined || facts.has(when))
  if (row === undefined || chosen?.to === undefined) return undefined
  // SAFETY: core's tests hold the table to its schema.
  return {
    to: chosen.to === "same" ? state : chosen.to,
    reason: chosen.reason,
    attempt: row.attempt ?? 0,
    crashAttempt: row.crash_attempt ?? 0,
    fence: row.fence ?? 0,
    strikes: row.strikes ?? 0
  } as Transition
}

const fence = 3
const maxAttempts = 5
const crashLimit = 3
const strikeLimit = 3

/** Counters that every move can be seen on, and what makes the conditions hold or just not hold. */
const columnsOf = (trial: Trial, kind: Row["kind"], event: string, now: number) => {
  const { attempt, crashAttempt, deadlineMs } = contextOf(trial, kind, event, now)
  const names = conditionsOf(kind, event)
  return {
    id: trial.id,
    fingerprint: fingerprintOf(trial.id),
    state: trial.state,
    fence,
    attempt,
    crash_attempt: crashAttempt,
    max_attempts: maxAttempts,
    crash_limit: crashLimit,
    ...["archived", "cancelled", "quarantined", "undecodable"].includes(trial.state) ? { reason: "fatal" } : {},
    ...deadlineMs === undefined ? {} : { deadline_at_ms: deadlineMs },
    ...trial.facts.has("retention_zero") ? { retention_ms: 0 } : {},
    ...names.includes("unique_key_taken") ? { unique_key: uniqueKey(trial.id) } : {}
  }
}

const contextOf = ({ facts }: Trial, kind: Row["kind"], event: string, now: number): TransitionCtx => {
  const crashAttempt = facts.has("crash_limit_reached") ? crashLimit - 1 : crashLimit - 2
  const nextDueMs = now + delayOf(kind, event, facts, crashAttempt)
  const hasDeadline = conditionsOf(kind, event).includes("deadline_before_next_due")
  return {
    attempt: facts.has("attempts_used_up") ? maxAttempts - 1 : maxAttempts - 2,
    maxAttempts,
    crashAttempt,
    crashLimit,
    nowMs: now,
    nextDueMs,
    deadlineMs: hasDeadline ? nextDueMs + (facts.has("deadline_before_next_due") ? 0 : 1) : undefined,
    retentionMs: facts.has("retention_zero") ? 0 : facts.has("own_retention_unset") ? undefined : 60_000,
    pending: facts.has("pending_requested"),
    namesTime: !facts.has("no_time_named"),
    fingerprintClosed: facts.has("fingerprint_closed"),
    uniqueKeyTaken: facts.has("unique_key_taken")
  }
}

/** From now until the job would be due next. */
const delayOf = (kind: Row["kind"], event: string, facts: ReadonlySet<Condition>, crashAttempt: number): number => {
  if (["retry", "timed_out", "not_a_failure", "snooze"].includes(event)) return delayMs
  if (event === "crashed" || event === "lease_lost") return crashAttempt === 1 ? 5000 : 30_000
  return facts.has("delayed") && (kind === "lifecycle" || event === "rate_limited") ? delayMs : 0
}

/** What each event could depend on: taken from here and not from the table, so that a case it lost is still tried. */
const conditionsOf = (kind: Row["kind"], event: string): ReadonlyArray<Condition> =>
  kind === "outcome" ? ofOutcomes : ofLifecycle[event] ?? []

const ofOutcomes: ReadonlyArray<Condition> = [
  "delayed",
  "attempts_used_up",
  "crash_limit_reached",
  "fingerprint_closed",
  "deadline_before_next_due",
  "retention_zero"
]

const ofLifecycle: Readonly<Record<string, ReadonlyArray<Condition>>> = {
  enqueued: ["pending_requested", "delayed"],
  replaced: ["no_time_named", "delayed"],
  rescheduled: ["no_time_named", "delayed"],
  lease_lost: ["crash_limit_reached", "fingerprint_closed", "deadline_before_next_due"],
  operator_retry: ["deadline_before_next_due", "unique_key_taken"],
  operator_release: ["unique_key_taken"],
  evicted: ["own_retention_unset"]
}

const combinations = (conditions: ReadonlyArray<Condition>): ReadonlyArray<ReadonlySet<Condition>> =>
  Array.from(
    { length: 2 ** conditions.length },
    (_, bits) => new Set(conditions.filter((_, at) => (bits >> at) % 2 === 1))
  )

/**
 * Outcomes are nothing to a job that does not run, whatever holds. Completed and cancelled jobs always have a retention,
 * and nobody takes the key of a job that is not finished.
 */
const isPossible = ({ facts, state }: Trial, kind: Row["kind"]): boolean =>
  (kind === "lifecycle" || state === "running" || facts.size === 0) &&
  !(facts.has("own_retention_unset") && ["completed", "cancelled"].includes(state)) &&
  !(facts.has("unique_key_taken") && !isTerminal(state))

const uniqueKey = (id: string): string => {
  const key = Result.getOrThrow(effectiveUniqueKey({ kind: "greet", key: Store.bytes(id), excludeKind: false }))
  return `\\x${Buffer.from(key).toString("hex")}`
}

const enqueue = (job: Partial<EnvelopeInput> & { readonly id: string }) =>
  Producer.use((producer) => producer.enqueue([Store.job({ payload: new Uint8Array(0), ...job })]))

/** The refusals are seen by the rows they leave alone. */
const each = <R>(trials: ReadonlyArray<Trial>, bring: (trial: Trial) => Effect.Effect<unknown, unknown, R>) =>
  Effect.forEach(trials, (trial) => Effect.ignore(bring(trial)), { discard: true })

const control = (
  trials: ReadonlyArray<Trial>,
  operate: (
    operations: Control["Service"],
    id: ReturnType<typeof Jobs.jobId>,
    facts: ReadonlySet<Condition>
  ) => Effect.Effect<unknown, unknown>
) => Control.use((operations) => each(trials, ({ facts, id }) => operate(operations, Jobs.jobId(id), facts)))

const upon = Effect.fnUntraced(function*(
  trials: ReadonlyArray<Trial>,
  move: "supersede" | "discard" | "cancel_incoming" | "quarantine_waiting"
) {
  const pg = yield* PgClient.PgClient
  yield* pg`SELECT * FROM headgate.${pg.literal(move)}(${trials.map(({ id }) => id)})`
})
