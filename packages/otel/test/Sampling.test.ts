import { assert, it } from "@effect/vitest"
import { ROOT_CONTEXT, SpanKind, trace } from "@opentelemetry/api"
import { RandomIdGenerator, SamplingDecision } from "@opentelemetry/sdk-trace-base"
import { Tracer } from "effect"
import { Sampling } from "../src/Sampling.ts"

const spanId = "b7ad6b7169203331"

const isKept = ({ sampler }: Sampling, traceId: string, parent?: number): boolean => {
  const context = parent === undefined
    ? ROOT_CONTEXT
    : trace.setSpanContext(ROOT_CONTEXT, { traceId, spanId, traceFlags: parent, isRemote: true })
  const { decision } = sampler.shouldSample(context, traceId, "span", SpanKind.INTERNAL, {}, [])
  return decision === SamplingDecision.RECORD_AND_SAMPLED
}

it("a root that is kept gets an id that every sampler of the ratio keeps, once", () => {
  const sampling = new Sampling(0.01)
  const another = new Sampling(0.01)
  const kept: Array<string> = []
  while (kept.length < 20) if (sampling.keepsRoot([])) kept.push(sampling.ids.generateTraceId())
  assert.isTrue(kept.every((id) => /^[0-9a-f]{32}$/.test(id) && isKept(another, id)))
  assert.strictEqual(new Set([...kept, sampling.ids.generateTraceId()]).size, 21)
})

it("the ratio is the part that is kept, by the decision made ahead and by the sampler alike", () => {
  const sampling = new Sampling(0.25)
  const ids = new RandomIdGenerator()
  let ahead = 0
  let asked = 0
  for (let n = 0; n < 20_000; n++) {
    if (sampling.keepsRoot([])) ahead += sampling.ids.generateTraceId() === "" ? 0 : 1
    if (isKept(sampling, ids.generateTraceId())) asked++
  }
  // Eight standard deviations.
  assert.closeTo(ahead, 5000, 490)
  assert.closeTo(asked, 5000, 490)
})

it("ratio 0 keeps none and ratio 1 keeps all", () => {
  const ids = new RandomIdGenerator()
  const all = (ratio: number) => {
    const sampling = new Sampling(ratio)
    return Array.from({ length: 1000 }, () => [sampling.keepsRoot([]), isKept(sampling, ids.generateTraceId())]).flat()
  }
  assert.isTrue(all(1).every((kept) => kept))
  assert.isFalse(all(0).some((kept) => kept))
})

it("a parent's decision stands, whatever the ratio", () => {
  const id = new RandomIdGenerator().generateTraceId()
  assert.isTrue(isKept(new Sampling(0), id, 1))
  assert.isFalse(isKept(new Sampling(1), id, 0))
})

it("a root with links is kept when one of them is", () => {
  const link = (sampled: boolean) => ({ span: Tracer.externalSpan({ traceId: "1", spanId, sampled }), attributes: {} })
  assert.isTrue(new Sampling(0).keepsRoot([link(false), link(true)]))
  assert.isFalse(new Sampling(1).keepsRoot([link(false)]))
})
