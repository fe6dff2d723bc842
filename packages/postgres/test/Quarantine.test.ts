import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import type { EnvelopeInput } from "@headgate/core/Envelope"
import { Gate } from "@headgate/core/Gate"
import { JobId, type LeaseRef } from "@headgate/core/Ids"
import { Leases } from "@headgate/core/Leases"
import * as Outcome from "@headgate/core/Outcome"
import { Quarantine } from "@headgate/core/Quarantine"
import { Time } from "@headgate/testkit"
import { Effect, Fiber, Latch } from "effect"
import * as Jobs from "./Jobs.ts"
import * as Store from "./Store.ts"

const boom = { tag: "Boom", message: "boom", text: "Boom: boom" }
const crashed = Outcome.crashed(boom)

/** Jobs of one content, claimed by one worker. */
const claimed = Effect.fnUntraced(function*(
  fingerprint: string,
  count: number,
  input: Partial<EnvelopeInput> = {},
  worker = "w1"
) {
  const ids = Array.from({ length: count }, (_, n) => `${fingerprint} ${worker} ${n}`)
  yield* Store.enqueue(...ids.map((id) => ({ id, fingerprint, queue: fingerprint, ...input })))
  const claims = yield* Store.admit({ worker, queues: [fingerprint], capacity: count })
  return claims.map(({ lease }) => lease)
})

const strikes = Effect.fnUntraced(function*(fingerprint: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<
    { strikes: number; is_closed: boolean }
  >`SELECT s.strikes, s.closed_at_ms IS NOT NULL AS is_closed
    FROM headgate.strike s WHERE s.fingerprint = ${fingerprint}`
  return rows[0] === undefined ? undefined : [rows[0].strikes, rows[0].is_closed ? "closed" : "counting"]
})

const expire = Effect.fnUntraced(function*(leases: ReadonlyArray<LeaseRef>) {
  const sql = yield* PgClient.PgClient
  yield* sql`UPDATE headgate.job SET lease_expires_at_ms = 0 WHERE id = ANY(${leases.map(({ jobId }) => jobId)})`
})

const reclaim = (limit = 1000) => Duties.use((duties) => duties.reclaimExpired(limit))

const sweep = (limit = 1000) => Duties.use((duties) => duties.quarantineSweep(limit))

/** Until no lap is left. */
const swept = Effect.gen(function*() {
  const found: Array<string> = []
  for (let isDone = false; !isDone;) {
    const part = yield* sweep()
    found.push(...part.jobIds)
    isDone = part.isDone
  }
  return found.sort()
})

const close = Effect.fnUntraced(function*(fingerprint: string) {
  for (const lease of yield* claimed(fingerprint, 3, { crashLimit: 1 })) yield* Store.settle(lease, crashed)
})

const release = (fingerprint: string, limit?: number) =>
  Quarantine.use((quarantine) => quarantine.release(fingerprint, { limit }))

