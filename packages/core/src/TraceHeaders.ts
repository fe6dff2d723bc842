/** Puts the caller's trace into a job's headers, where a tracer was provided and the caller set none. */
import * as Context from "effect/Context"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import { TRACEPARENT } from "./TraceContext.ts"

type Headers = Readonly<Record<string, string>>

export const traceHeaders = (context: Context.Context<never>, headers: Headers | undefined): Headers | undefined => {
  // Effect's own tracer always has a span; its ids mean nothing to anybody when no tracer was provided.
  if (Context.getOrUndefined(context, Tracer.Tracer) === undefined) return headers
  const span = propagated(Context.getOrUndefined(context, Tracer.ParentSpan))
  if (span === undefined || headers?.[TRACEPARENT] !== undefined) return headers
  return headers === undefined ? headersOf(span) : { ...headers, ...headersOf(span) }
}

/** Spans made while tracing is disabled have no ids of their own: the nearest one around them that has. */
const propagated = (span: Tracer.AnySpan | undefined): Tracer.AnySpan | undefined => {
  let nearest = span
  while (nearest !== undefined && Context.get(nearest.annotations, Tracer.DisablePropagation)) {
    nearest = nearest._tag === "Span" ? Option.getOrUndefined(nearest.parent) : undefined
  }
  return nearest
}

/** The same object for all jobs of a span. */
const headersOf = (span: Tracer.AnySpan): Headers => {
  const known = ofSpan.get(span)
  if (known !== undefined) return known
  const headers = { [TRACEPARENT]: `00-${span.traceId}-${span.spanId}-${span.sampled ? "01" : "00"}` }
  ofSpan.set(span, headers)
  return headers
}

const ofSpan = new WeakMap<Tracer.AnySpan, Headers>()
