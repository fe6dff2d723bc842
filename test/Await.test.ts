import { assert, layer } from "@effect/vitest"
import { JobEnded, Task } from "@headgate/core"
import { Control } from "@headgate/core/Control"
import { Retry } from "@headgate/core/Retry"
import { PostgresStore } from "@headgate/postgres"
import { TestDatabase } from "@headgate/testkit"
import { Worker } from "@headgate/worker/Worker"
import { Effect, Layer, Option, Schema } from "effect"

class TooBig extends Schema.TaggedError<TooBig>()("TooBig", { by: Schema.Int }) {}

const Double = Task.make("double", {
  payload: Schema.Int,
  success: Schema.Int,
  error: TooBig,
  maxAttempts: 1,
  retry: Retry.fixed("1 second")
})

const DoubleHandler = Double.toLayer((n) => {
  if (n > 100) return Effect.fail(new TooBig({ by: n - 100 }))
  return n < 0 ? Effect.die(new Error("negative")) : Effect.succeed(2 * n)
})

const Main = Worker.layer({ pollInterval: "50 millis" }).pipe(
  Layer.provide(DoubleHandler),
  Layer.provideMerge(PostgresStore.layer),
  Layer.provideMerge(TestDatabase.layer)
)

layer(Main, { excludeTestServices: true })("Task.await", (it) => {
  it.effect("answers with the result of the handler", () =>
    Effect.gen(function*() {
      const id = yield* Double.enqueue(21)
      assert.strictEqual(yield* Double.await(id), 42)
      assert.deepStrictEqual(yield* Double.result(id), Option.some(42))
    }))

  it.effect("fails with the typed error the handler failed with", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Double.await(yield* Double.enqueue(103)))
      assert.deepStrictEqual(error, new TooBig({ by: 3 }))
    }))

  it.effect("names the state and the stored error of every other end", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(Double.await(yield* Double.enqueue(-1, { crashLimit: 1 })))
      assert.deepInclude(error, { _tag: "JobEnded", state: "quarantined", reason: "crash_limit", message: "negative" })
    }))

  it.effect("a cancelled job ends the wait", () =>
    Effect.gen(function*() {
      const id = yield* Double.enqueue(1, { pending: true })
      assert.deepStrictEqual(yield* Double.result(id), Option.none())
      yield* Control.use((control) => control.cancel(id))
      assert.instanceOf(yield* Effect.flip(Double.await(id)), JobEnded)
    }))

  it.effect("a job its success deleted is not found", () =>
    Effect.gen(function*() {
      const id = yield* Double.enqueue(1, { retention: 0 })
      const error = yield* Effect.flip(Double.await(id))
      assert.deepInclude(error, { _tag: "NotFound", id })
    }))
})