layer(Store.layer, { excludeTestServices: true })("Crashes of equal content", (it) => {
  it.effect("close the fingerprint at the limit, whoever crashed, and the call that closes it says so", () =>
    Effect.gen(function*() {
      const answers = []
      for (const worker of ["w1", "w2", "w3"]) {
        const [lease] = yield* claimed("spread", 1, {}, worker)
        answers.push(yield* Store.settle(lease!, crashed))
      }
      assert.deepStrictEqual(answers.map((answer) => answer?.state), ["retryable", "retryable", "quarantined"])
      assert.deepInclude(answers[2], { reason: "fingerprint", closedFingerprint: "spread" })
      assert.deepStrictEqual(yield* strikes("spread"), [3, "closed"])
    }))

  it.effect("close it as often as a setting says, and are told once of several in one batch", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`INSERT INTO headgate.setting (name, value) VALUES ('strike_limit', 5)`
      const leases = yield* claimed("setting", 7)
      const settleAll = (some: ReadonlyArray<LeaseRef>) =>
        Leases.use((store) => store.settle(some.map((lease) => ({ lease, outcome: crashed }))))
      const first = yield* settleAll(leases.slice(0, 4))
      assert.isTrue(first.every(({ state }) => state === "retryable"))
      const rest = yield* settleAll(leases.slice(4))
      yield* sql`DELETE FROM headgate.setting`
      assert.isTrue(rest.every(({ state }) => state === "quarantined"))
      const told = rest.flatMap((answer) =>
        answer._tag === "Applied" && answer.closedFingerprint !== undefined ? [answer.closedFingerprint] : []
      )
      assert.deepStrictEqual(told, ["setting"])
      assert.deepStrictEqual(yield* strikes("setting"), [7, "closed"])
    }))

  it.effect("leave a job under the lower of the two limits", () =>
    Effect.gen(function*() {
      const [own] = yield* claimed("own", 1, { crashLimit: 1 })
      assert.deepInclude(yield* Store.settle(own!, crashed), { state: "quarantined", reason: "crash_limit" })
      assert.deepStrictEqual(yield* strikes("own"), [1, "counting"])
    }))

  it.effect("are counted by the step that was under way", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      for (const step of ["load", "load", null]) {
        const [lease] = yield* claimed("steps", 1, {}, `at ${step}-${yield* strikes("steps")}`.replaceAll(" ", "-"))
        yield* sql`UPDATE headgate.job SET in_progress_step = ${step} WHERE id = ${lease!.jobId}`
        yield* Store.settle(lease!, crashed)
      }
      const { items } = yield* Quarantine.use((quarantine) => quarantine.list({ limit: 200 }))
      assert.deepInclude(items.find(({ fingerprint }) => fingerprint === "steps"), { strikes: 3, byStep: { load: 2 } })
    }))

  it.effect("are one strike where one worker's death took several, also when two sweeps find them", () =>
    Effect.gen(function*() {
      const leases = yield* claimed("death", 5)
      yield* expire(leases.slice(0, 3))
      assert.strictEqual((yield* reclaim()).length, 3)
      assert.deepStrictEqual(yield* strikes("death"), [1, "counting"])
      yield* Time.advance("1 second")
      yield* expire(leases.slice(3))
      yield* reclaim()
      assert.deepStrictEqual(yield* strikes("death"), [1, "counting"])
    }))

  it.effect("are one strike a worker where several died at once, whatever the sweeps find first", () =>
    Effect.gen(function*() {
      const [one, two] = [yield* claimed("both", 3, {}, "b1"), yield* claimed("both", 3, {}, "b2")]
      for (const n of [0, 1, 2]) {
        yield* expire([one[n]!, two[n]!])
        yield* Time.advance("1 second")
        yield* reclaim()
      }
      assert.deepStrictEqual(yield* strikes("both"), [2, "counting"])
    }))

  it.effect("are a strike for each worker, and for each life of one", () =>
    Effect.gen(function*() {
      const [one, two] = [yield* claimed("lives", 2, {}, "l1"), yield* claimed("lives", 2, {}, "l2")]
      yield* expire([...one, ...two])
      yield* reclaim()
      assert.deepStrictEqual(yield* strikes("lives"), [2, "counting"])
      yield* Time.advance("10 millis")
      yield* Store.enqueue({ id: "later life", fingerprint: "lives", queue: "later-life" })
      const [claim] = yield* Store.admit({ worker: "l2", queues: ["later-life"] })
      yield* Time.advance("10 millis")
      yield* expire([claim!.lease])
      const [lost] = yield* reclaim()
      assert.deepInclude(lost, { state: "quarantined", reason: "fingerprint", closedFingerprint: "lives" })
    }))

  it.effect("are forgotten after a success, which opens nothing that is closed", () =>
    Effect.gen(function*() {
      for (const retentionMs of [0, 60_000]) {
        const fingerprint = `forgiven-${retentionMs}`
        const [bad, good] = yield* claimed(fingerprint, 2, { retentionMs })
        yield* Store.settle(bad!, crashed)
        assert.deepStrictEqual(yield* strikes(fingerprint), [1, "counting"])
        yield* Store.settle(good!, Outcome.success)
        assert.isUndefined(yield* strikes(fingerprint))
      }
      const leases = yield* claimed("kept", 4)
      for (const lease of leases.slice(0, 3)) yield* Store.settle(lease, crashed)
      assert.deepInclude(yield* Store.settle(leases[3]!, Outcome.success), { _tag: "Applied", state: "completed" })
      assert.deepStrictEqual(yield* strikes("kept"), [3, "closed"])
    }))

  it.effect("are neither counted nor forgotten by a holder that has lost its lease", () =>
    Effect.gen(function*() {
      const leases = yield* claimed("stale", 2)
      yield* expire(leases)
      yield* reclaim()
      for (const outcome of [crashed, Outcome.success]) {
        for (const lease of leases) assert.strictEqual((yield* Store.settle(lease, outcome))?._tag, "Rejected")
      }
      assert.deepStrictEqual(yield* strikes("stale"), [1, "counting"])
    }))

  it.effect("that were counted and never came again are forgotten after 30 days, closed ones are not", () =>
    Effect.gen(function*() {
      const [lease] = yield* claimed("once", 1)
      yield* Store.settle(lease!, crashed)
      yield* close("for-good")
      yield* Time.advance("31 days")
      yield* Duties.use((duties) => duties.evictRetained(1000))
      assert.isUndefined(yield* strikes("once"))
      assert.deepStrictEqual(yield* strikes("for-good"), [3, "closed"])
    }))
})

