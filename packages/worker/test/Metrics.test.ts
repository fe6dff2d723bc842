import { assert, layer } from "@effect/vitest"
import { Policies, Task } from "@headgate/core"
import { Time } from "@headgate/testkit"
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
  it.effect("what ends without having run is counted, by reason", () =>
    Effect.gen(function*() {
      const metrics = [
        Metrics.turnedAwayFor("discarded"),
        Metrics.turnedAwayFor("cancelled_incoming"),
        Metrics.turnedAwayFor("superseded"),
        Metrics.expiredJobs,
        Metrics.evictedJobs
      ]
      const before = yield* Effect.forEach(metrics, count)
      const counted = Effect.map(Effect.forEach(metrics, count), (now) => now.map((n, at) => n - before[at]!))
      const task = Task.make("ended", { payload: Schema.Void })
      const policies = yield* Policies
      const limit = { name: "none", scope: "kind", subject: "ended", max: 0 } as const
      const enqueue = task.enqueue(undefined, { queue: "m2", retention: "1 hour" })
      yield* policies.setLimit({ ...limit, onSaturated: "discard" })
      yield* Workers.start(task.toLayer(() => Effect.never), { queues: ["m2"], concurrency: 2, prefetch: 0 })
      yield* Workers.settled(yield* enqueue, "archived")
      yield* policies.setLimit({ ...limit, onSaturated: "cancel_incoming" })
      yield* Workers.settled(yield* enqueue, "cancelled")
      yield* policies.setLimit({ ...limit, max: 1, onSaturated: "cancel_running" })
      const old = yield* enqueue
      yield* Workers.begins(old)
      yield* enqueue
      yield* Workers.settled(old, "cancelled")
      yield* policies.setQueue({ name: "m2", paused: true })
      yield* task.enqueue(undefined, { queue: "m2", deadline: "1 minute" })
      yield* Time.advance("61 seconds")
      yield* Workers.eventually(counted, (now) => now[3] === 1)
      assert.deepStrictEqual(yield* counted, [1, 1, 1, 1, 0])
      yield* Time.advance("2 hours")
      // The first one's sweep has its pause before it.
      yield* Workers.start(task.toLayer(() => Effect.never), { queues: ["m3"] })
      yield* Workers.eventually(counted, (now) => now[4]! > 0)
    }))
})
