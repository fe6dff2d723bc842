import { assert, layer } from "@effect/vitest"
import { Inspect, Job, JobId, Retry, Task, Telemetry } from "@headgate/core"
import { context, propagation, SpanStatusCode, trace } from "@opentelemetry/api"
import { InMemoryLogRecordExporter, SimpleLogRecordProcessor } from "@opentelemetry/sdk-logs"
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  PeriodicExportingMetricReader
} from "@opentelemetry/sdk-metrics"
import {
  AlwaysOffSampler,
  InMemorySpanExporter,
  RandomIdGenerator,
  type ReadableSpan,
  SimpleSpanProcessor,
  type SpanExporter
} from "@opentelemetry/sdk-trace-base"
import { NodeTracerProvider } from "@opentelemetry/sdk-trace-node"
import { ConfigProvider, Effect, Exit, Layer, Option, Schema } from "effect"
import { Otel } from "../src/index.ts"
import { named, only, store, traced } from "./Traced.ts"

const parentOf = ({ parentSpanContext }: ReadableSpan) => parentSpanContext?.spanId
const linksOf = ({ links }: ReadableSpan) => links.map(({ context: { spanId } }) => spanId)
const idOf = (span: ReadableSpan) => span.spanContext().spanId
const traceOf = (span: ReadableSpan) => span.spanContext().traceId

/** Left out of its trace, or kept. */
const caller = (flags: "00" | "01") => ({
  traceparent: `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-${flags}`
})