layer(Store.layer, { excludeTestServices: true })("A closed fingerprint", (it) => {
  it.effect("takes each running job that ends without success, and lets a success count", () =>
    Effect.gen(function*() {
      const leases = yield* claimed("siblings", 12)
      const outcomes = [
        Outcome.retry(1000, boom),
        Outcome.timedOut(1000, boom),
        Outcome.notAFailure(1000),
        Outcome.rateLimited(),
        Outcome.rateLimited({ delayMs: 2000 }),
        Outcome.snooze(1000),
        Outcome.released,
        crashed
      ]
      for (const lease of leases.slice(0, 3)) yield* Store.settle(lease, crashed)
      const answers = yield* Leases.use((store) =>
        store.settle(outcomes.map((outcome, n) => ({ lease: leases[3 + n]!, outcome })))
      )
      for (const answer of answers) assert.deepInclude(answer, { state: "quarantined", reason: "fingerprint" })
      assert.deepInclude(yield* Store.settle(leases[11]!, Outcome.success), { state: "completed" })
    }))

  it.effect("starts no waiting job: the call of the gate that meets one turns it away", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "met", fingerprint: "gate", queue: "met" })
      yield* close("gate")
      const admission = yield* Gate.use((gate) => gate.admit(Store.request({ queues: ["met"] })))
      assert.deepStrictEqual(admission.ended, [{ jobId: JobId.make("met"), reason: "fingerprint" }])
      assert.deepStrictEqual(yield* Store.columns("met", "state", "reason"), ["quarantined", "fingerprint"])
    }))
})

