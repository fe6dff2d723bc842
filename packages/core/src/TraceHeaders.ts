/** Puts the caller's trace into a job's headers, where a tracer was provided and the caller set none. */
import * as Effect from "effect/Effect"
import * as Tracer from "effect/Tracer"
import { TRACEPARENT } from "./TraceContext.ts"

type Headers = Readonly<Record<string, string>>

export const traceHeaders = (headers: Headers | undefined): Effect.Effect<Headers | undefined> =>
  Effect.map(Effect.context<never>(), (context) => {
    // Effect's own tracer always has a span; its ids mean nothing to anybody when no tracer was provided.
    if (!context.mapUnsafe.has(Tracer.Tracer.key) || headers?.[TRACEPARENT] !== undefined) return headers
    const span: Tracer.AnySpan | undefined = context.mapUnsafe.get(Tracer.ParentSpanKey)
    if (span === undefined) return headers
    return { ...headers, [TRACEPARENT]: `00-${span.traceId}-${span.spanId}-${span.sampled ? "01" : "00"}` }
  })
