/**
 * A tracer that has the provider make the spans of traces that are kept, and makes next to nothing of all others: it
 * knows the provider's decision before it asks for a span.
 */
import { context, createContextKey, ROOT_CONTEXT } from "@opentelemetry/api"
import type { IdGenerator } from "@opentelemetry/sdk-trace-base"
import type * as Context from "effect/Context"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import type { Sampling } from "./Sampling.ts"

type SpanOptions = Parameters<Tracer.Tracer["span"]>[0]

/** `inner` belongs to a provider with this sampling. */
export const sampledTracer = (inner: Tracer.Tracer, sampling: Sampling): Tracer.Tracer => {
  const isManaged = hasContextManager()
  const isDropped = ({ links, parent, root, sampled }: SpanOptions): boolean => {
    if (!sampled) return true
    // Without a parent of its own a span may have one in the context of OpenTelemetry.
    return Option.isNone(parent) && (root || !isManaged) && !sampling.keepsRoot(links)
  }
  return Tracer.make({
    span: (options) => isDropped(options) ? new UnsampledSpan(options, sampling.ids) : inner.span(options),
    // Called before each step of each traced fiber: of use only to a manager that carries the context on.
    ...isManaged && inner.context !== undefined ? { context: inner.context } : {}
  })
}

/** Its ids are drawn when somebody asks: to carry them on, or to log them. */
class UnsampledSpan implements Tracer.Span {
  readonly _tag = "Span"
  readonly sampled = false
  private readonly options: SpanOptions
  private readonly ids: IdGenerator
  private ownTraceId: string | undefined = undefined
  private ownSpanId: string | undefined = undefined

  constructor(options: SpanOptions, ids: IdGenerator) {
    this.options = options
    this.ids = ids
  }

  get traceId(): string {
    const { parent } = this.options
    return this.ownTraceId ??= Option.isSome(parent) ? parent.value.traceId : this.ids.generateTraceId()
  }

  get spanId(): string {
    return this.ownSpanId ??= this.ids.generateSpanId()
  }

  get name(): string {
    return this.options.name
  }

  get kind(): Tracer.SpanKind {
    return this.options.kind
  }

  get parent(): Option.Option<Tracer.AnySpan> {
    return this.options.parent
  }

  get annotations(): Context.Context<never> {
    return this.options.annotations
  }

  get links(): ReadonlyArray<Tracer.SpanLink> {
    return this.options.links
  }

  get status(): Tracer.SpanStatus {
    return { _tag: "Started", startTime: this.options.startTime }
  }

  get attributes(): ReadonlyMap<string, unknown> {
    return NO_ATTRIBUTES
  }

  attribute(): void {}
  addLinks(): void {}
  event(): void {}
  end(): void {}
}

/** Registered by whoever uses instrumentations that need one, before the layer is built. */
const hasContextManager = (): boolean => {
  const key = createContextKey("@headgate/otel")
  return context.with(ROOT_CONTEXT.setValue(key, true), () => context.active().getValue(key) === true)
}

const NO_ATTRIBUTES: ReadonlyMap<string, unknown> = new Map()