layer(store, { excludeTestServices: true })("Otel", (it) => {
  it.effect("from the enqueue to the attempt and its steps: the attempt is a root of its own, linked to the enqueue", () =>
    Effect.gen(function*() {
      const task = Task.make("story", { payload: Schema.Void, steps: ["fetch", "count", "publish"], queue: "o1" })
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          yield* task.step("fetch", Effect.withSpan(Effect.void, "inside"))
          yield* task.cursor("count", { schema: Schema.Int, initial: 0 }, (_position, save) => save(1))
          yield* task.once("publish", Effect.void)
        })
      )
      const program = Effect.gen(function*() {
        const id = yield* task.enqueue(undefined).pipe(Effect.withSpan("request"))
        yield* task.await(id)
        return id
      })
      const { answer: id, spans } = yield* traced("o1", handler, program)
      const request = only(spans, "request")
      const enqueue = only(spans, "enqueue story")
      const attempt = only(spans, "attempt story")
      assert.strictEqual(parentOf(enqueue), idOf(request))
      assert.isUndefined(parentOf(attempt))
      assert.notStrictEqual(traceOf(attempt), traceOf(request))
      assert.deepStrictEqual(linksOf(attempt), [idOf(enqueue)])
      const steps = ["step fetch", "cursor count", "once publish"].map((name) => only(spans, name))
      assert.deepStrictEqual(steps.map(parentOf), steps.map(() => idOf(attempt)))
      assert.strictEqual(parentOf(only(spans, "inside")), idOf(steps[0]!))
      assert.deepStrictEqual(enqueue.attributes, {
        "messaging.system": "headgate",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "o1",
        "messaging.message.id": id,
        "headgate.job.kind": "story"
      })
      const { "messaging.client.id": worker, ...attributes } = attempt.attributes
      assert.isString(worker)
      assert.deepStrictEqual(attributes, {
        "messaging.system": "headgate",
        "messaging.operation.name": "attempt",
        "messaging.operation.type": "process",
        "messaging.destination.name": "o1",
        "messaging.message.id": id,
        "headgate.job.kind": "story",
        "headgate.job.attempt": 0,
        "headgate.job.crash_attempt": 0,
        "headgate.job.fence": 1,
        "headgate.attempt.outcome": "success"
      })
      assert.strictEqual(attempt.status.code, SpanStatusCode.OK)
      assert.strictEqual(attempt.resource.attributes["service.name"], "test")
    }))

  it.effect("a failed attempt is an error with its type, and its retry is a root of its own, linked to the same enqueue", () =>
    Effect.gen(function*() {
      class NoSuchShop extends Schema.TaggedError<NoSuchShop>()("NoSuchShop", { shop: Schema.String }) {}
      const retry = Retry.fixed("10 millis")
      const task = Task.make("failing", { payload: Schema.Void, error: NoSuchShop, queue: "o2", retry })
      const handler = task.toLayer(() =>
        Effect.flatMap(
          Job.facts,
          ({ attempt }) => attempt === 0 ? Effect.fail(new NoSuchShop({ shop: "north" })) : Effect.void
        )
      )
      const { spans } = yield* traced("o2", handler, Effect.flatMap(task.enqueue(undefined), task.await))
      const [failed, passed] = named(spans, "attempt failing")
      assert.deepStrictEqual([failed, passed].map((span) => span?.status.code), [
        SpanStatusCode.ERROR,
        SpanStatusCode.OK
      ])
      assert.strictEqual(failed!.attributes["error.type"], "NoSuchShop")
      assert.strictEqual(failed!.attributes["headgate.attempt.outcome"], "retry")
      assert.strictEqual(failed!.events[0]?.name, "exception")
      assert.notStrictEqual(traceOf(failed!), traceOf(passed!))
      const enqueue = idOf(only(spans, "enqueue failing"))
      assert.deepStrictEqual([failed, passed].map((span) => linksOf(span!)), [[enqueue], [enqueue]])
      assert.deepStrictEqual([failed, passed].map((span) => parentOf(span!)), [undefined, undefined])
    }))

  it.effect("an attempt that runs out of time is an error; one that ends on purpose is none", () =>
    Effect.gen(function*() {
      const task = Task.make("ends", { payload: Schema.Boolean, queue: "o3", maxAttempts: 1 })
      const handler = task.toLayer((onPurpose) => onPurpose ? Job.skip("not needed") : Effect.never)
      const program = Effect.gen(function*() {
        for (const onPurpose of [true, false]) {
          const id = yield* task.enqueue(onPurpose, { timeout: onPurpose ? "1 minute" : "100 millis" })
          yield* Effect.exit(task.await(id))
        }
      })
      const { spans } = yield* traced("o3", handler, program)
      assert.deepStrictEqual(
        named(spans, "attempt ends").map(({ attributes, status }) => [
          attributes["headgate.attempt.outcome"],
          attributes["error.type"],
          status.code
        ]),
        [["skip", undefined, SpanStatusCode.OK], ["timed_out", "TaskTimeout", SpanStatusCode.ERROR]]
      )
    }))

  it.effect("a batch is one span, whose context all of its jobs carry", () =>
    Effect.gen(function*() {
      const task = Task.make("batch", { payload: Schema.Int, queue: "o4" })
      const program = Effect.gen(function*() {
        for (const id of yield* task.enqueueAll([1, 2, 3])) yield* task.await(id)
      })
      const { spans } = yield* traced("o4", task.toLayer(() => Effect.void), program)
      const enqueue = only(spans, "enqueue batch")
      assert.strictEqual(enqueue.attributes["messaging.batch.message_count"], 3)
      assert.deepStrictEqual(named(spans, "attempt batch").map(linksOf), [1, 2, 3].map(() => [idOf(enqueue)]))
    }))

  it.effect("an attempt follows the trace that enqueued its job, whatever the ratio", () =>
    Effect.gen(function*() {
      const task = Task.make("follows", { payload: Schema.Void, queue: "o5" })
      const run = (flags: "00" | "01", sampleRatio: number) =>
        traced(
          "o5",
          task.toLayer(() => Effect.void),
          Effect.flatMap(task.enqueue(undefined, { headers: caller(flags) }), task.await),
          { sampleRatio }
        )
      assert.strictEqual(named((yield* run("01", 0)).spans, "attempt follows").length, 1)
      assert.strictEqual(named((yield* run("00", 1)).spans, "attempt follows").length, 0)
    }))

  it.effect("an attempt that is left out exports nothing of what happens in it, and says so to the jobs it enqueues", () =>
    Effect.gen(function*() {
      const inner = Task.make("inner", { payload: Schema.Void, success: Schema.String, queue: "o6" })
      const outer = Task.make("outer", {
        payload: Schema.Void,
        success: Schema.Struct({ id: JobId, traceId: Schema.String }),
        queue: "o6",
        steps: ["one"]
      })
      const handlers = Layer.merge(
        inner.toLayer(() => Effect.map(Job.facts, ({ headers }) => headers["traceparent"] ?? "none")),
        outer.toLayer(() =>
          Effect.gen(function*() {
            const id = yield* outer.step("one", Effect.withSpan(inner.enqueue(undefined), "mine"), {
              result: JobId
            })
            const { traceId } = yield* Effect.orDie(Effect.currentParentSpan)
            return { id, traceId }
          })
        )
      )
      const program = Effect.gen(function*() {
        const { id, traceId } = yield* Effect.flatMap(outer.enqueue(undefined, { headers: caller("00") }), outer.await)
        return { traceId, traceparent: yield* inner.await(id) }
      })
      const { answer, spans } = yield* traced("o6", handlers, program, { sampleRatio: 1 })
      const within = new Set(["attempt outer", "step one", "mine", "enqueue inner", "attempt inner"])
      assert.deepStrictEqual(spans.filter(({ name }) => within.has(name)), [])
      assert.match(answer.traceparent, new RegExp(`^00-${answer.traceId}-[0-9a-f]{16}-00$`))
    }))

  it.effect("at ratio 0 nothing is exported, where no trace was there before", () =>
    Effect.gen(function*() {
      const task = Task.make("silent", { payload: Schema.Void, queue: "o7" })
      const program = Effect.flatMap(task.enqueue(undefined), task.await).pipe(Effect.withSpan("request"))
      const handler = task.toLayer(() => Effect.withSpan(Effect.void, "inside"))
      assert.deepStrictEqual((yield* traced("o7", handler, program, { sampleRatio: 0 })).spans, [])
    }))

  it.effect("what a handler logs names its span, and what is kept of it with a failed attempt names its trace", () =>
    Effect.gen(function*() {
      const task = Task.make("logs", { payload: Schema.Void, error: Schema.String, queue: "o8", maxAttempts: 1 })
      const exporter = new InMemoryLogRecordExporter()
      const program = Effect.gen(function*() {
        const id = yield* task.enqueue(undefined, { retention: "1 hour" })
        yield* Effect.exit(task.await(id))
        const attempts = yield* Inspect.use((inspect) => inspect.attempts(id))
        return { attempts, records: [...exporter.getFinishedLogRecords()] }
      })
      const handler = task.toLayer(() =>
        Effect.andThen(Effect.withSpan(Effect.logInfo("hello"), "inside"), Effect.fail("no"))
      )
      const logRecordProcessor = new SimpleLogRecordProcessor({ exporter })
      const { answer, spans } = yield* traced("o8", handler, program, {
        logRecordProcessor,
        loggerMergeWithExisting: false
      })
      const inside = only(spans, "inside")
      const record = answer.records.find(({ body }) => body === "hello")
      assert.strictEqual(record?.spanContext?.spanId, idOf(inside))
      assert.strictEqual(record?.spanContext?.traceId, traceOf(inside))
      const kept = answer.attempts.flatMap(({ log }) => log?.lines ?? [])
      assert.deepStrictEqual(kept.map(({ annotations }) => annotations["traceId"]), [traceOf(inside)])
    }))

  it.effect("the worker's metrics go where the reader takes them, with durations where these are asked for", () =>
    Effect.gen(function*() {
      const task = Task.make("metered", { payload: Schema.Void, queue: "o9" })
      const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE)
      const metricReader = new PeriodicExportingMetricReader({ exporter })
      const heard: Array<string> = []
      const telemetry = Layer.succeed(Telemetry, { isListening: true, emit: ({ _tag }) => heard.push(_tag) })
      const program = Effect.gen(function*() {
        yield* Effect.flatMap(task.enqueue(undefined), task.await)
        while (!heard.includes("JobEnded")) yield* Effect.sleep(5)
        yield* Effect.promise(() => metricReader.forceFlush())
        const metrics = exporter.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics).flatMap(({ metrics }) =>
          metrics
        )
        return new Map(metrics.map(({ dataPoints, descriptor }) => [descriptor.name, { dataPoints, descriptor }]))
      })
      const { answer } = yield* traced("o9", task.toLayer(() => Effect.sleep(20)), program, { metricReader }).pipe(
        Effect.provide(Layer.provide(Otel.layerDurations, telemetry))
      )
      assert.isTrue(answer.has("headgate_jobs_claimed_total"))
      const durations = answer.get("messaging.process.duration")
      assert.strictEqual(durations?.descriptor.unit, "s")
      const [point, ...others] = durations?.dataPoints ?? []
      assert.deepStrictEqual(others, [])
      assert.containsSubset(point, {
        attributes: {
          "messaging.system": "headgate",
          "messaging.destination.name": "o9",
          "headgate.job.kind": "metered",
          "headgate.attempt.outcome": "success"
        },
        value: { count: 1 }
      })
    }))

  it.effect("where a context manager is registered, instrumentations inside a handler find its span", () =>
    Effect.gen(function*() {
      const task = Task.make("managed", { payload: Schema.Void, queue: "o10" })
      const found: Array<string | undefined> = []
      const handler = task.toLayer(() => Effect.sync(() => found.push(trace.getActiveSpan()?.spanContext().spanId)))
      yield* Effect.acquireRelease(
        Effect.sync(() => new NodeTracerProvider().register()),
        () => Effect.sync(() => [context, propagation, trace].forEach((api) => api.disable()))
      )
      const { spans } = yield* traced("o10", handler, Effect.flatMap(task.enqueue(undefined), task.await))
      assert.deepStrictEqual(found, [idOf(only(spans, "attempt managed"))])
    }))
})