layer(Store.layer, { excludeTestServices: true })("While no fingerprint is closed", (it) => {
  const lookingLanes = Effect.gen(function*() {
    const sql = yield* PgClient.PgClient
    const rows = yield* sql<{ queue: string }>`SELECT l.queue FROM headgate.lane l WHERE l.has_closed ORDER BY 1`
    return rows.map(({ queue }) => queue)
  })
  const turnsAway = Effect.fnUntraced(function*(id: string, queue: string) {
    const { claims, ended } = yield* Gate.use((gate) => gate.admit(Store.request({ queues: [queue] })))
    assert.deepStrictEqual(claims, [])
    assert.deepStrictEqual(ended, [{ jobId: JobId.make(id), reason: "fingerprint" }])
  })
  /** No other fingerprint is closed, and a job waits in a lane of its own. */
  const waits = Effect.fnUntraced(function*(id: string) {
    const sql = yield* PgClient.PgClient
    yield* sql`DELETE FROM headgate.strike`
    yield* Store.enqueue({ id: `a ${id}`, queue: id }, { id, fingerprint: id, queue: id })
  })
  const crashes = (leases: ReadonlyArray<LeaseRef>) =>
    Leases.use((store) => store.settle(leases.map((lease) => ({ lease, outcome: crashed }))))

  it.effect("calls of the gate do not look for one, and look again as soon as one is closed", () =>
    Effect.gen(function*() {
      yield* waits("plain")
      yield* Store.admit({ queues: ["plain"], capacity: 1 })
      assert.deepStrictEqual(yield* lookingLanes, [])
      yield* crashes(yield* claimed("plain-bad", 3, { fingerprint: "plain" }))
      assert.include(yield* lookingLanes, "plain")
      yield* turnsAway("plain", "plain")
    }))

  it.effect("a call beside one that closes it goes on looking", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* waits("beside")
      const leases = yield* claimed("beside-bad", 3, { fingerprint: "beside" })
      yield* sql`UPDATE headgate.lane SET has_closed = true`
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT headgate.strike(${leases.map(({ jobId }) => jobId)}, false, headgate.now_ms())`
        yield* Store.admit({ queues: ["beside"], capacity: 1 })
      }))
      yield* turnsAway("beside", "beside")
    }))

  it.effect("one that is closed while a call stops to look is looked for", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* waits("between")
      const leases = yield* claimed("between-bad", 3, { fingerprint: "between" })
      yield* sql`UPDATE headgate.lane SET has_closed = true`
      const context = yield* Effect.context<Leases>()
      const closing = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT headgate.forget_closed()`
        // Outside the transaction.
        const fiber = yield* Effect.forkDetach(Effect.provideContext(crashes(leases), context))
        yield* Effect.raceFirst(Store.untilLocked, Fiber.await(fiber))
        return fiber
      }))
      yield* Fiber.join(closing)
      yield* Store.admit({ queues: ["between"], capacity: 1 })
      yield* turnsAway("between", "between")
    }))

  it.effect("a call that closes one can make a lane beside an edit of policies: the edit waits for it", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* waits("edited")
      const leases = yield* claimed("edited-bad", 3, { fingerprint: "edited" })
      yield* sql`UPDATE headgate.lane SET has_closed = false`
      const isClosing = yield* Latch.make()
      const edit = yield* isClosing.await.pipe(
        Effect.andThen(sql`INSERT INTO headgate.queue (name, is_paused) VALUES ('edited', true)`),
        Effect.forkChild
      )
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT headgate.strike(${leases.map(({ jobId }) => jobId)}, false, headgate.now_ms())`
        yield* isClosing.open
        const waiting = sql<{ n: number }>`SELECT pg_stat_clear_snapshot()::text, (SELECT count(*)::int
          FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock') AS n`
        yield* Effect.repeat(waiting, { until: ([row]) => row?.n === 1 }).pipe(Effect.timeout("20 seconds"))
        yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect) VALUES ('edited', 'greet', 1, true)`
      }))
      yield* Fiber.join(edit)
    }))
})

layer(Store.layer, { excludeTestServices: true })("Duties.quarantineSweep", (it) => {
  it.effect("takes what waits under a closed fingerprint, in every state, and nothing else", () =>
    Effect.gen(function*() {
      const states = ["pending", "scheduled", "available", "retryable"] as const
      const others = ["running", "completed", "archived", "cancelled", "undecodable"] as const
      yield* Jobs.seed(
        ...[...states, ...others].map((state) => ({ id: `s ${state}`, state, fingerprint: "bad" })),
        ...states.map((state) => ({ id: `good ${state}`, state, fingerprint: "good" }))
      )
      assert.deepStrictEqual(yield* sweep(), { jobIds: [], isDone: true })
      yield* close("bad")
      assert.deepStrictEqual(yield* swept, states.map((state) => `s ${state}`).sort())
      for (const state of others) assert.strictEqual(yield* Store.stateOf(`s ${state}`), state)
      for (const state of states) assert.strictEqual(yield* Store.stateOf(`good ${state}`), state)
      assert.deepStrictEqual(yield* sweep(), { jobIds: [], isDone: true })
    }))

  it.effect("goes on where it stopped, and one that is closed on the way is through when it comes by again", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`TRUNCATE headgate.job, headgate.strike, headgate.quarantine_lap`
      yield* sql`UPDATE headgate.quarantine_position SET at_id = ''`
      yield* close("one")
      yield* close("two")
      yield* sql`TRUNCATE headgate.job, headgate.quarantine_lap`
      yield* Jobs.seed(...["a", "c", "e", "g"].map((id) => ({ id, fingerprint: "one" })))
      yield* Jobs.seed(...["b", "d", "f", "h"].map((id) => ({ id, fingerprint: "two" })))
      const join = (fingerprint: string) =>
        sql`INSERT INTO headgate.quarantine_lap (fingerprint) VALUES (${fingerprint})`
      yield* join("one")
      const parts = [yield* sweep(3)]
      yield* join("two")
      while (!parts.at(-1)!.isDone) parts.push(yield* sweep(3))
      const found = parts.map(({ jobIds }) => [...jobIds].sort().join(""))
      assert.deepStrictEqual(found, ["ac", "def", "gh", "b"])
      assert.isFalse(parts.slice(0, -1).some(({ isDone }) => isDone))
    }))

  it.effect("passes over a job that another session holds", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "p held", fingerprint: "passed" }, { id: "p free", fingerprint: "passed" })
      yield* close("passed")
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT FROM headgate.job WHERE id = 'p held' FOR UPDATE`
        assert.deepStrictEqual(yield* swept, ["p free"])
      })).pipe(Effect.timeout("1 minute"))
    }))

  it.effect("leaves alone what was released meanwhile", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "m1", fingerprint: "meanwhile" })
      yield* close("meanwhile")
      // As a release that commits while the sweep looks: the lap is still seen, the fingerprint is open.
      yield* sql`UPDATE headgate.strike SET closed_at_ms = NULL WHERE fingerprint = 'meanwhile'`
      assert.deepStrictEqual(yield* swept, [])
      assert.strictEqual(yield* Store.stateOf("m1"), "available")
    }))
})

