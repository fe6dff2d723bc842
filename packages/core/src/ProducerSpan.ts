/**
 * A span per call that enqueues, where a tracer was provided: the jobs carry its context, so that their attempts link to
 * it. A caller whose trace is not sampled makes none, and its own context is what the jobs carry.
 */
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import type * as Tracer from "effect/Tracer"
import { enqueueQueue, type Envelope } from "./Envelope.ts"

export const inProducerSpan = <A, E, R>(kind: string, enqueue: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.withFiber((fiber) => isTraced(fiber) ? Effect.withSpan(enqueue, `enqueue ${kind}`, OPTIONS) : enqueue)

/** Says on the producer's span what it enqueues. */
export const describeProduced = (
  fiber: Fiber.Fiber<unknown, unknown>,
  envelopes: ReadonlyArray<Envelope>
): void => {
  const { span } = fiber.cache
  if (span?._tag === "Span" && span.sampled && isTraced(fiber)) describe(span, envelopes)
}

/** Something listens to spans, and the caller's trace is not one that was left out. */
export const isTraced = ({ cache }: Fiber.Fiber<unknown, unknown>): boolean =>
  cache.tracer !== undefined && cache.tracerEnabled && cache.span?.sampled !== false

const describe = (span: Tracer.Span, envelopes: ReadonlyArray<Envelope>): void => {
  const [first] = envelopes
  if (first === undefined) return
  span.attribute("messaging.system", "headgate")
  span.attribute("messaging.operation.name", "enqueue")
  span.attribute("messaging.operation.type", "send")
  span.attribute("headgate.job.kind", first.kind)
  const queue = enqueueQueue(first.queue)
  const isOneQueue = envelopes.every((each) => enqueueQueue(each.queue) === queue)
  if (isOneQueue) span.attribute("messaging.destination.name", queue)
  if (envelopes.length === 1) span.attribute("messaging.message.id", first.id)
  else span.attribute("messaging.batch.message_count", envelopes.length)
}

const OPTIONS = { kind: "producer", captureStackTrace: false } as const
