import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Duties } from "@headgate/core/Duties"
import { Explain } from "@headgate/core/Explain"
import { Gate } from "@headgate/core/Gate"
import { Leases } from "@headgate/core/Leases"
import * as Outcome from "@headgate/core/Outcome"
import * as ExplainLayer from "@headgate/postgres/Explain"
import { Time } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Jobs from "./Jobs.ts"

const store = ExplainLayer.layer.pipe(Layer.provideMerge(Jobs.layer))

interface Waiting {
  readonly queue: string
  readonly ids: ReadonlyArray<string>
  readonly kind?: string
  readonly version?: number
  readonly partition?: string
  readonly classes?: ReadonlyArray<string>
  readonly limits?: ReadonlyArray<string>
  readonly keys?: ReadonlyArray<string>
  readonly weights?: ReadonlyArray<number>
  readonly worker?: string
  readonly fallsBack?: boolean
  readonly suspect?: boolean
  readonly fingerprint?: string
  readonly columns?: Record<string, unknown>
}

/** Jobs in a lane of their own; each is one millisecond older than the next. */
const waiting = Effect.fnUntraced(function*(jobs: Waiting) {
  const sql = yield* PgClient.PgClient
  const { classes = [], fallsBack = false, kind = "greet", limits = [], partition = "", suspect = false } = jobs
  const keys = jobs.keys?.some((key) => key !== "") ? jobs.keys.join("\u001f") : ""
  const varies = keys !== "" || jobs.weights !== undefined
  const lane = sql`queue = ${jobs.queue} AND kind = ${kind} AND version = ${jobs.version ?? 1} AND suspect = ${suspect}
    AND worker = ${jobs.worker ?? ""} AND is_partitioned = ${
    partition !== ""
  } AND varies = ${varies} AND classes = ${classes}::text[]
    AND limits = ${limits}::text[]`
  yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect, worker, falls_back, is_partitioned, varies, classes,
      limits) VALUES (${jobs.queue}, ${kind}, ${jobs.version ?? 1}, ${suspect}, ${jobs.worker ?? ""}, ${fallsBack},
      ${partition !== ""}, ${varies}, ${classes}::text[], ${limits}::text[]) ON CONFLICT DO NOTHING`
  const now = yield* Time.now()
  yield* Jobs.seed(...jobs.ids.map((id, n) => ({
    id,
    kind,
    queue: jobs.queue,
    partition_key: partition,
    keys,
    weights: jobs.weights === undefined ? null : [...jobs.weights],
    fingerprint: jobs.fingerprint ?? `f-${id}`,
    schema_version: jobs.version ?? 1,
    crash_attempt: suspect ? 1 : 0,
    scheduled_at_ms: now - jobs.ids.length + n,
    ...jobs.columns
  })))
  yield* sql`UPDATE headgate.job SET lane_id = (SELECT l.id FROM headgate.lane l WHERE ${lane})
    WHERE id = ANY(${jobs.ids})`
})

const query = (statement: string) => Effect.flatMap(PgClient.PgClient, (sql) => sql.unsafe(statement))

const rateClass = (name: string, limit: number, windowMs: number, burst = limit) =>
  query(
    `INSERT INTO headgate.rate_class (name, rate_limit, window_ms, burst) VALUES ('${name}', ${limit}, ${windowMs}, ${burst})`
  )

const limit = (name: string, scope: string, subject: string, max: number, strategy = "queue") =>
  query(`INSERT INTO headgate.concurrency_limit (name, scope, subject, max_concurrent, on_saturated)
    VALUES ('${name}', '${scope}', '${subject}', ${max}, '${strategy}')`)

/** A live worker. */
const worker = Effect.fnUntraced(function*(
  id: string,
  queue: string,
  options: { readonly kind?: string; readonly version?: number; readonly running?: number } = {}
) {
  const sql = yield* PgClient.PgClient
  yield* sql`INSERT INTO headgate.worker (id, queues, kinds, versions, capacity, lease_ms, running, started_at_ms, seen_at_ms)
    VALUES (${id}, ${[queue]}, ${[options.kind ?? "greet"]}, ${[options.version ?? 1]}, 10, 999999999999, ${
    options.running ?? 0
  }, 0, headgate.now_ms())`
})

const admit = (queue: string, capacity = 10, by = "w1") =>
  Effect.map(
    Gate.use((gate) =>
      gate.admit({
        worker: Jobs.workerId(by),
        leaseId: Jobs.leaseId,
        queues: [queue],
        kinds: [{ kind: "greet", version: 1 }, { kind: "part", version: 1 }],
        capacity,
        leaseMs: 3_600_000,
        quantum: undefined
      })
    ),
    ({ claims }) => claims.map(({ lease }) => String(lease.jobId))
  )

const why = (id: string) => Explain.use((explain) => explain.job(Jobs.jobId(id)))
const fleet = Effect.flatMap(Explain, (explain) => explain.fleet)
const holds = (id: string) => Explain.use((explain) => explain.holds(Jobs.jobId(id)))
const observe = Duties.use((duties) => duties.observeHolds(100))

/** Advances the clock until the gate gives the job to a worker, and ends the others; answers how long that took. */
const untilAdmitted = Effect.fnUntraced(function*(queue: string, id: string, stepMs: number) {
  const from = yield* Time.now()
  for (let step = 0; step < 500; step++) {
    const now = yield* Time.advance(stepMs)
    const ids = yield* admit(queue)
    if (ids.includes(id)) return now - from
    yield* Leases.use((leases) => leases.settle(ids.map((id) => ({ lease: Jobs.lease(id), outcome: Outcome.success }))))
  }
  return Number.POSITIVE_INFINITY
})

const assertWithin20Percent = (estimate: number | null, actual: number) => {
  assert(estimate !== null)
  assert.closeTo(estimate, actual, actual * 0.2)
}

layer(store, { excludeTestServices: true })("Explain", (it) => {
  it.effect("a job that does not exist is not found", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* Effect.flip(why("nobody")))._tag, "NotFound")
      assert.strictEqual((yield* Effect.flip(holds("nobody")))._tag, "NotFound")
    }))

  it.effect("a running or finished job is held by nothing, and not admissible", () =>
    Effect.gen(function*() {
      yield* Jobs.seed({ id: "runs", state: "running" }, { id: "done", state: "completed" })
      for (const id of ["runs", "done"]) {
        assert.deepInclude(yield* why(id), { admissible: false, blockedBy: null, estimatedAdmissionMs: null })
      }
      assert.match((yield* why("done")).text, /completed/)
    }))

  it.effect("what waits for a time names it, and what waits for an operator has none", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* Jobs.seed(
        { id: "pending", state: "pending" },
        { id: "later", state: "scheduled", scheduled_at_ms: now + 5000 },
        { id: "failed", state: "retryable", fence: 7, scheduled_at_ms: now + 3_480_000 }
      )
      yield* query(`INSERT INTO headgate.attempt (job_id, fence, started_at_ms, ended_at_ms, worker, outcome, error_tag)
        VALUES ('failed', 6, 1, 1, 'w', 'retry', 'Older'), ('failed', 7, 1, 1, 'w', 'retry', 'ShopDown')`)
      assert.deepInclude<object>(yield* why("later"), {
        state: "scheduled",
        blockedBy: "schedule",
        detail: { dueAtMs: now + 5000, lastErrorTag: null },
        estimatedAdmissionMs: 5000,
        admissible: false
      })
      assert.deepInclude<object>(yield* why("pending"), {
        blockedBy: "schedule",
        detail: { dueAtMs: null, lastErrorTag: null },
        estimatedAdmissionMs: null
      })
      assert.strictEqual((yield* why("failed")).text, "It failed with ShopDown and is not due yet: in about 58 min.")
    }))

  it.effect("the first of its group is admissible, and the next ones know their place", () =>
    Effect.gen(function*() {
      yield* worker("turn", "turn")
      yield* waiting({ queue: "turn", ids: ["t1", "t2", "t3"] })
      yield* waiting({ queue: "turn", ids: ["other"], partition: "p" })
      assert.deepInclude<object>(yield* why("t1"), { admissible: true, blockedBy: null, detail: null })
      assert.deepInclude<object>(yield* why("t3"), {
        admissible: false,
        blockedBy: "fairness",
        detail: { position: 3, isAtLeast: false, groups: 2, isGroupsAtLeast: false, suspectWaits: false }
      })
      assert.sameMembers(yield* admit("turn", 2), ["t1", "other"])
      assert.isTrue((yield* why("t2")).admissible)
    }))

  it.effect("a closed fingerprint is named with its strikes, before and after it is swept", () =>
    Effect.gen(function*() {
      yield* worker("poison", "poison")
      yield* waiting({ queue: "poison", ids: ["poison"], fingerprint: "bad" })
      yield* query(`INSERT INTO headgate.strike (fingerprint, strikes, last_at_ms, closed_at_ms, kind, last_job_id)
        VALUES ('bad', 3, 0, 0, 'greet', 'x')`)
      const expected = { blockedBy: "quarantine", detail: { crashes: 3, limit: 3, fingerprint: "bad" } }
      assert.deepInclude<object>(yield* why("poison"), { state: "available", ...expected })
      assert.deepStrictEqual(yield* admit("poison"), [])
      assert.deepInclude<object>(yield* why("poison"), { state: "quarantined", ...expected })
      assert.deepInclude<object>((yield* fleet).find(({ name }) => name === "bad") ?? {}, {
        blockedBy: "quarantine",
        waiting: 1
      })
    }))

  it.effect("a job that reached its own crash limit is named as such", () =>
    Effect.gen(function*() {
      yield* Jobs.seed({ id: "crashed", state: "quarantined", reason: "crash_limit", crash_attempt: 3 })
      assert.deepInclude<object>(yield* why("crashed"), {
        blockedBy: "quarantine",
        detail: { crashes: 3, limit: 3, fingerprint: null }
      })
    }))

  it.effect("each switch that is off is named, and nothing else is once it is on", () =>
    Effect.gen(function*() {
      yield* worker("sw", "sw", { kind: "part" })
      yield* rateClass("sw-class", 10, 1000)
      yield* limit("sw-limit", "key", "", 10)
      yield* waiting({
        queue: "sw",
        kind: "part",
        ids: ["sw"],
        partition: "p",
        classes: ["sw-class"],
        limits: ["sw-limit"],
        keys: ["", "k"]
      })
      yield* query("INSERT INTO headgate.queue (name) VALUES ('sw')")
      yield* query("INSERT INTO headgate.kind (name) VALUES ('part')")
      yield* query("INSERT INTO headgate.partition (queue, partition_key) VALUES ('sw', 'p')")
      const switches = [
        ["queue", "name = 'sw'", "queue", "sw"],
        ["kind", "name = 'part'", "kind", "part"],
        ["rate_class", "name = 'sw-class'", "rate_class", "sw-class"],
        ["concurrency_limit", "name = 'sw-limit'", "concurrency_limit", "sw-limit"],
        ["partition", "queue = 'sw'", "partition", "p"]
      ] as const
      for (const [table, which, name, of] of switches) {
        yield* query(`UPDATE headgate.${table} SET is_paused = true WHERE ${which}`)
        const answer = yield* why("sw")
        assert.deepInclude<object>(answer, {
          blockedBy: table === "queue" ? "queue_paused" : "paused",
          detail: { switch: name, name: of },
          admissible: false
        })
        assert.deepStrictEqual(yield* admit("sw"), [], table)
        const held = (yield* fleet).filter((one) => one.switch === name)
        assert.deepStrictEqual(held.map(({ waiting }) => waiting), [1])
        yield* query(`UPDATE headgate.${table} SET is_paused = false WHERE ${which}`)
      }
      assert.isTrue((yield* why("sw")).admissible)
      assert.deepStrictEqual(yield* admit("sw"), ["sw"])
    }))

  it.effect("a worker that was told to take no work, or is at its end, is none", () =>
    Effect.gen(function*() {
      yield* waiting({ queue: "told", ids: ["told1"], kind: "greet" })
      yield* worker("at-work", "told")
      assert.isTrue((yield* why("told1")).admissible)
      for (const standing of ["is_quiet", "is_draining"]) {
        yield* query(`UPDATE headgate.worker SET ${standing} = true WHERE id = 'at-work'`)
        const { blockedBy, detail, text } = yield* why("told1")
        const [quietWorkers, drainingWorkers] = standing === "is_quiet" ? [1, 0] : [0, 1]
        assert.deepInclude<object>({ blockedBy, ...detail }, { blockedBy: "no_worker", quietWorkers, drainingWorkers })
        assert.match(text, /^1 live worker serves told, but is (quiet|draining)\.$/)
        yield* query(`UPDATE headgate.worker SET ${standing} = false WHERE id = 'at-work'`)
      }
      yield* query("DELETE FROM headgate.worker WHERE id = 'at-work'")
      yield* admit("told")
    }))

  it.effect("without a live worker for its queue, kind or version the missing one is named", () =>
    Effect.gen(function*() {
      yield* waiting({ queue: "nobody", ids: ["n1"], kind: "odd", version: 3 })
      assert.deepInclude(yield* why("n1"), { blockedBy: "no_worker" })
      yield* worker("other", "nobody", { kind: "even" })
      assert.deepInclude<object>(yield* why("n1"), {
        blockedBy: "unknown_kind",
        detail: { kind: "odd", queue: "nobody" }
      })
      yield* worker("old", "nobody", { kind: "odd", version: 2 })
      assert.deepInclude<object>(yield* why("n1"), {
        blockedBy: "version",
        detail: { kind: "odd", needed: 3, highestLive: 2 }
      })
      assert.deepInclude<object>((yield* fleet).find(({ name }) => name === "odd") ?? {}, {
        blockedBy: "version",
        waiting: 1
      })
      yield* worker("new", "nobody", { kind: "odd", version: 3 })
      assert.isTrue((yield* why("n1")).admissible)
      yield* query("UPDATE headgate.worker SET seen_at_ms = 0, lease_ms = 1 WHERE id = 'new'")
      assert.deepInclude(yield* why("n1"), { blockedBy: "version" })
    }))

  it.effect("a pinned job names its worker, whether it is alive, and when others may have it", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* worker("any", "pin")
      yield* waiting({ queue: "pin", ids: ["pinned"], worker: "home", columns: { fall_back_at_ms: now + 7000 } })
      yield* waiting({ queue: "pin", ids: ["strict"], worker: "gone" })
      yield* waiting({ queue: "pin", ids: ["loose"], worker: "away", fallsBack: true })
      assert.deepInclude<object>(yield* why("pinned"), {
        blockedBy: "sticky_worker",
        estimatedAdmissionMs: 7000,
        detail: {
          worker: "home",
          isAlive: false,
          serves: false,
          running: null,
          capacity: null,
          fallsBackAtMs: now + 7000
        }
      })
      assert.deepInclude<object>(yield* why("strict"), { blockedBy: "sticky_worker", estimatedAdmissionMs: null })
      assert.isTrue((yield* why("loose")).admissible)
      assert.deepStrictEqual(
        (yield* fleet).filter(({ blockedBy }) => blockedBy === "sticky_worker").map(({ name }) => name),
        ["gone", "home"]
      )
      yield* worker("home", "pin", { running: 10 })
      assert.deepInclude<object>((yield* why("pinned")).detail ?? {}, {
        isAlive: true,
        serves: true,
        running: 10,
        capacity: 10
      })
      yield* query("UPDATE headgate.worker SET running = 9 WHERE id = 'home'")
      assert.isTrue((yield* why("pinned")).admissible)
      assert.deepStrictEqual((yield* admit("pin")).sort(), ["loose"])
      assert.deepStrictEqual(yield* admit("pin", 10, "home"), ["pinned"])
    }))

  it.effect("where others may take a pinned job and nobody is there, it is not its worker that it waits for", () =>
    Effect.gen(function*() {
      yield* waiting({ queue: "empty", ids: ["empty"], worker: "away", fallsBack: true })
      assert.deepInclude(yield* why("empty"), { blockedBy: "no_worker" })
    }))

  it.effect("a suspect waits where each worker that could take it runs one already", () =>
    Effect.gen(function*() {
      yield* worker("s1", "sus")
      yield* waiting({ queue: "sus", ids: ["sus1"], suspect: true })
      yield* waiting({ queue: "sus", ids: ["sus2"], suspect: true, partition: "p" })
      assert.isTrue((yield* why("sus1")).admissible)
      assert.lengthOf(yield* admit("sus", 10, "s1"), 1)
      const left = (yield* Jobs.stateOf("sus1")) === "running" ? "sus2" : "sus1"
      const answer = yield* why(left)
      assert.deepInclude(answer, { admissible: false, blockedBy: "fairness" })
      assert.deepInclude<object>(answer.detail ?? {}, { suspectWaits: true })
      yield* worker("s2", "sus")
      assert.isTrue((yield* why(left)).admissible)
    }))

  it.effect("a full limit names its slot and its holders, and says nothing of when", () =>
    Effect.gen(function*() {
      yield* worker("lim", "lim")
      yield* limit("per-account", "key", "", 2)
      yield* waiting({ queue: "lim", ids: ["a1", "a2", "a3"], limits: ["per-account"], keys: ["acme"] })
      assert.isTrue((yield* why("a1")).admissible)
      yield* admit("lim")
      assert.deepInclude<object>(yield* why("a3"), {
        blockedBy: "concurrency_limit",
        estimatedAdmissionMs: null,
        detail: { limit: "per-account", key: "acme", inUse: 2, max: 2, strategy: "queue", holders: ["a1", "a2"] }
      })
      assert.deepInclude<object>((yield* fleet).find(({ name }) => name === "per-account") ?? {}, {
        blockedBy: "concurrency_limit",
        key: "acme",
        waiting: 1
      })
      yield* Leases.use((leases) => leases.settle([{ lease: Jobs.lease("a1"), outcome: Outcome.success }]))
      assert.isTrue((yield* why("a3")).admissible)
    }))

  it.effect("a job past its deadline will not start, and says why", () =>
    Effect.gen(function*() {
      yield* worker("late", "late")
      yield* waiting({ queue: "late", ids: ["late"], columns: { deadline_at_ms: 1 } })
      assert.deepInclude<object>(yield* why("late"), {
        admissible: false,
        blockedBy: null,
        detail: { endsAs: "deadline" }
      })
    }))

  it.effect("an empty bucket names its tokens, and when it will pay for the job and those before it", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* worker("rate", "rate")
      yield* rateClass("api", 10, 10_000)
      yield* waiting({ queue: "rate", ids: Array.from({ length: 40 }, (_, n) => `r${10 + n}`), classes: ["api"] })
      assert.isTrue((yield* why("r10")).admissible)
      assert.lengthOf(yield* admit("rate", 100), 10)
      const answer = yield* why("r40")
      assert.deepInclude<object>(answer, {
        blockedBy: "rate_class",
        detail: {
          class: "api",
          key: "",
          tokens: 0,
          needed: 1,
          limit: 10,
          windowMs: 10_000,
          burst: 10,
          closedUntilMs: null,
          ahead: 20,
          isAtLeast: false
        }
      })
      assert.strictEqual((yield* fleet).find(({ name }) => name === "api")?.waiting, 30)
      assertWithin20Percent(answer.estimatedAdmissionMs, yield* untilAdmitted("rate", "r40", 500))
    }))

  it.effect("weights, a debt and a bucket pushed back are in the estimate", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* worker("heavy", "heavy")
      yield* rateClass("heavy", 5, 1000)
      yield* query(`INSERT INTO headgate.bucket (class, key, units, at_ms, closed_until_ms)
        VALUES ('heavy', 'k', -20000, ${now}, ${now + 6000})`)
      yield* waiting({ queue: "heavy", ids: ["h1", "h2", "h3"], classes: ["heavy"], keys: ["k"], weights: [8] })
      const answer = yield* why("h3")
      assert.deepInclude<object>(answer.detail ?? {}, { tokens: -20, needed: 8, closedUntilMs: now + 6000 })
      assertWithin20Percent(answer.estimatedAdmissionMs, yield* untilAdmitted("heavy", "h3", 100))
    }))

  it.effect("other kinds and partitions that draw on the bucket are in the estimate", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* worker("shared", "shared")
      yield* rateClass("shared", 1, 100)
      for (const partition of ["p1", "p2", "p3"]) {
        yield* waiting({
          queue: "shared",
          ids: Array.from({ length: 30 }, (_, n) => `${partition}-${10 + n}`),
          partition,
          classes: ["shared"]
        })
      }
      const older = Array.from({ length: 20 }, (_, n) => `part-${10 + n}`)
      yield* waiting({ queue: "shared", ids: older, kind: "part", partition: "p2", classes: ["shared"] })
      yield* query("UPDATE headgate.job SET scheduled_at_ms = scheduled_at_ms - 1000 WHERE id LIKE 'part-%'")
      assert.lengthOf(yield* admit("shared", 1), 1)
      const answer = yield* why("p2-24")
      assert.deepInclude(answer, { blockedBy: "rate_class" })
      assertWithin20Percent(answer.estimatedAdmissionMs, yield* untilAdmitted("shared", "p2-24", 25))
    }))

  it.effect("where queues share the bucket, or a partition is served less for what it runs, no time is told", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* worker("unsure", "unsure")
      yield* rateClass("unsure", 2, 1000)
      for (const partition of ["u1", "u2"]) {
        yield* waiting({
          queue: "unsure",
          ids: [1, 2, 3].map((n) => `${partition}-${n}`),
          partition,
          classes: ["unsure"]
        })
      }
      assert.lengthOf(yield* admit("unsure"), 2)
      assert.deepInclude(yield* why("u2-1"), { blockedBy: "rate_class", estimatedAdmissionMs: null })
      yield* query("UPDATE headgate.queue_turn SET remaining = 0 WHERE queue = 'unsure'")
      yield* Leases.use((leases) =>
        leases.settle([1, 2].map((n) => ({ lease: Jobs.lease(`u1-${n}`), outcome: Outcome.success })))
      )
      assert.isNumber((yield* why("u2-1")).estimatedAdmissionMs)
      yield* waiting({ queue: "unsure-too", ids: ["too"], classes: ["unsure"] })
      assert.deepInclude(yield* why("u2-1"), { blockedBy: "rate_class", estimatedAdmissionMs: null })
    }))

  it.effect("the last of two classes to have enough is named, and of a full limit beside it no time is told", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* worker("two", "two")
      yield* rateClass("fast", 10, 1000)
      yield* rateClass("slow", 1, 1000)
      yield* limit("one", "queue", "two", 1)
      yield* query(
        `INSERT INTO headgate.bucket (class, key, units, at_ms) VALUES ('fast', '', 0, ${now}), ('slow', '', 0, ${now})`
      )
      yield* waiting({ queue: "two", ids: ["two"], classes: ["fast", "slow"] })
      const answer = yield* why("two")
      assert.deepInclude<object>(answer.detail ?? {}, { class: "slow" })
      assertWithin20Percent(answer.estimatedAdmissionMs, yield* untilAdmitted("two", "two", 50))
      yield* waiting({ queue: "two", ids: ["two-more"], classes: ["fast", "slow"] })
      assert.deepInclude(yield* why("two-more"), { blockedBy: "rate_class", estimatedAdmissionMs: null })
    }))

  it.effect("a hold is kept as an interval: opened once, closed when its cause is gone, another for the next cause", () =>
    Effect.gen(function*() {
      const start = yield* Time.freeze()
      yield* worker("hold", "hold")
      yield* query("INSERT INTO headgate.queue (name, is_paused) VALUES ('hold', true)")
      yield* waiting({ queue: "hold", ids: ["hold"] })
      yield* query(`UPDATE headgate.job SET enqueued_at_ms = ${start} WHERE id = 'hold'`)
      yield* observe
      yield* Time.advance("10 seconds")
      yield* observe
      assert.deepStrictEqual(yield* holds("hold"), [
        { fromMs: start, untilMs: undefined, blockedBy: "queue_paused", policy: "hold" }
      ])
      yield* query("UPDATE headgate.queue SET is_paused = false WHERE name = 'hold'")
      yield* query("DELETE FROM headgate.worker WHERE id = 'hold'")
      yield* observe
      yield* worker("hold", "hold")
      yield* Time.advance("10 seconds")
      assert.deepStrictEqual(yield* admit("hold"), ["hold"])
      yield* observe
      assert.deepStrictEqual(yield* holds("hold"), [
        { fromMs: start, untilMs: start + 10_000, blockedBy: "queue_paused", policy: "hold" },
        { fromMs: start + 10_000, untilMs: start + 20_000, blockedBy: "no_worker", policy: "hold" }
      ])
    }))

  it.effect("twenty intervals are kept a job, the newest, and none of a job that is gone", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* worker("many", "many")
      yield* query("INSERT INTO headgate.queue (name, is_paused) VALUES ('many', true)")
      yield* waiting({ queue: "many", ids: ["many"] })
      const start = yield* Time.now()
      for (let n = 0; n < 25; n++) {
        yield* query("UPDATE headgate.queue SET is_paused = true WHERE name = 'many'")
        yield* observe
        yield* Time.advance("1 second")
        yield* query("UPDATE headgate.queue SET is_paused = false WHERE name = 'many'")
        yield* observe
      }
      const kept = yield* holds("many")
      assert.deepStrictEqual([kept.length, kept[0]?.fromMs], [20, start + 5000])
      yield* query("DELETE FROM headgate.job WHERE id = 'many'")
      yield* observe
      yield* observe
      const left = yield* query("SELECT FROM headgate.hold WHERE job_id = 'many'")
      assert.lengthOf(left, 0)
    }))

  it.effect("a job does not inherit the holds of an earlier one of its id", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* Jobs.seed({ id: "again" })
      yield* query(`INSERT INTO headgate.hold (from_ms, until_ms, job_id, blocked_by, detail)
        VALUES (${now - 1000}, ${now - 500}, 'again', 'no_worker', 'q'), (${now}, null, 'again', 'no_worker', 'q')`)
      assert.deepStrictEqual((yield* holds("again")).map(({ fromMs }) => fromMs), [now])
    }))

  it.effect("none of it costs more for a longer queue", () =>
    Effect.gen(function*() {
      yield* worker("deep", "deep")
      yield* rateClass("deep", 1, 60_000)
      yield* waiting({ queue: "deep", ids: ["deep-first"], classes: ["deep"] })
      yield* query(`INSERT INTO headgate.job (id, kind, queue, state, fingerprint, payload, lane_id, schema_version,
          max_attempts, crash_limit, retention_ms, scheduled_at_ms, enqueued_at_ms)
        SELECT 'deep-' || lpad(n::text, 6, '0'), 'greet', 'deep', 'available', 'f' || n, '{}', j.lane_id, 1, 5, 3, 0,
          j.scheduled_at_ms + n, n FROM generate_series(1, 100000) n JOIN headgate.job j ON j.id = 'deep-first'`)
      yield* admit("deep", 1)
      const answer = yield* why("deep-099999")
      assert.deepInclude(answer, { blockedBy: "rate_class", estimatedAdmissionMs: null })
      assert.deepInclude<object>(answer.detail ?? {}, { ahead: 1000, isAtLeast: true })
      const sql = yield* PgClient.PgClient
      // The counts of a session's earlier transactions stand beside those of this one.
      const reads = Effect.map(
        sql<{ scans: number; rows: number }>`SELECT seq_scan::int AS scans, idx_tup_fetch::int AS rows
          FROM pg_stat_xact_user_tables WHERE relname = 'job'`,
        ([read]) => ({ scans: read?.scans ?? 0, rows: read?.rows ?? 0 })
      )
      const [before, after] = yield* sql.withTransaction(Effect.gen(function*() {
        const before = yield* reads
        yield* sql`SELECT * FROM headgate.explain('deep-099999')`
        yield* sql`SELECT * FROM headgate.held_now(100)`
        yield* sql`SELECT headgate.observe_holds(100)`
        return [before, yield* reads] as const
      }))
      assert.strictEqual(after.scans - before.scans, 0)
      assert.isBelow(after.rows - before.rows, 20_000)
    }), 240_000)
})