layer(Store.layer, { excludeTestServices: true })("Quarantine", (it) => {
  it.effect("a release answers how many jobs came back, and the next crash closes the fingerprint again", () =>
    Effect.gen(function*() {
      yield* close("back")
      yield* Jobs.seed(
        ...Array.from({ length: 20 }, (_, n) => ({ id: `a${n + 10}`, fingerprint: "back", queue: "back" }))
      )
      assert.strictEqual((yield* swept).length, 20)
      assert.deepStrictEqual(yield* release("back", 1), { released: 1, keyTaken: 0 })
      assert.deepStrictEqual(yield* strikes("back"), [2, "counting"])
      const [claim] = yield* Store.admit({ queues: ["back"] })
      assert.strictEqual(claim!.crashAttempt, 0)
      assert.deepInclude(yield* Store.settle(claim!.lease, crashed), {
        reason: "fingerprint",
        closedFingerprint: "back"
      })
      assert.deepStrictEqual(yield* release("back", 10), { released: 10, keyTaken: 0 })
      assert.strictEqual((yield* Store.admit({ queues: ["back"], capacity: 100 })).length, 10)
      // The 23 were 20 that waited and 3 that crashed.
      assert.deepStrictEqual(yield* release("back"), { released: 13, keyTaken: 0 })
      assert.deepStrictEqual(yield* release("back"), { released: 0, keyTaken: 0 })
      assert.deepStrictEqual(yield* release("nobody knows"), { released: 0, keyTaken: 0 })
      assert.isUndefined(yield* strikes("nobody knows"))
    }))

  it.effect("a release in several batches passes by jobs whose unique key another one holds", () =>
    Effect.gen(function*() {
      const key = "\\x0161"
      yield* Jobs.seed(
        ...Array.from({ length: 450 }, (_, n) => ({
          id: `k${n + 1000}`,
          state: "quarantined" as const,
          reason: "fingerprint",
          fingerprint: "keys",
          ...(n < 2 ? { unique_key: key } : {})
        })),
        { id: "other reason", state: "quarantined", reason: "operator", fingerprint: "keys" },
        { id: "holder", unique_key: key }
      )
      assert.deepStrictEqual(yield* release("keys"), { released: 448, keyTaken: 2 })
      assert.strictEqual(yield* Store.stateOf("k1000"), "quarantined")
      assert.strictEqual(yield* Store.stateOf("other reason"), "quarantined")
    }))

  it.effect("the release of one job opens its fingerprint as well, one strike short of the limit", () =>
    Effect.gen(function*() {
      yield* close("single")
      yield* Control.use((control) => control.release(Jobs.jobId("single w1 2")))
      assert.deepStrictEqual(yield* strikes("single"), [2, "counting"])
      assert.deepStrictEqual(yield* Store.columns("single w1 2", "state", "crash_attempt"), ["available", 0])
    }))

  it.effect("the list is paged by fingerprint, and shows what is closed, what is counted, or both", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`TRUNCATE headgate.strike, headgate.job`
      yield* close("l2")
      for (const fingerprint of ["l1", "l3"]) {
        const [lease] = yield* claimed(fingerprint, 1)
        yield* Store.settle(lease!, crashed)
      }
      const list = (query: Parameters<Quarantine["Service"]["list"]>[0]) =>
        Effect.map(Quarantine.use((quarantine) => quarantine.list(query)), ({ items, next }) => ({
          prints: items.map(({ fingerprint }) => fingerprint),
          next
        }))
      assert.deepStrictEqual(yield* list({ limit: 2 }), { prints: ["l1", "l2"], next: "l2" })
      assert.deepStrictEqual(yield* list({ limit: 2, after: "l2" }), { prints: ["l3"], next: undefined })
      assert.deepStrictEqual(yield* list({ only: "closed" }), { prints: ["l2"], next: undefined })
      assert.deepStrictEqual(yield* list({ only: "counting" }), { prints: ["l1", "l3"], next: undefined })
      assert.strictEqual((yield* Effect.flip(list({ limit: 201 })))._tag, "Invalid")
      const { items: [entry] } = yield* Quarantine.use((quarantine) => quarantine.list({ only: "closed" }))
      assert.deepInclude(entry, { strikes: 3, kind: "greet", quarantined: 3, lastJobId: Jobs.jobId("l2 w1 2") })
      assert.isNumber(entry?.closedAtMs)
    }))
})
