/**
 * A span per attempt where a tracer was provided, and nothing at all where none was. Each attempt is the root of a trace
 * of its own, linked to the span that enqueued the job: a retry hours later does not stretch the first trace, and the
 * jobs of one large batch do not fill one.
 */
import { traceContext, TRACESTATE } from "@headgate/core/TraceContext"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import type { LocalAttempt } from "./Attempt.ts"

export const inAttemptSpan = <A, E>(
  attempt: LocalAttempt,
  context: Context.Context<never>,
  program: Effect.Effect<A, E>
): Effect.Effect<A, E> => {
  if (!context.mapUnsafe.has(Tracer.Tracer.key)) return program
  const { claim, definition } = attempt
  return Effect.withSpan(program, `attempt ${definition.kind}`, {
    kind: "consumer",
    root: true,
    captureStackTrace: false,
    links: producerLinks(claim.headers),
    attributes: {
      "headgate.job.id": claim.lease.jobId,
      "headgate.job.kind": claim.kind,
      "headgate.job.queue": claim.queue,
      "headgate.job.attempt": claim.attempt,
      "headgate.job.crash_attempt": claim.crashAttempt,
      "headgate.job.fence": claim.lease.fence
    }
  })
}

const producerLinks = (headers: Readonly<Record<string, string>>): ReadonlyArray<Tracer.SpanLink> =>
  Option.match(traceContext(headers), {
    onNone: () => [],
    onSome: ({ isSampled, spanId, traceId, tracestate }) => [{
      span: Tracer.externalSpan({ spanId, traceId, sampled: isSampled }),
      attributes: tracestate === undefined ? {} : { [TRACESTATE]: tracestate }
    }]
  })
