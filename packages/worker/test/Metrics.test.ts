import { assert, layer } from "@effect/vitest"
import { Task } from "@headgate/core"
import { Effect, Metric, Schema } from "effect"
import * as Metrics from "../src/Metrics.ts"
import * as Workers from "./Workers.ts"

const count = (metric: Metric.Counter<number>) => Effect.map(Metric.value(metric), ({ count }) => count)

layer(Workers.layer, { excludeTestServices: true })("Metrics", (it) => {
  it.effect("what was claimed, and how it ended, is counted", () =>
    Effect.gen(function*() {
      const task = Task.make("counted", { payload: Schema.Boolean, error: Schema.String, maxAttempts: 1 })
      const before = [
        yield* count(Metrics.claimedJobs),
        yield* count(Metrics.endedAs("success")),
        yield* count(Metrics.endedAs("retry"))
      ]
      yield* Workers.start(task.toLayer((fails) => fails ? Effect.fail("no") : Effect.void), { queues: ["m1"] })
      const ids = yield* task.enqueueAll([false, false, true], { queue: "m1" })
      for (const id of ids) yield* Workers.settled(id, "completed", "archived")
      yield* Workers.eventually(count(Metrics.endedAs("retry")), (n) => n === before[2]! + 1)
      assert.deepStrictEqual(
        [yield* count(Metrics.claimedJobs), yield* count(Metrics.endedAs("success"))],
        [before[0]! + 3, before[1]! + 2]
      )
    }))
})
