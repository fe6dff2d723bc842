import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Job, RateClass, Task } from "@headgate/core"
import { Deferred, Effect, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

/** Of 100 tokens, that refill one a day. */
const classOf = (name: string) => RateClass.make(name, { limit: 1, window: "1 day", burst: 100 })

/** Whole tokens of its bucket; the refill of a test's time is too little to show. */
const tokens = Effect.fnUntraced(function*(name: string) {
  const sql = yield* PgClient.PgClient
  const [bucket] = yield* sql<{ tokens: number; waits: boolean }>`SELECT floor(b.units / 86400000.0)::int AS tokens,
    b.closed_until_ms > headgate.now_ms() + 50000 AS waits FROM headgate.bucket b WHERE b.class = ${name}`
  return bucket
})

layer(Workers.layer, { excludeTestServices: true })("Job.charge", (it) => {
  it.effect("what the handler says is what the job costs, the last word of several", () =>
    Effect.gen(function*() {
      const api = classOf("api")
      const task = Task.make("charges", { payload, rates: [api.weigh(() => 10)] })
      yield* Workers.start(
        task.toLayer(() => Effect.andThen(Job.charge(25), Job.charge({ class: api, actual: 4 }))),
        { queues: ["c1"] }
      )
      const id = yield* task.enqueue(undefined, { queue: "c1" })
      yield* Workers.settled(id, "completed")
      assert.strictEqual((yield* tokens("api"))?.tokens, 96)
    }))

  it.effect("an attempt that dies keeps its estimate, whatever it said", () =>
    Effect.gen(function*() {
      const task = Task.make("dies", { payload, rates: [classOf("dying").weigh(() => 10)], crashLimit: 1 })
      yield* Workers.start(task.toLayer(() => Effect.andThen(Job.charge(0), Effect.die("boom"))), { queues: ["c2"] })
      const id = yield* task.enqueue(undefined, { queue: "c2" })
      yield* Workers.settled(id, "quarantined")
      assert.strictEqual((yield* tokens("dying"))?.tokens, 90)
    }))

  it.effect("a cost that is no whole number is refused where it is said", () =>
    Effect.gen(function*() {
      const task = Task.make("refused", { payload })
      const refusals: Array<string> = []
      const say = (actual: number) =>
        Effect.catchTag(Job.charge(actual), "Invalid", ({ field }) => Effect.sync(() => void refusals.push(field)))
      yield* Workers.start(
        task.toLayer(() => Effect.forEach([-1, 1.5, Number.NaN, 1e10], say, { discard: true })),
        { queues: ["c3"] }
      )
      const id = yield* task.enqueue(undefined, { queue: "c3" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(refusals, ["actual", "actual", "actual", "actual"])
    }))

  it.effect("a completion in a transaction costs what was said before it", () =>
    Effect.gen(function*() {
      const task = Task.make("completes", { payload, rates: [classOf("completing").weigh(() => 10)] })
      yield* Workers.start(
        task.toLayer(() => Job.completeWith(Effect.orDie(Job.charge(3)))),
        { queues: ["c4"] }
      )
      const id = yield* task.enqueue(undefined, { queue: "c4" })
      yield* Workers.settled(id, "completed")
      assert.strictEqual((yield* tokens("completing"))?.tokens, 97)
    }))

  it.effect("retryAfter closes the job's buckets for all, and its estimate goes back", () =>
    Effect.gen(function*() {
      const task = Task.make("limited", { payload, rates: [classOf("remote").weigh(() => 10)] })
      yield* Workers.start(task.toLayer(() => Job.rateLimited({ retryAfter: "1 minute" })), { queues: ["c5"] })
      const id = yield* task.enqueue(undefined, { queue: "c5" })
      yield* Workers.settled(id, "scheduled")
      assert.deepStrictEqual(yield* tokens("remote"), { tokens: 100, waits: true })
      const next = yield* task.enqueue(undefined, { queue: "c5" })
      yield* Effect.sleep(500)
      assert.strictEqual(yield* Workers.stateOf(next), "available")
    }))

  it.effect("a claim that waited for a slot and is handed back costs nothing, one that started keeps its estimate", () =>
    Effect.gen(function*() {
      const task = Task.make("buffered", { payload, rates: [classOf("buffer").weigh(() => 10)] })
      const started = yield* Deferred.make<void>()
      const worker = yield* Workers.start(
        task.toLayer(() => Effect.andThen(Deferred.succeed(started, undefined), Effect.never)),
        { queues: ["c6"], concurrency: 1, prefetch: 4, shutdownGrace: 0 }
      )
      const ids = yield* task.enqueueAll([undefined, undefined, undefined], { queue: "c6" })
      yield* Deferred.await(started)
      yield* Workers.eventually(tokens("buffer"), (bucket) => bucket?.tokens === 70)
      yield* worker.stop
      for (const id of ids) assert.strictEqual(yield* Workers.stateOf(id), "available")
      assert.strictEqual((yield* tokens("buffer"))?.tokens, 90)
    }))
})
