import { assert, layer } from "@effect/vitest"
import { Job, Retry, Task } from "@headgate/core"
import { Deferred, Effect, Layer, Option, Schema, Tracer } from "effect"
import * as Workers from "./Workers.ts"

/** A tracer that keeps its spans. */
const recording = () => {
  const spans: Array<Tracer.Span> = []
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      spans.push(span)
      return span
    }
  })
  return {
    spans,
    live: Layer.succeed(Tracer.Tracer, tracer),
    attempts: () => spans.filter(({ name }) => name.startsWith("attempt "))
  }
}

layer(Workers.layer, { excludeTestServices: true })("AttemptSpan", (it) => {
  it.effect("with a tracer each attempt is the root of a trace of its own, linked to its producer; polls make no spans", () =>
    Effect.gen(function*() {
      const task = Task.make("traced", {
        payload: Schema.Boolean,
        error: Schema.String,
        retry: Retry.fixed("10 millis")
      })
      const { attempts, live, spans } = recording()
      let tries = 0
      const inside: Array<Option.Option<string>> = []
      const handler = task.toLayer((fails) =>
        Effect.gen(function*() {
          inside.push(Option.map(yield* Effect.option(Effect.currentSpan), ({ traceId }) => traceId))
          if (fails && tries++ === 0) return yield* Effect.fail("no")
        })
      )
      const options = { queues: ["t1"], pollInterval: "10 millis" } as const
      yield* Workers.start(handler, options).pipe(Effect.withSpan("program"), Effect.provide(live))
      yield* Effect.sleep(500)
      assert.deepStrictEqual(spans.map(({ name }) => name), ["program"])
      const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
      const headers = { traceparent, tracestate: "vendor=Ab;x=1" }
      const id = yield* task.enqueue(true, { queue: "t1", headers })
      yield* Workers.settled(id, "completed")
      const other = yield* task.enqueue(false, { queue: "t1", headers: { traceparent: "nonsense" } })
      yield* Workers.settled(other, "completed")
      const found = attempts()
      assert.deepStrictEqual(found.map(({ status }) => status._tag), ["Ended", "Ended", "Ended"])
      assert.deepStrictEqual(found.map(({ parent }) => Option.isNone(parent)), [true, true, true])
      assert.strictEqual(new Set(found.map(({ traceId }) => traceId)).size, 3)
      assert.deepStrictEqual(found.map(({ links }) => links.map(({ attributes, span }) => [span.spanId, attributes])), [
        [["b7ad6b7169203331", { tracestate: "vendor=Ab;x=1" }]],
        [["b7ad6b7169203331", { tracestate: "vendor=Ab;x=1" }]],
        []
      ])
      assert.deepStrictEqual(inside, found.map(({ traceId }) => Option.some(traceId)))
      assert.deepStrictEqual(found.map(({ attributes }) => attributes.get("headgate.job.attempt")), [0, 1, 0])
    }))

  it.effect("a resumed attempt runs in its own span, and each step that it runs in one inside", () =>
    Effect.gen(function*() {
      const task = Task.make("resumed", {
        payload: Schema.Void,
        error: Schema.String,
        steps: ["one", "two"],
        retry: Retry.fixed("10 millis")
      })
      const { attempts, live, spans } = recording()
      const inside: Array<string> = []
      let tries = 0
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          inside.push((yield* Effect.orDie(Effect.currentSpan)).spanId)
          yield* task.step("one", Effect.void)
          if (tries++ === 0) return yield* Effect.fail("no")
          yield* task.step("two", Effect.void)
        })
      )
      yield* Workers.start(handler, { queues: ["t3"], pollInterval: "10 millis" }).pipe(
        Effect.withSpan("program"),
        Effect.provide(live)
      )
      yield* Workers.settled(yield* task.enqueue(undefined, { queue: "t3" }), "completed")
      const [first, second] = attempts()
      assert.deepStrictEqual(inside, [first?.spanId, second?.spanId])
      const steps = spans.filter(({ name }) => name.startsWith("step "))
      assert.deepStrictEqual(
        steps.map(({ name, parent }) => [name, Option.getOrUndefined(parent)?.spanId]),
        [["step one", first?.spanId], ["step one", second?.spanId], ["step two", second?.spanId]]
      )
    }))

  it.effect("the span of an attempt that is given up ends then, and not when its handler does", () =>
    Effect.gen(function*() {
      const task = Task.make("deaf", { payload: Schema.Void, timeout: "100 millis", maxAttempts: 1 })
      const { attempts, live } = recording()
      const isOver = yield* Deferred.make<void>()
      const handler = task.toLayer(() => Effect.uninterruptible(Deferred.await(isOver)))
      const worker = yield* Workers.start(handler, { queues: ["t5"], handlerGrace: "100 millis" }).pipe(
        Effect.provide(live)
      )
      yield* Workers.settled(yield* task.enqueue(undefined, { queue: "t5" }), "archived")
      const ended = () =>
        attempts().map(({ attributes, status }) => [attributes.get("headgate.attempt.outcome"), status._tag])
      assert.deepStrictEqual(ended(), [["timed_out", "Ended"]])
      const endTimes = () => attempts().map(({ status }) => status._tag === "Ended" && status.endTime)
      const before = endTimes()
      yield* Deferred.succeed(isOver, undefined)
      yield* Workers.eventually(worker.health, ({ zombies }) => zombies === 0)
      assert.deepStrictEqual(endTimes(), before)
    }))

  it.effect("an attempt that the tracer does not sample makes no spans for its steps", () =>
    Effect.gen(function*() {
      const task = Task.make("unsampled", { payload: Schema.Void, steps: ["one"] })
      const asked: Array<string> = []
      const tracer = Tracer.make({
        span: (options) => {
          asked.push(options.name)
          return new Tracer.NativeSpan({ ...options, sampled: false })
        }
      })
      const handler = task.toLayer(() => task.step("one", Effect.void))
      yield* Workers.start(handler, { queues: ["t4"] }).pipe(Effect.provide(Layer.succeed(Tracer.Tracer, tracer)))
      yield* Workers.settled(yield* task.enqueue(undefined, { queue: "t4" }), "completed")
      assert.deepStrictEqual(asked, ["attempt unsampled"])
    }))

  it.effect("without a tracer a handler runs in no span, and knows its producer's trace all the same", () =>
    Effect.gen(function*() {
      const task = Task.make("untraced", { payload: Schema.Void, success: Schema.String })
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          const span = yield* Effect.option(Effect.currentSpan)
          const { trace } = yield* Job.facts
          return `${span._tag} ${Option.getOrThrow(trace).traceId}`
        })
      )
      yield* Workers.start(handler, { queues: ["t2"] })
      const headers = { traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" }
      const id = yield* task.enqueue(undefined, { queue: "t2", headers })
      yield* Workers.settled(id, "completed")
      assert.strictEqual(
        yield* Workers.result(id, task.definition.success),
        "None 0af7651916cd43dd8448eb211c80319c"
      )
    }))
})