layer(Layer.empty)("Otel.layer", (it) => {
  const exported = (options: Otel.Options, env: Record<string, string> = {}) => {
    const exporter = new InMemorySpanExporter()
    const spanProcessor = new SimpleSpanProcessor(exporter)
    return Effect.void.pipe(
      Effect.withSpan("inner"),
      Effect.withSpan("outer"),
      Effect.andThen(Effect.sync(() => exporter.getFinishedSpans().map(({ name }) => name))),
      Effect.provide(Otel.layer(() => ({ serviceName: "test", spanProcessor, ...options }))),
      Effect.provide(ConfigProvider.layer(ConfigProvider.fromEnvRecord(env)))
    )
  }

  it.effect("keeps everything where nothing is said", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* exported({}), ["inner", "outer"])
    }))

  it.effect("asks the provider for no span that is left out: not even ids are drawn", () =>
    Effect.gen(function*() {
      const ids = new RandomIdGenerator()
      let drawn = 0
      const idGenerator = {
        generateTraceId: () => (drawn++, ids.generateTraceId()),
        generateSpanId: () => (drawn++, ids.generateSpanId())
      }
      assert.deepStrictEqual(yield* exported({ sampleRatio: 0, tracerConfig: { idGenerator } }), [])
      assert.strictEqual(drawn, 0)
      assert.deepStrictEqual(yield* exported({ sampleRatio: 1, tracerConfig: { idGenerator } }), ["inner", "outer"])
      assert.strictEqual(drawn, 3)
    }))

  it.effect("goes by the variables of OpenTelemetry where no ratio is given", () =>
    Effect.gen(function*() {
      const env = { OTEL_TRACES_SAMPLER: "parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG: "0" }
      assert.deepStrictEqual(yield* exported({}, env), [])
      assert.deepStrictEqual(yield* exported({ sampleRatio: 1 }, env), ["inner", "outer"])
    }))

  it.effect("leaves the decision to a sampler that is given", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* exported({ sampleRatio: 1, tracerConfig: { sampler: new AlwaysOffSampler() } }), [])
    }))

  it.effect("refuses a ratio that is none", () =>
    Effect.gen(function*() {
      for (const sampleRatio of [-0.1, 1.1, Number.NaN]) {
        const exit = yield* Effect.exit(exported({ sampleRatio }))
        assert.strictEqual(Option.getOrThrow(Exit.findErrorOption(exit))._tag, "Invalid")
      }
    }))

  it.effect("a collector that is away at the end is no fault of the program", () =>
    Effect.gen(function*() {
      const away = () => Promise.reject(new Error("away"))
      const spanExporter: SpanExporter = {
        export: (_spans, done) => done({ code: 1, error: new Error("away") }),
        shutdown: away
      }
      const program = Effect.withSpan(Effect.succeed("done"), "work")
      for (const sampleRatio of [0.5, 1]) {
        const otel = Otel.layer(() => ({ serviceName: "test", spanExporter, sampleRatio }))
        assert.strictEqual(yield* Effect.provide(program, otel), "done")
      }
    }))
})
