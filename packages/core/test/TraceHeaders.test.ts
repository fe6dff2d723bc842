import { assert, it } from "@effect/vitest"
import { Effect, Tracer } from "effect"
import * as TraceHeaders from "../src/TraceHeaders.ts"

const traceHeaders = (headers: Readonly<Record<string, string>> | undefined) =>
  Effect.map(Effect.context<never>(), (context) => TraceHeaders.traceHeaders(context, headers))

const tracer = Tracer.make({ span: (options) => new Tracer.NativeSpan(options) })

const underTracer = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.withSpan(effect, "caller").pipe(Effect.withTracer(tracer))

const current = Effect.map(
  Effect.orDie(Effect.currentSpan),
  ({ sampled, spanId, traceId }) => `00-${traceId}-${spanId}-${sampled ? "01" : "00"}`
)

it.effect("a job carries its caller's span, sampled or not", () =>
  Effect.gen(function*() {
    for (const sampled of [true, false]) {
      const [headers, span] = yield* underTracer(
        Effect.withSpan(Effect.all([traceHeaders({ a: "1" }), current]), "enqueue", { sampled })
      )
      assert.deepStrictEqual(headers, { a: "1", traceparent: span })
      assert.strictEqual(span.endsWith("-01"), sampled)
    }
  }))

it.effect("a trace that the caller gives stands", () =>
  Effect.gen(function*() {
    const given = { traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" }
    assert.deepStrictEqual(yield* underTracer(traceHeaders(given)), given)
  }))

it.effect("where tracing is disabled a job carries the nearest span that is none of that, or nothing", () =>
  Effect.gen(function*() {
    const disabled = Effect.withTracerEnabled(Effect.withSpan(traceHeaders(undefined), "disabled"), false)
    const [headers, span] = yield* underTracer(Effect.all([disabled, current]))
    assert.deepStrictEqual(headers, { traceparent: span })
    assert.isUndefined(yield* Effect.withTracer(disabled, tracer))
  }))

it.effect("without a tracer a job carries nothing", () =>
  Effect.gen(function*() {
    assert.isUndefined(yield* Effect.withSpan(traceHeaders(undefined), "nobody listens"))
  }))
