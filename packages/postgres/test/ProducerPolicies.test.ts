import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { fingerprint } from "@headgate/core/Fingerprint"
import { UNIQUE_REPLACE_PAYLOAD } from "@headgate/core/UniqueKey"
import { Time } from "@headgate/testkit"
import { Deferred, Effect, Fiber } from "effect"
import * as Store from "./Store.ts"

const laneOf = Effect.fnUntraced(function*(id: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ lane: Record<string, unknown> }>`SELECT to_jsonb(l) AS lane FROM headgate.lane l
    JOIN headgate.job j ON j.lane_id = l.id WHERE j.id = ${id}`
  return rows[0]!.lane
})

const close = Effect.fnUntraced(function*(print: string, closedAtMs: number | null = 1) {
  const sql = yield* PgClient.PgClient
  yield* sql`INSERT INTO headgate.strike (strikes, last_at_ms, closed_at_ms, fingerprint, kind, last_job_id)
    VALUES (3, 1, ${closedAtMs}, ${print}, 'greet', 'j') ON CONFLICT (fingerprint) DO UPDATE SET closed_at_ms = ${closedAtMs}`
})

const poison = Store.bytes("poison")

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue with policies", (it) => {
  it.effect("classes and limits are stored sorted, each with its key and its weight in its place", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({
        id: "all",
        rates: [
          { class: "b", key: "k2", weight: 3 },
          { class: "a", key: "", weight: 0 },
          { class: "b", key: "k1", weight: 2 }
        ],
        limits: [{ limit: "z", key: "é\"\\{}," }, { limit: "m", key: "" }]
      })
      assert.deepInclude(yield* laneOf("all"), { classes: ["a", "b", "b"], limits: ["m", "z"], suspect: false })
      assert.deepStrictEqual(yield* Store.columns("all", "keys", "weights"), [
        ["", "k1", "k2", "", "é\"\\{},"].join("\u001f"),
        [1, 2, 3]
      ])
    }))

  it.effect("empty keys and weights of 1 take no room in the job", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({
        id: "bare",
        rates: [{ class: "a", key: "", weight: 1 }, { class: "b", key: "", weight: 0 }],
        limits: [{ limit: "m", key: "" }]
      })
      assert.deepInclude(yield* laneOf("bare"), { classes: ["a", "b"], limits: ["m"] })
      assert.deepStrictEqual(yield* Store.columns("bare", "keys", "weights"), ["", null])
    }))

  it.effect("each job of a mixed batch is in the lane of its own policies", () =>
    Effect.gen(function*() {
      const rates = [{ class: "a", key: "x", weight: 1 }]
      yield* Store.enqueue(
        { id: "m1" },
        { id: "m2", rates },
        { id: "m3", kind: "wave", schemaVersion: 2, queue: "other" },
        { id: "m4", rates, partitionKey: "p" },
        { id: "m5", stickyWorker: "w1" },
        { id: "m6" }
      )
      const plain = { queue: "default", kind: "greet", version: 1, worker: "", classes: [], limits: [] }
      for (const id of ["m1", "m6"]) assert.deepInclude(yield* laneOf(id), { ...plain, is_partitioned: false })
      assert.deepInclude(yield* laneOf("m2"), { ...plain, classes: ["a"], is_partitioned: false })
      assert.deepInclude(yield* laneOf("m3"), { ...plain, queue: "other", kind: "wave", version: 2 })
      assert.deepInclude(yield* laneOf("m4"), { ...plain, classes: ["a"], is_partitioned: true })
      assert.deepInclude(yield* laneOf("m5"), { ...plain, worker: "w1" })
      assert.deepStrictEqual(yield* Store.columns("m3", "queue", "kind", "schema_version"), ["other", "wave", 2])
    }))

  it.effect("a pinned job falls back so long after it is due, and never when it names no time", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* Store.enqueue(
        { id: "strict", stickyWorker: "w" },
        { id: "soft", stickyWorker: "w", stickyFallbackMs: 10 },
        { id: "late", stickyWorker: "w", stickyFallbackMs: 10, delayMs: 1000 },
        { id: "past", stickyWorker: "w", stickyFallbackMs: 10, scheduledAtMs: 5 }
      )
      assert.deepInclude(yield* laneOf("strict"), { worker: "w", falls_back: false })
      assert.deepInclude(yield* laneOf("soft"), { worker: "w", falls_back: true })
      const due = yield* Effect.forEach(
        ["strict", "soft", "late", "past"],
        (id) => Store.columns(id, "fall_back_at_ms")
      )
      assert.deepStrictEqual(due.flat(), [null, now + 10, now + 1010, now + 10])
      yield* Time.resume()
    }))

  it.effect("what a job costs is charged to the bucket it names", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`INSERT INTO headgate.rate_class (name, rate_limit, window_ms, burst)
        VALUES ('api', 10, 3600000, 10), ('zone', 1000, 3600000, 1000)`
      const cost = (id: string, key: string) => ({
        id,
        queue: "charged",
        rates: [{ class: "zone", key: "", weight: 5 }, { class: "api", key, weight: 7 }]
      })
      yield* Store.enqueue(cost("c1", "one"), cost("c2", "one"), cost("c3", "two"))
      const claims = yield* Store.admit({ queues: ["charged"] })
      assert.sameMembers(claims.map(({ lease }) => String(lease.jobId)), ["c1", "c3"])
    }))

  it.effect("a lane that a rival makes at the same moment is used", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const made = yield* Deferred.make<void>()
      const go = yield* Deferred.make<void>()
      const rival = yield* Effect.forkChild(sql.withTransaction(Effect.gen(function*() {
        yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect, classes) VALUES ('new', 'greet', 1, false, '{a}')`
        yield* Deferred.succeed(made, undefined)
        yield* Deferred.await(go)
      })))
      yield* Deferred.await(made)
      const rates = [{ class: "a", key: "", weight: 1 }]
      const enqueued = yield* Effect.forkChild(Store.enqueue({ id: "new", queue: "new", rates }))
      yield* Store.untilLocked
      yield* Deferred.succeed(go, undefined)
      yield* Fiber.join(rival)
      assert.strictEqual((yield* Fiber.join(enqueued))[0]?.status, "created")
      assert.deepInclude(yield* laneOf("new"), { queue: "new", classes: ["a"] })
    }))

  it.effect("after a restore to an older state a lane's id that became another's is not trusted", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      for (const changed of ["queue = 'restored-2'", "classes = '{a}'", "suspect = true", "worker = 'w'"]) {
        yield* Store.enqueue({ id: "before", queue: "restored" })
        yield* sql`UPDATE headgate.lane SET ${sql.literal(changed)} WHERE queue = 'restored'`
        yield* sql`DELETE FROM headgate.job WHERE id = 'before'`
        yield* Store.enqueue({ id: "after", queue: "restored" })
        assert.deepInclude(yield* laneOf("after"), { queue: "restored", classes: [], suspect: false, worker: "" })
        yield* sql`DELETE FROM headgate.job WHERE id = 'after'`
        yield* sql`DELETE FROM headgate.lane WHERE queue like 'restored%'`
      }
    }))
})

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue of a closed fingerprint", (it) => {
  it.effect("refuses the whole batch, names the job, and writes nothing, also in an open transaction", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const print = yield* fingerprint("greet", poison)
      yield* close(print)
      yield* close("named")
      const bad = { id: "bad", payload: poison }
      assert.deepInclude(yield* Effect.flip(Store.enqueue({ id: "ok" }, bad, { id: "ok-2" })), {
        _tag: "Quarantined",
        fingerprint: print,
        index: 1
      })
      assert.deepInclude(yield* Effect.flip(Store.enqueue({ id: "own", fingerprint: "named" })), {
        _tag: "Quarantined",
        fingerprint: "named",
        index: 0
      })
      yield* sql.withTransaction(Effect.gen(function*() {
        assert.strictEqual((yield* Effect.flip(Store.enqueue({ id: "ok" }, bad)))._tag, "Quarantined")
        yield* Store.enqueue({ id: "other" })
      }))
      const states = yield* Effect.forEach(["ok", "bad", "ok-2", "own", "other"], Store.stateOf)
      assert.deepStrictEqual(states, ["deleted", "deleted", "deleted", "deleted", "available"])
    }))

  it.effect("counts strikes below the limit for nothing, and ends with the release", () =>
    Effect.gen(function*() {
      yield* close("released", null)
      yield* close("still-closed")
      assert.strictEqual((yield* Store.enqueue({ id: "r1", fingerprint: "released" }))[0]?.status, "created")
    }))

  it.effect("leaves a job that was stored before: sent again, it is there already", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "before", fingerprint: "later" })
      yield* close("later")
      assert.strictEqual((yield* Store.enqueue({ id: "before", fingerprint: "later" }))[0]?.status, "existing")
    }))

  it.effect("replaces nothing in the holder of its unique key", () =>
    Effect.gen(function*() {
      const uniqueKey = Store.bytes("held")
      yield* Store.enqueue({ id: "holder", uniqueKey, fingerprint: "harmless" })
      yield* close("harmful")
      const replace = { uniqueKey, uniqueReplace: UNIQUE_REPLACE_PAYLOAD }
      const refused = yield* Effect.flip(
        Store.enqueue({ id: "newer", fingerprint: "harmful", payload: poison, ...replace })
      )
      assert.strictEqual(refused._tag, "Quarantined")
      assert.deepStrictEqual(yield* Store.columns("holder", "fingerprint"), ["harmless"])
    }))
})
