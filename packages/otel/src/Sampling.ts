/**
 * Which traces are kept. A span follows its parent, as OpenTelemetry's parent-based sampler has it. An attempt has no
 * parent: it follows the span that enqueued its job, to which it is linked, so that a kept trace leads to attempts that
 * are kept as well. What has neither is kept by chance, told from the last 32 bits of the trace id: every process that
 * asks finds the same.
 */
import type * as Otel from "@opentelemetry/api"
import {
  type IdGenerator,
  ParentBasedSampler,
  RandomIdGenerator,
  type Sampler,
  SamplingDecision,
  type SamplingResult
} from "@opentelemetry/sdk-trace-base"
import type * as Tracer from "effect/Tracer"

/** A provider's sampler and ids, and the same decision for who would rather not ask the provider. */
export class Sampling {
  readonly sampler: Sampler
  readonly ids: IdGenerator
  private readonly bound: number
  /** Of the provider's next trace. */
  private traceId: string | undefined

  constructor(ratio: number, ids: IdGenerator = new RandomIdGenerator()) {
    this.sampler = new ParentBasedSampler({ root: new RootSampler(ratio) })
    this.bound = boundOf(ratio)
    this.ids = {
      generateTraceId: () => {
        const { traceId } = this
        this.traceId = undefined
        return traceId ?? ids.generateTraceId()
      },
      generateSpanId: () => ids.generateSpanId()
    }
  }

  /** If so, the provider must be asked for the root span at once. */
  keepsRoot(links: ReadonlyArray<Tracer.SpanLink>): boolean {
    if (links.length > 0) return links.some(({ span }) => span.sampled)
    const bits = (Math.random() * BITS) >>> 0
    if (bits >= this.bound) return false
    this.traceId = this.ids.generateTraceId().slice(0, -HEX) + bits.toString(16).padStart(HEX, "0")
    return true
  }
}

class RootSampler implements Sampler {
  private readonly ratio: number
  private readonly bound: number

  constructor(ratio: number) {
    this.ratio = ratio
    this.bound = boundOf(ratio)
  }

  shouldSample(
    _context: Otel.Context,
    traceId: string,
    _name: string,
    _kind: Otel.SpanKind,
    _attributes: Otel.Attributes,
    links: Array<Otel.Link>
  ): SamplingResult {
    const isKept = links.length > 0
      ? links.some(({ context }) => (context.traceFlags & SAMPLED) !== 0)
      : Number.parseInt(traceId.slice(-HEX), 16) < this.bound
    return isKept ? KEEP : DROP
  }

  toString(): string {
    return `LinkedOrRatio{${this.ratio}}`
  }
}

const HEX = 8
const BITS = 2 ** 32
const boundOf = (ratio: number): number => Math.round(ratio * BITS)

const SAMPLED = 1
const KEEP: SamplingResult = { decision: SamplingDecision.RECORD_AND_SAMPLED }
const DROP: SamplingResult = { decision: SamplingDecision.NOT_RECORD }
