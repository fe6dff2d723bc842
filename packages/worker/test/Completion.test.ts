import { assert, layer } from "@effect/vitest"
import { Control, Inspect, Invalid, Job, MAX_OUTPUT_BYTES, Step, Task } from "@headgate/core"
import { Effect, Layer, Schema } from "effect"
import * as Attempts from "./Attempts.ts"

const payload = Schema.Void
const success = Schema.Struct({ rows: Schema.Int })

layer(Layer.provideMerge(Attempts.ledger, Attempts.layer), { excludeTestServices: true })("Completion", (it) => {
  it.effect("writes, result and success commit together, and the worker has nothing left to settle", () =>
    Effect.gen(function*() {
      const task = Task.make("import", { payload, success, version: 4 })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const ran = yield* worker.run(task, task.completeWith(Effect.as(Attempts.write("import"), { rows: 3 })))
      const inspect = yield* Inspect
      const result = yield* inspect.result(id)
      assert.deepStrictEqual([ran.exit._tag === "Success" && ran.exit.value, ran.outcome], [{ rows: 3 }, undefined])
      assert.deepStrictEqual(ran.attempt.ending, { _tag: "Settled", outcome: "success", state: "completed" })
      assert.deepStrictEqual([(yield* inspect.job(id)).state, yield* Attempts.written("import")], ["completed", 1])
      assert.deepStrictEqual([result?.version, new TextDecoder().decode(result?.bytes)], [4, "{\"rows\":3}"])
    }))

  it.effect("the job has ended then: a handler that fails afterwards changes nothing, and starts no step any more", () =>
    Effect.gen(function*() {
      const task = Task.make("afterwards", { payload })
      const ids = yield* task.enqueueAll([undefined, undefined, undefined])
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const complete = Job.completeWith(Attempts.write("afterwards"))
      const failed = yield* worker.run(task, Effect.andThen(complete, Effect.fail("too late")))
      const stepped = yield* worker.run(task, Effect.andThen(complete, Step.run("a", say("a"))))
      const twice = yield* worker.run(
        task,
        Effect.andThen(complete, Job.completeWith(Effect.andThen(say("again"), Attempts.write("afterwards"))))
      )
      assert.deepStrictEqual([failed, stepped, twice].map(Attempts.ending), ["Settled", "Settled", "Settled"])
      const inspect = yield* Inspect
      const jobs = yield* Effect.forEach(ids, inspect.job)
      assert.deepStrictEqual(jobs.map(({ attempt, state }) => `${state} ${attempt}`), ids.map(() => "completed 0"))
      assert.deepStrictEqual([entries, yield* Attempts.written("afterwards")], [[], 3])
    }))

  it.effect("a body that fails rolls back, and its error passes through", () =>
    Effect.gen(function*() {
      const task = Task.make("rollback", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit, outcome } = yield* worker.run(
        task,
        Job.completeWith(Effect.andThen(Attempts.write("rollback"), Effect.fail("no")))
      )
      assert.deepStrictEqual([Attempts.failure(exit), outcome?._tag], ["no", "Retry"])
      assert.deepStrictEqual([(yield* (yield* Inspect).job(id)).state, yield* Attempts.written("rollback")], [
        "retryable",
        0
      ])
    }))

  it.effect("a lease lost while the body runs leaves nothing of it behind, and ends the attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("lost", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const control = yield* Control
      const ran = yield* worker.run(
        task,
        Job.completeWith(Effect.andThen(Attempts.write("lost"), Effect.orDie(control.cancel(id))))
      )
      assert.deepStrictEqual([Attempts.ending(ran), ran.outcome, yield* Attempts.written("lost")], [
        "lease_lost",
        undefined,
        0
      ])
      assert.strictEqual((yield* (yield* Inspect).job(id)).state, "cancelled")
    }))

  it.effect("a body does not start once the lease has run out on this process's clock", () =>
    Effect.gen(function*() {
      const task = Task.make("run-out", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const held = yield* worker.claim(task)
      held.lease.until = 0
      const { entries, say } = Attempts.log()
      const ran = yield* worker.finish(held, Job.completeWith(say("ran")))
      assert.deepStrictEqual([Attempts.ending(ran), entries], ["lease_lost", []])
    }))

  it.effect("a result above the limit rolls the body back and is not retried", () =>
    Effect.gen(function*() {
      const task = Task.make("large", { payload, success: Schema.String })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit, outcome } = yield* worker.run(
        task,
        task.completeWith(Effect.as(Attempts.write("large"), "x".repeat(MAX_OUTPUT_BYTES)))
      )
      const refusal = Attempts.failure(exit)
      assert.instanceOf(refusal, Invalid)
      assert.deepInclude(refusal, { limit: MAX_OUTPUT_BYTES, actual: MAX_OUTPUT_BYTES + 2 })
      assert.deepStrictEqual([outcome?._tag, yield* Attempts.written("large")], ["Fatal", 0])
    }))

  it.effect("a job without retention is gone when it answers", () =>
    Effect.gen(function*() {
      const task = Task.make("gone", { payload, success, retention: 0 })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const ran = yield* worker.run(task, task.completeWith(Effect.succeed({ rows: 1 })))
      assert.deepStrictEqual(ran.attempt.ending, { _tag: "Settled", outcome: "success", state: "deleted" })
      assert.strictEqual((yield* Effect.flip((yield* Inspect).job(id)))._tag, "NotFound")
    }))
})
