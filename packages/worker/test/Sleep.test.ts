import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control, Inspect, Invalid, MAX_DURATION_MS, Step, Task } from "@headgate/core"
import { Time } from "@headgate/testkit"
import { Deferred, Effect, Layer, Option, Schema } from "effect"
import * as Attempts from "./Attempts.ts"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

layer(Attempts.layer, { excludeTestServices: true })("Sleep", (it) => {
  it.effect("a sleep puts the job down until the wake time, holding no lease; the next attempt goes on behind it", () =>
    Effect.gen(function*() {
      const task = Task.make("napping", { payload, steps: ["a", "nap", "b"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const handler = Effect.gen(function*() {
        yield* task.step("a", say("a"))
        yield* task.sleep("nap", "30 minutes")
        yield* task.step("b", say("b"))
      })
      const now = yield* Time.freeze()
      const slept = yield* worker.run(task, handler)
      const job = yield* (yield* Inspect).job(id)
      assert.deepStrictEqual([Attempts.ending(slept), slept.outcome], ["Settled", undefined])
      assert.deepStrictEqual([job.state, job.scheduledAtMs, job.leaseExpiresAtMs, job.attempt], [
        "scheduled",
        now + 1_800_000,
        undefined,
        0
      ])
      yield* Attempts.due()
      const { outcome } = yield* worker.run(task, handler)
      assert.deepStrictEqual([entries, outcome?._tag], [["a", "b"], "Success"])
    }))

  it.effect("promoted early it sleeps on, until the wake time it has, however often", () =>
    Effect.gen(function*() {
      const task = Task.make("promoted", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const control = yield* Control
      const inspect = yield* Inspect
      const { entries, say } = Attempts.log()
      const handler = Effect.andThen(Step.sleep("nap", "30 minutes"), say("awake"))
      yield* Time.freeze()
      yield* worker.run(task, handler)
      const wakeAt = (yield* inspect.job(id)).scheduledAtMs
      for (let n = 0; n < 3; n++) {
        yield* Time.advance("5 minutes")
        yield* control.promote(id)
        yield* worker.run(task, handler)
        const job = yield* inspect.job(id)
        assert.deepStrictEqual([job.state, job.scheduledAtMs, entries], ["scheduled", wakeAt, []])
      }
      yield* Time.advance("15 minutes")
      yield* control.promote(id)
      yield* worker.run(task, handler)
      assert.deepStrictEqual(entries, ["awake"])
    }))

  it.effect("a job can sleep for 100 years, not for longer, and not for no time at all", () =>
    Effect.gen(function*() {
      const task = Task.make("centuries", { payload })
      yield* task.enqueueAll([undefined, undefined, undefined])
      const worker = yield* Attempts.worker()
      const now = yield* Time.freeze()
      const long = yield* worker.run(task, Step.sleep("nap", MAX_DURATION_MS))
      const job = yield* (yield* Inspect).job(long.attempt.claim.lease.jobId)
      assert.strictEqual(job.scheduledAtMs, now + MAX_DURATION_MS)
      for (const duration of [MAX_DURATION_MS + 1, 0]) {
        const { exit } = yield* worker.run(task, Step.sleep("nap", duration))
        assert.instanceOf(Attempts.failure(exit), Invalid)
      }
    }))

  it.effect("the records of parallel branches are stored before the job is put down", () =>
    Effect.gen(function*() {
      const task = Task.make("branches", { payload })
      const id = yield* task.enqueue(undefined)
      // The store is slow to take the record, and the sleep is asked for meanwhile.
      const isAsked = yield* Deferred.make<void>()
      const worker = yield* Attempts.worker({
        way: (batch, send) =>
          batch.some(({ record }) => record !== undefined)
            ? Effect.andThen(Effect.andThen(Deferred.await(isAsked), Effect.sleep(50)), send(batch))
            : send(batch)
      })
      const handler = Effect.all([
        Step.run("a", Effect.void),
        Effect.sleep(20).pipe(
          Effect.andThen(Deferred.succeed(isAsked, undefined)),
          Effect.andThen(Step.sleep("nap", "10 minutes"))
        )
      ], { concurrency: 2 })
      yield* worker.run(task, handler)
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual(checkpoint?.records.map(({ step }) => step).sort(), ["a", "nap"])
    }))

  it.effect("a job that would wake past its deadline ends there, and is told as archived", () =>
    Effect.gen(function*() {
      const task = Task.make("overslept", { payload, deadline: "10 minutes" })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const ran = yield* worker.run(task, Step.sleep("nap", "1 hour"))
      assert.deepInclude(ran.attempt.ending, { _tag: "Settled", state: "archived" })
      assert.strictEqual((yield* (yield* Inspect).job(id)).state, "archived")
    }))

  it.effect("a job that was cancelled does not come back by its sleep", () =>
    Effect.gen(function*() {
      const task = Task.make("cancelled-sleep", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const control = yield* Control
      const ran = yield* worker.run(
        task,
        Effect.andThen(Effect.orDie(control.cancel(id)), Step.sleep("nap", "1 minute"))
      )
      assert.strictEqual(Attempts.ending(ran), "lease_lost")
      assert.strictEqual((yield* (yield* Inspect).job(id)).state, "cancelled")
    }))

  it.effect("a sleep is not asked for once the lease has run out on this process's clock", () =>
    Effect.gen(function*() {
      const task = Task.make("late-sleep", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const held = yield* worker.claim(task)
      held.lease.until = 0
      const ran = yield* worker.finish(held, Step.sleep("nap", "1 minute"))
      assert.strictEqual(Attempts.ending(ran), "lease_lost")
      assert.strictEqual((yield* (yield* Inspect).job(id)).state, "running")
    }))
})

layer(Workers.layer, { excludeTestServices: true })("Sleep in a real worker", (it) => {
  it.effect("300 jobs that wake the moment they are put down all go on at once: no wake-up is lost", () =>
    Effect.gen(function*() {
      const task = Task.make("blink", { payload, queue: "blink", steps: ["nap"] })
      const handler = task.toLayer(() => task.sleep("nap", "1 millis"))
      yield* task.enqueueAll(Array.from({ length: 300 }, () => undefined))
      // A job whose wake-up was lost would wait longer than the test does.
      yield* Workers.start(handler, { concurrency: 20, pollInterval: "10 minutes" })
      const isDone = Effect.map(
        Workers.counts("blink"),
        (counts) => counts["completed"] === 300 ? Option.some(true) : Option.none()
      )
      yield* Workers.until(isDone, "300 jobs to complete", 60_000)
      const sql = yield* PgClient.PgClient
      const [row] = yield* sql<{ naps: number; latest: bigint }>`SELECT count(*)::int AS naps,
        max(j.finished_at_ms - s.wake_at_ms) AS latest
        FROM headgate.job j JOIN headgate.step s ON s.job_id = j.id WHERE j.queue = 'blink' AND s.step = 'nap'`
      assert.strictEqual(row?.naps, 300)
      Workers.within("from a wake time to the job's end", Number(row?.latest), 5000)
    }))

  it.effect("a sleeping job holds no slot: the one slot of a worker is free for others", () =>
    Effect.gen(function*() {
      const sleeper = Task.make("sleeper", { payload, queue: "slot", priority: 1 })
      const other = Task.make("other", { payload, queue: "slot" })
      const handlers = Layer.merge(sleeper.toLayer(() => Step.sleep("nap", "1 day")), other.toLayer(() => Effect.void))
      yield* Workers.start(handlers, { concurrency: 1 })
      const asleep = yield* sleeper.enqueue(undefined)
      yield* Workers.settled(asleep, "scheduled")
      const id = yield* other.enqueue(undefined)
      yield* Workers.settled(id, "completed")
      assert.strictEqual(yield* Workers.stateOf(asleep), "scheduled")
    }))
})
