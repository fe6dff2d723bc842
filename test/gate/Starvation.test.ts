import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as Fixture from "./Fixture.ts"

const admit = (capacity: number, queues: ReadonlyArray<string>, kinds: ReadonlyArray<string> = ["red"]) =>
  Effect.map(
    Fixture.admit(
      { worker: "w1", leaseId: crypto.randomUUID(), leaseMs: 60_000, queues, capacity, quantum: undefined },
      kinds
    ),
    (answers) => answers.flatMap(({ fence, id }) => fence === null || id === null ? [] : [id])
  )

const waiting = (count: number, prefix: string, job: Partial<Fixture.NewJob>) =>
  Array.from({ length: count }, (_, n) => ({ id: `${prefix}-${n}`, queue: "gated", kind: "red", ...job }))

/** A class that has nothing left, for an hour. */
const emptyClass = (name: string) =>
  Effect.andThen(
    Fixture.setClass(name, { limit: 1, windowMs: 3_600_000, burst: 1, isPaused: false }),
    Fixture.run(`insert into headgate.bucket (class, key, units, at_ms) values ($1, '', 0, headgate.now_ms())`, [name])
  )

layer(TestDatabase.layerWith({ client: { maxConnections: 2 } }), { excludeTestServices: true })("The gate", (it) => {
  it.effect("keys that are full, however many, do not hide the one behind them", () =>
    Effect.gen(function*() {
      const keyed = (prefix: string, key: string) => ({
        id: `${prefix}-${key}`,
        queue: "gated",
        kind: "red",
        slots: [{ policy: "by-key", key }]
      })
      const keys = Array.from({ length: 2000 }, (_, n) => `k${String(n).padStart(4, "0")}`)
      yield* Fixture.clear
      yield* Fixture.setLimit("by-key", { scope: "key", subject: "", max: 1, onSaturated: "queue", isPaused: false })
      yield* Fixture.insert(keys.map((key) => keyed("held", key)), 1000)
      yield* Fixture.run(`update headgate.job set state = 'running', lease_id = gen_random_uuid(), worker = 'w2',
        lease_expires_at_ms = 9000000000000000`)
      yield* Fixture.insert(keys.map((key) => keyed("waiting", key)), 2000)
      yield* Fixture.insert([keyed("free", "z")], 9000)
      const found = yield* Effect.repeat(admit(4, ["gated"]), { until: (ids) => ids.length > 0, times: 50 })
      assert.deepStrictEqual(found, ["free-z"])
    }))

  it.effect("a partition that waits for its class leaves the turns to all the others", () =>
    Effect.gen(function*() {
      yield* Fixture.clear
      yield* emptyClass("shut")
      yield* Fixture.insert(
        waiting(5, "a", { partition: "a", charges: [{ policy: "shut", key: "", weight: 1 }] }),
        1000
      )
      for (const partition of ["b", "c", "d"]) yield* Fixture.insert(waiting(30, partition, { partition }), 2000)
      const given = new Map<string, number>()
      for (let call = 0; call < 30; call++) {
        for (const id of yield* admit(1, ["gated"])) given.set(id[0]!, (given.get(id[0]!) ?? 0) + 1)
      }
      assert.deepStrictEqual([...given].sort(), [["b", 10], ["c", 10], ["d", 10]])
    }))

  it.effect("queues that are held, however many, do not keep a worker from the one that is not", () =>
    Effect.gen(function*() {
      yield* Fixture.clear
      yield* emptyClass("shut")
      const held = Array.from({ length: 30 }, (_, n) => `q${String(n).padStart(2, "0")}`)
      for (const queue of held) {
        yield* Fixture.insert(waiting(2, queue, { queue, charges: [{ policy: "shut", key: "", weight: 1 }] }), 1000)
      }
      yield* Fixture.insert(waiting(1, "free", { queue: "z" }), 2000)
      assert.deepStrictEqual(yield* admit(1, [...held, "z"]), ["free-0"])
    }))

  it.effect("a queue with thousands of held partitions leaves the next queue its share of the look", () =>
    Effect.gen(function*() {
      yield* Fixture.clear
      yield* emptyClass("shut")
      const jobs = Array.from({ length: 2000 }, (_, n) => ({
        id: `held-${n}`,
        queue: "a",
        kind: "red",
        partition: `p${n}`,
        charges: [{ policy: "shut", key: "", weight: 1 }]
      }))
      yield* Fixture.insert(jobs, 1000)
      yield* Fixture.insert(waiting(5, "free", { queue: "b", partition: "p" }), 9000)
      const found = yield* admit(5, ["a", "b"])
      assert.deepStrictEqual(found.sort(), ["free-0", "free-1", "free-2", "free-3", "free-4"])
    }))

  it.effect("where several kinds wait, jobs that others hold do not hide those behind them", () =>
    Effect.gen(function*() {
      yield* Fixture.clear
      yield* Fixture.insert(waiting(20, "held", { partition: "p", priority: 1 }), 1000)
      yield* Fixture.insert(waiting(1, "other", { partition: "p", kind: "blue" }), 2000)
      yield* Fixture.insert(waiting(20, "free", { partition: "p" }), 3000)
      const sql = yield* PgClient.PgClient
      const lock = `select from headgate.job where id like 'held-%' for update`
      const found = yield* sql.withTransaction(Effect.andThen(
        sql.unsafe(lock),
        Effect.promise(() =>
          Effect.runPromise(Effect.provideService(admit(10, ["gated"], ["red", "blue"]), PgClient.PgClient, sql))
        )
      ))
      assert.strictEqual(found.length, 10)
    }))
})
