import { DuplicateStep, Inspect, Invalid, JobId, Step, Task } from "@headgate/core"
import { assert, layer } from "@effect/vitest"
import { Cause, Deferred, Effect, Exit, Fiber, Schema } from "effect"
import * as Attempts from "./Attempts.ts"

layer(Attempts.layer, { excludeTestServices: true })("StepRuntime", (it) => {
  it.effect("a finished step answers from its record in the next attempt, and its body does not run again", () =>
    Effect.gen(function*() {
      const task = Task.make("recorded", { payload: Schema.Void, steps: ["a", "b"] })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const bodies: Array<string> = []
      const answers: Array<number> = []
      const handler = (isBroken: boolean) =>
        Effect.gen(function*() {
          answers.push(yield* task.step("a", Effect.sync(() => bodies.push("a")), { result: Schema.Number }))
          yield* task.step("b", isBroken ? Effect.fail("broken") : Effect.sync(() => void bodies.push("b")))
        })
      yield* worker.run(task, handler(true))
      yield* Attempts.due()
      const { outcome } = yield* worker.run(task, handler(false))
      assert.deepStrictEqual(bodies, ["a", "b"])
      assert.deepStrictEqual(answers, [1, 1])
      assert.strictEqual(outcome?._tag, "Success")
    }))

  it.effect("a name that the task does not declare is refused, by both attempts", () =>
    Effect.gen(function*() {
      const task = Task.make("undeclared", { payload: Schema.Void, steps: ["a"] })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit, outcome } = yield* worker.run(task, Step.run("b", Effect.void))
      assert.instanceOf(failure(exit), Invalid)
      assert.strictEqual(outcome?._tag, "Fatal")
    }))

  it.effect("a task without declared steps takes any name, and refuses one that is no name", () =>
    Effect.gen(function*() {
      const task = Task.make("free", { payload: Schema.Void })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const bodies: Array<string> = []
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* Step.run("whatever", Effect.sync(() => void bodies.push("whatever")))
          yield* Step.run("no[name", Effect.sync(() => void bodies.push("never")))
        })
      )
      assert.deepStrictEqual(bodies, ["whatever"])
      assert.instanceOf(failure(exit), Invalid)
    }))
})

export const failure = (exit: Exit.Exit<unknown, unknown>): unknown =>
  Exit.isFailure(exit) ? exit.cause.reasons.find(Cause.isFailReason)?.error : undefined
