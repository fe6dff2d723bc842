import { assert, layer } from "@effect/vitest"
import { Control, Inspect, Job, JobId, Task } from "@headgate/core"
import { Effect, Exit, Schema } from "effect"
import { AheadMark } from "../src/AheadMark.ts"
import * as Attempts from "./Attempts.ts"
import * as Workers from "./Workers.ts"

layer(Attempts.layer, { excludeTestServices: true })("AheadMark", (it) => {
  /** Three claims of a task with two steps, of which the first has run; the last waits behind the second. */
  const waiting = Effect.fnUntraced(function*(kind: string) {
    const task = Task.make(kind, { payload: Schema.Void, steps: ["a", "b"], queue: kind })
    yield* task.enqueueAll([undefined, undefined, undefined])
    const worker = yield* Attempts.worker()
    const [first, second, third] = yield* worker.claimAll(task, 3)
    const bodies: Array<string> = []
    const run = (held: Attempts.Held) =>
      worker.finish(
        held,
        Effect.forEach(["a", "b"] as const, (name) => task.step(name, Effect.sync(() => void bodies.push(name))))
      )
    yield* run(first!)
    const ahead = new AheadMark(third!.attempt, worker.stores)
    third!.attempt.ahead = ahead
    return { ahead, bodies, run, second: second!, third: third!, worker, id: third!.attempt.claim.lease.jobId }
  })

  it.effect("a waiting claim is marked along with another job's writes, and its steps cost a commit each", () =>
    Effect.gen(function*() {
      const { ahead, id, run, second, third, worker } = yield* waiting("along")
      yield* Effect.yieldNow
      assert.strictEqual(yield* yield* Attempts.markOf(id), "none")
      yield* run(second)
      assert.strictEqual(yield* yield* Attempts.markOf(id), "a")
      assert.isTrue(worker.batches.every((batch) => batch.some(({ lease }) => lease.jobId !== id)))
      ahead.end()
      const before = worker.batches.length
      yield* run(third)
      assert.strictEqual(worker.batches.length - before, 2)
    }))

  it.effect("a claim that starts before others have written marks its first step itself", () =>
    Effect.gen(function*() {
      const { ahead, bodies, run, second, third, worker } = yield* waiting("alone")
      ahead.end()
      const before = worker.batches.length
      yield* run(third)
      assert.strictEqual(worker.batches.length - before, 3)
      yield* run(second)
      assert.isTrue(worker.batches.every((batch) => batch.length === 1))
      assert.deepStrictEqual(bodies, ["a", "b", "a", "b", "a", "b"])
    }))

  it.effect("a mark that was refused is none: a job lost while it waited starts no body", () =>
    Effect.gen(function*() {
      const { bodies, id, run, second, third } = yield* waiting("refused")
      yield* Control.use((control) => control.cancel(id))
      yield* run(second)
      bodies.length = 0
      const { exit } = yield* run(third)
      assert.isTrue(Exit.isFailure(exit))
      assert.deepStrictEqual(bodies, [])
    }))
})

layer(Workers.layer, { excludeTestServices: true })("AheadMark in a real worker", (it) => {
  it.effect("a claim that is handed back unstarted has no step under way, and is one without a checkpoint", () =>
    Effect.gen(function*() {
      const task = Task.make("back", { payload: Schema.Boolean, steps: ["a", "b"], queue: "back" })
      const handler = task.toLayer(Effect.fnUntraced(function*(isLong) {
        yield* task.step("a", Effect.void)
        yield* task.step("b", isLong ? Effect.never : Effect.void)
      }))
      const [, , last] = yield* task.enqueueAll([false, true, false])
      const worker = yield* Workers.start(handler, { queues: ["back"], concurrency: 1, prefetch: 2 })
      const checkpoint = Inspect.use((inspect) => inspect.checkpoint(JobId.make(last!)))
      yield* Workers.eventually(checkpoint, (found) => found?.inProgress === "a")
      yield* worker.stop
      yield* Workers.settled(last!, "available")
      assert.isUndefined(yield* checkpoint)
    }))

  it.effect("one that is put down before its first step has begun no step, and goes on under any set of steps", () =>
    Effect.gen(function*() {
      const build = (first: string) =>
        Task.make("down", { payload: Schema.Boolean, steps: [first, "last"], queue: "down" })
      const task = build("a")
      const handler = task.toLayer(Effect.fnUntraced(function*(isPutDown) {
        if (isPutDown) yield* Job.snooze("1 hour")
        yield* task.step("a", Effect.void)
        yield* task.step("last", isMarked)
      }))
      const [, , last] = yield* task.enqueueAll([false, false, true])
      const checkpoint = Inspect.use((inspect) => inspect.checkpoint(JobId.make(last!)))
      // The second is at its last step, and the third waits for its slot.
      const isMarked = Effect.suspend(() => (steps += 1) === 1 ? Effect.void : marked)
      const marked = Effect.asVoid(
        Effect.orDie(Workers.eventually(checkpoint, (found) => found?.inProgress === "a"))
      )
      let steps = 0
      const worker = yield* Workers.start(handler, { queues: ["down"], concurrency: 1, prefetch: 2 })
      yield* Workers.settled(last!, "scheduled")
      yield* worker.stop
      assert.isUndefined(yield* checkpoint)
      yield* Control.use((control) => control.promote(JobId.make(last!)))
      const next = build("b")
      yield* Workers.start(next.toLayer(() => next.step("b", Effect.void)), { queues: ["down"] })
      yield* Workers.settled(last!, "completed")
    }))
})
