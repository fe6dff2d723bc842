import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Task } from "@headgate/core"
import { Time } from "@headgate/testkit"
import { Effect, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const holders = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ name: string; holder: string }>`SELECT name, holder FROM headgate.duty ORDER BY name`
})

layer(Workers.layer, { excludeTestServices: true })("Housekeeping", (it) => {
  it.effect("a delayed job starts when it falls due on the store's clock", () =>
    Effect.gen(function*() {
      const task = Task.make("delayed", { payload })
      yield* Workers.start(task.toLayer(() => Effect.void), { queues: ["h1"] })
      const id = yield* task.enqueue(undefined, { queue: "h1", delay: "1 hour" })
      yield* Effect.sleep(300)
      assert.strictEqual(yield* Workers.stateOf(id), "scheduled")
      yield* Time.advance("1 hour")
      yield* Workers.settled(id, "completed")
    }))

  it.effect("the jobs of a worker that is gone are taken over after their lease, and it is told", () =>
    Effect.gen(function*() {
      const task = Task.make("orphan", { payload })
      const id = yield* task.enqueue(undefined, { queue: "h2" })
      yield* Workers.claimFor("gone", task, "h2")
      const worker = yield* Workers.start(task.toLayer(() => Effect.void), { queues: ["h2"] })
      yield* Time.advance("31 seconds")
      yield* Workers.settled(id, "retryable", "completed")
      yield* Workers.settled(id, "completed")
      assert.deepInclude(worker.told("JobReclaimed", id)[0], { worker: "gone", state: "retryable" })
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 1 })
    }))

  it.effect("a job that was lost once too often is quarantined, and it is told", () =>
    Effect.gen(function*() {
      const task = Task.make("poison", { payload, crashLimit: 1 })
      const id = yield* task.enqueue(undefined, { queue: "h3" })
      yield* Workers.claimFor("gone", task, "h3")
      const worker = yield* Workers.start(task.toLayer(() => Effect.void), { queues: ["h3"] })
      yield* Time.advance("31 seconds")
      yield* Workers.settled(id, "quarantined")
      yield* Workers.untilTrue(() => worker.told("JobQuarantined", id).length === 1, "the quarantine to be told")
    }))

  it.effect("waiting jobs are archived at their deadline, and it is told", () =>
    Effect.gen(function*() {
      const task = Task.make("late", { payload })
      const worker = yield* Workers.start(Task.make("other", { payload }).toLayer(() => Effect.void), {
        queues: ["h4"]
      })
      const id = yield* task.enqueue(undefined, { queue: "h4", deadline: "10 minutes" })
      yield* Time.advance("11 minutes")
      yield* Workers.settled(id, "archived")
      yield* Workers.untilTrue(
        () => worker.events.some((event) => event._tag === "JobsExpired" && event.jobIds.includes(id)),
        "the deadline to be told"
      )
    }))

  it.effect("each duty has one holder, and a drain hands its duties to the other worker at once", () =>
    Effect.gen(function*() {
      const handler = Task.make("idle", { payload }).toLayer(() => Effect.void)
      const first = yield* Workers.start(handler, { queues: ["h5"], id: "first" })
      yield* Workers.eventually(holders, (rows) => rows.length >= 7 && rows.every(({ holder }) => holder === "first"))
      yield* Workers.start(handler, { queues: ["h5"], id: "second", lease: "2 seconds" })
      yield* Effect.sleep(1500)
      assert.isTrue((yield* holders).every(({ holder }) => holder === "first"))
      yield* first.stop
      yield* Workers.eventually(
        holders,
        (rows) =>
          rows.filter(({ name }) => name !== "evict").every(({ holder }) => holder === "second") && rows.length >= 3
      )
    }))

  it.effect("a worker without duties does none", () =>
    Effect.gen(function*() {
      const task = Task.make("undone", { payload })
      yield* Workers.start(task.toLayer(() => Effect.void), { queues: ["h6"], duties: false })
      const id = yield* task.enqueue(undefined, { queue: "h6", delay: "1 hour" })
      yield* Time.advance("2 hours")
      yield* Effect.sleep(1200)
      assert.strictEqual(yield* Workers.stateOf(id), "scheduled")
    }))
})
