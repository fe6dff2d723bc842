/** A worker over a fresh database, in a process whose spans stay in memory. */
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Worker } from "@headgate/worker"
import { InMemorySpanExporter, type ReadableSpan, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base"
import { Effect, Layer } from "effect"
import { Otel } from "../src/index.ts"

export const store = PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))

/** Runs the program beside a worker of this queue; what was exported is read before both end. */
export const traced = <Handlers, E, R, A, E2, R2>(
  queue: string,
  handlers: Layer.Layer<Handlers, E, R>,
  program: Effect.Effect<A, E2, R2>,
  options: Otel.Options = {}
) => {
  const exporter = new InMemorySpanExporter()
  const otel = Otel.layer(() => ({
    serviceName: "test",
    spanProcessor: new SimpleSpanProcessor(exporter),
    ...options
  }))
  const worker = Worker.layer({ queues: [queue], pollInterval: "50 millis" }).pipe(Layer.provide(handlers))
  return Effect.map(program, (answer) => ({ answer, spans: exporter.getFinishedSpans() })).pipe(
    Effect.provide(worker),
    Effect.provide(otel)
  )
}

export const named = (spans: ReadonlyArray<ReadableSpan>, name: string) => spans.filter((span) => span.name === name)

export const only = (spans: ReadonlyArray<ReadableSpan>, name: string): ReadableSpan => {
  const [span, ...others] = named(spans, name)
  if (span !== undefined && others.length === 0) return span
  throw new Error(`"${name}" is not there once: ${spans.map(({ name }) => name).join(", ")}`)
}
