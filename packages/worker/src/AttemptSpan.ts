/**
 * A span per attempt where a tracer was provided, and nothing at all where none was. Each attempt is the root of a trace
 * of its own, linked to the span that enqueued the job: a retry hours later does not stretch the first trace, and the
 * jobs of one large batch do not fill one.
 *
 * The tracer is asked before anything else is made. An attempt that it does not sample keeps the unsampled span, so that
 * whatever is called in it knows, and costs no more than that.
 */
import { type Outcome, outcomeName } from "@headgate/core/Outcome"
import { traceContext, TRACESTATE } from "@headgate/core/TraceContext"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Exit from "effect/Exit"
import * as LogLevel from "effect/LogLevel"
import * as Option from "effect/Option"
import { TracerEnabled, TracerSpanAnnotations, TracerSpanLinks, TracerTimingEnabled } from "effect/References"
import * as Tracer from "effect/Tracer"
import type { LocalAttempt } from "./Attempt.ts"

/** What the spans of a task's attempts have in common, looked up once. */
export class AttemptTracer {
  private readonly tracer: Tracer.Tracer
  private readonly name: string
  private readonly worker: string
  private readonly clock: Clock.Clock | undefined
  private readonly annotations: Readonly<Record<string, unknown>>
  private readonly links: ReadonlyArray<Tracer.SpanLink>

  /** Undefined where nothing listens to spans. `context` is what the handler's layer captured. */
  static of(context: Context.Context<never>, kind: string, worker: string): AttemptTracer | undefined {
    const tracer = Context.getOrUndefined(context, Tracer.Tracer)
    const isOff = tracer === undefined || !Context.get(context, TracerEnabled) ||
      LogLevel.isGreaterThan(
        Context.get(context, Tracer.MinimumTraceLevel),
        Context.get(context, Tracer.CurrentTraceLevel)
      )
    return isOff ? undefined : new AttemptTracer(tracer, context, kind, worker)
  }

  private constructor(tracer: Tracer.Tracer, context: Context.Context<never>, kind: string, worker: string) {
    this.tracer = tracer
    this.name = `attempt ${kind}`
    this.worker = worker
    this.clock = Context.get(context, TracerTimingEnabled) ? Context.get(context, Clock.Clock) : undefined
    this.annotations = Context.get(context, TracerSpanAnnotations)
    this.links = Context.get(context, TracerSpanLinks)
  }

  start(attempt: LocalAttempt): Tracer.Span {
    const span = this.tracer.span({
      name: this.name,
      parent: Option.none(),
      annotations: Context.empty(),
      links: [...this.links, ...producerLinks(attempt.claim.headers)],
      startTime: this.now(),
      kind: "consumer",
      root: true,
      sampled: true
    })
    if (span.sampled) this.describe(span, attempt)
    return span
  }

  /** `outcome` is undefined when there was nothing left to settle. */
  end(attempt: LocalAttempt, span: Tracer.Span, exit: Exit.Exit<unknown, unknown>, outcome: Outcome | undefined): void {
    const error = outcome !== undefined && "error" in outcome ? outcome.error : undefined
    if (error !== undefined) span.attribute("error.type", error.tag)
    span.attribute("headgate.attempt.outcome", nameOf(attempt, outcome))
    span.end(this.now(), exitOf(attempt, exit, outcome))
  }

  private now(): bigint {
    return this.clock?.currentTimeNanosUnsafe() ?? 0n
  }

  private describe(span: Tracer.Span, { claim, definition }: LocalAttempt): void {
    for (const name in this.annotations) span.attribute(name, this.annotations[name])
    span.attribute("messaging.system", "headgate")
    span.attribute("messaging.operation.name", "attempt")
    span.attribute("messaging.operation.type", "process")
    span.attribute("messaging.destination.name", claim.queue)
    span.attribute("messaging.message.id", claim.lease.jobId)
    span.attribute("messaging.client.id", this.worker)
    span.attribute("headgate.job.kind", definition.kind)
    span.attribute("headgate.job.attempt", claim.attempt)
    span.attribute("headgate.job.crash_attempt", claim.crashAttempt)
    span.attribute("headgate.job.fence", claim.lease.fence)
  }
}

const producerLinks = (headers: Readonly<Record<string, string>>): ReadonlyArray<Tracer.SpanLink> =>
  Option.match(traceContext(headers), {
    onNone: () => NO_LINKS,
    onSome: ({ isSampled, spanId, traceId, tracestate }) => [{
      span: Tracer.externalSpan({ spanId, traceId, sampled: isSampled }),
      attributes: tracestate === undefined ? {} : { [TRACESTATE]: tracestate }
    }]
  })

const nameOf = ({ ending }: LocalAttempt, outcome: Outcome | undefined): string => {
  if (outcome !== undefined) return outcomeName(outcome)
  if (ending?._tag === "Settled") return ending.outcome
  return ending?._tag === "Interrupted" ? ending.reason : "released"
}

/** What the span ends as: failed when the outcome is a failure, however the fiber ended. */
const exitOf = (
  { ending }: LocalAttempt,
  exit: Exit.Exit<unknown, unknown>,
  outcome: Outcome | undefined
): Exit.Exit<unknown, unknown> => {
  if (outcome === undefined) return ending?._tag === "Settled" ? Exit.void : exit
  if (!FAILURES.has(outcome._tag)) return Exit.void
  if (ending?._tag === "Failed") return Exit.failCause(ending.cause)
  if (Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)) return exit
  return Exit.fail(failureOf(outcome))
}

const failureOf = (outcome: Outcome): Error => {
  const error = "error" in outcome ? outcome.error : undefined
  const failure = new Error(error?.message ?? ("reason" in outcome ? outcome.reason : outcomeName(outcome)))
  failure.name = error?.tag ?? outcomeName(outcome)
  failure.stack = `${failure.name}: ${failure.message}`
  return failure
}

const FAILURES: ReadonlySet<Outcome["_tag"]> = new Set<Outcome["_tag"]>([
  "Retry",
  "TimedOut",
  "Fatal",
  "Crashed",
  "Undecodable",
  "CheckpointStale",
  "DeadlinePassed"
])

const NO_LINKS: ReadonlyArray<Tracer.SpanLink> = []
