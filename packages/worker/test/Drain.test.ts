import { assert, layer } from "@effect/vitest"
import { Job, Retry, Task } from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Deferred, Effect, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

layer(Workers.layer, { excludeTestServices: true })("Drain", (it) => {
  it.effect("a draining worker claims nothing more, lets handlers finish within the grace and keeps their leases", () =>
    Effect.gen(function*() {
      const task = Task.make("finish", { payload: Schema.Int })
      const handler = task.toLayer((ms) => Effect.sleep(ms))
      const worker = yield* Workers.start(handler, {
        queues: ["d1"],
        lease: "5 seconds",
        shutdownGrace: "30 seconds"
      })
      const running = yield* task.enqueue(6500, { queue: "d1" })
      yield* Workers.begins(running)
      const stopped = yield* Effect.forkChild(worker.stop)
      yield* Workers.eventually(worker.health, ({ status }) => status === "draining")
      const late = yield* task.enqueue(1, { queue: "d1" })
      yield* Workers.joined(stopped)
      assert.deepStrictEqual([yield* Workers.stateOf(running), yield* Workers.stateOf(late)], [
        "completed",
        "available"
      ])
      assert.deepStrictEqual(yield* Workers.counters(running), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("what outlasts the grace is interrupted as a shutdown and handed back uncharged, at its place", () =>
    Effect.gen(function*() {
      const task = Task.make("cut", { payload })
      const reason = yield* Deferred.make<string | undefined>()
      const handler = task.toLayer(() =>
        Effect.onInterrupt(
          Effect.never,
          () => Effect.flatMap(Job.interruption, (why) => Deferred.succeed(reason, Option.getOrUndefined(why)))
        )
      )
      const worker = yield* Workers.start(handler, { queues: ["d2"], shutdownGrace: "100 millis" })
      const id = yield* task.enqueue(undefined, { queue: "d2" })
      yield* Workers.begins(id)
      const before = yield* Workers.job(id)
      yield* worker.stop
      const after = yield* Workers.job(id)
      assert.deepStrictEqual(
        [yield* Deferred.await(reason), after.state, after.scheduledAtMs],
        ["shutdown", "available", before.scheduledAtMs]
      )
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("a cancel during the grace stops the handler at once, as a cancel", () =>
    Effect.gen(function*() {
      const task = Task.make("cancelled", { payload })
      const reason = yield* Deferred.make<string | undefined>()
      const handler = task.toLayer(() =>
        Effect.onInterrupt(
          Effect.never,
          () => Effect.flatMap(Job.interruption, (why) => Deferred.succeed(reason, Option.getOrUndefined(why)))
        )
      )
      const worker = yield* Workers.start(handler, { queues: ["d7"], lease: "5 seconds", shutdownGrace: "40 seconds" })
      const id = yield* task.enqueue(undefined, { queue: "d7" })
      yield* Workers.begins(id)
      const stopped = yield* Effect.forkChild(worker.stop)
      yield* Workers.eventually(worker.health, ({ status }) => status === "draining")
      yield* Workers.cancel(id)
      const cancelledAt = monotonicMs()
      assert.strictEqual(yield* Deferred.await(reason), "operator_cancel")
      Workers.within("a cancel stopped its handler", monotonicMs() - cancelledAt, 1250 + 500)
      yield* Workers.joined(stopped)
    }))

  it.effect("a handler that obeys may clean up for longer than a deaf one is waited for, and is handed back in any case", () =>
    Effect.gen(function*() {
      const task = Task.make("tidy", { payload: Schema.Literals(["slow", "endless", "scope"]) })
      const gate = yield* Deferred.make<void>()
      let cleanedUp = false
      const slow = Effect.andThen(Effect.sleep(700), Effect.sync(() => void (cleanedUp = true)))
      const handler = task.toLayer((how) =>
        how === "scope"
          ? Effect.andThen(Effect.addFinalizer(() => Deferred.await(gate)), Effect.never)
          : Effect.onInterrupt(Effect.never, () => how === "slow" ? slow : Deferred.await(gate))
      )
      const options = { queues: ["d8"], shutdownGrace: "50 millis", handlerGrace: "2 seconds" } as const
      const worker = yield* Workers.start(handler, options)
      const ids = yield* task.enqueueAll(["slow", "endless", "scope"], { queue: "d8" })
      for (const id of ids) yield* Workers.begins(id)
      const stoppedAt = monotonicMs()
      yield* worker.stop
      Workers.within("a worker had drained", monotonicMs() - stoppedAt, 5000)
      assert.deepStrictEqual([cleanedUp, yield* Workers.counts("d8")], [true, { available: 3 }])
      for (const id of ids) assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
      yield* Deferred.succeed(gate, undefined)
    }))

  it.effect("claims that wait for a slot are handed back at once, while the handler runs on", () =>
    Effect.gen(function*() {
      const task = Task.make("buffered", { payload })
      const handler = task.toLayer(() => Effect.never)
      const worker = yield* Workers.start(handler, {
        queues: ["d4"],
        concurrency: 1,
        prefetch: 5,
        // No call of the gate is on its way that would hand them back when it ends.
        pollInterval: "1 hour",
        shutdownGrace: "6 seconds"
      })
      yield* task.enqueueAll(Array.from({ length: 4 }), { queue: "d4" })
      yield* Workers.eventually(worker.health, ({ buffered }) => buffered === 3)
      const stopped = yield* Effect.forkChild(worker.stop)
      yield* Workers.eventually(Workers.counts("d4"), ({ available }) => available === 3)
      assert.deepStrictEqual(yield* Workers.counts("d4"), { available: 3, running: 1 })
      yield* Workers.joined(stopped)
      assert.deepStrictEqual(yield* Workers.counts("d4"), { available: 4 })
    }))

  it.effect("a handler deaf to its interruption does not hold up the drain, and keeps its job until it ends", () =>
    Effect.gen(function*() {
      const task = Task.make("deaf", { payload })
      const gate = yield* Deferred.make<void>()
      const handler = task.toLayer(() => Effect.uninterruptible(Deferred.await(gate)))
      const worker = yield* Workers.start(handler, {
        queues: ["d5"],
        shutdownGrace: "100 millis",
        handlerGrace: "100 millis"
      })
      const id = yield* task.enqueue(undefined, { queue: "d5" })
      yield* Workers.begins(id)
      const startedAt = monotonicMs()
      yield* worker.stop
      Workers.within("a worker had drained", monotonicMs() - startedAt, 5000)
      assert.strictEqual(yield* Workers.stateOf(id), "running")
      assert.deepInclude(worker.told("JobStuck", id)[0], { reason: "shutdown" })
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.settled(id, "available")
    }))

  it.effect("a job cut on its last attempt has attempts left, and runs on another worker at once", () =>
    Effect.gen(function*() {
      const task = Task.make("deploys", {
        payload,
        error: Schema.String,
        // After the third one the job would wait for an hour, if it were a failure.
        retry: Retry.custom((failures) => failures < 3 ? "10 millis" : "1 hour"),
        maxAttempts: 3
      })
      let tries = 0
      const handler = task.toLayer(() =>
        Effect.suspend(() => {
          tries++
          return tries <= 2 ? Effect.fail("no") : tries === 3 ? Effect.never : Effect.void
        })
      )
      const worker = yield* Workers.start(handler, { queues: ["d6"], shutdownGrace: "50 millis" })
      const id = yield* task.enqueue(undefined, { queue: "d6" })
      yield* Workers.untilTrue(() => tries === 3, "the third try")
      yield* worker.stop
      const stoppedAt = monotonicMs()
      yield* Workers.start(handler, { queues: ["d6"] })
      yield* Workers.settled(id, "completed")
      Workers.within("a job cut short ran elsewhere", monotonicMs() - stoppedAt, 1000)
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 2, crashAttempt: 0 })
      assert.deepStrictEqual((yield* Workers.attempts(id)).map(({ outcome }) => outcome), [
        "retry",
        "retry",
        "released",
        "success"
      ])
    }))
})
