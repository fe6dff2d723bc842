import { Option } from "effect"
import { assert, describe, it } from "vitest"
import { parseTraceparent, traceContext, TRACEPARENT, TRACESTATE } from "../src/TraceContext.ts"
import { vectors } from "./vectors.ts"

const { cases } = vectors<{
  readonly cases: ReadonlyArray<{
    readonly name: string
    readonly value: string
    readonly invalid?: boolean
    readonly trace_id: string
    readonly span_id: string
    readonly flags: number
  }>
}>("traceparent")

describe("traceparent", () => {
  for (const each of cases) {
    it(`${each.invalid === true ? "counts as absent" : "is read"}: ${each.name}`, () => {
      const parsed = Option.getOrUndefined(parseTraceparent(each.value))
      const seen = parsed && { trace_id: parsed.traceId, span_id: parsed.spanId, flags: parsed.flags }
      const { flags, span_id, trace_id } = each
      assert.deepStrictEqual(seen, each.invalid === true ? undefined : { trace_id, span_id, flags })
    })
  }
})

describe("the trace of a job", () => {
  const traceparent = cases[0]?.value ?? ""

  it("carries tracestate byte for byte, however odd", () => {
    const tracestate = " a=b,,\t\u0001=" + "x".repeat(5000)
    const trace = traceContext({ [TRACEPARENT]: traceparent, [TRACESTATE]: tracestate })
    assert.strictEqual(Option.getOrThrow(trace).tracestate, tracestate)
  })

  it("is none without a valid traceparent, and never a failure", () => {
    assert.isTrue(Option.isNone(traceContext({})))
    assert.isTrue(Option.isNone(traceContext({ [TRACESTATE]: "a=b" })))
    assert.isTrue(Option.isNone(traceContext({ [TRACEPARENT]: "garbage", [TRACESTATE]: "a=b" })))
  })

  it("knows whether it was sampled", () => {
    const sampled = ["00", "01", "02", "03"].map((flags) =>
      Option.getOrThrow(parseTraceparent(traceparent.slice(0, -2) + flags)).isSampled
    )
    assert.deepStrictEqual(sampled, [false, true, false, true])
  })
})
