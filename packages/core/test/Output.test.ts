import { Result } from "effect"
import { assert, describe, it } from "vitest"
import { MAX_OPAQUE_SCHEMA_VERSION, MAX_OUTPUT_BYTES, validateOpaque } from "../src/Output.ts"

const refusal = (version: number, size: number) => {
  const result = validateOpaque("result", { version, bytes: new Uint8Array(size) })
  return Result.isFailure(result) ? [result.failure.field, result.failure.limit, result.failure.actual] : undefined
}

describe("opaque bytes", () => {
  it("of exactly the limit are accepted, one more is refused with both numbers", () => {
    assert.isUndefined(refusal(1, MAX_OUTPUT_BYTES))
    assert.deepStrictEqual(refusal(1, MAX_OUTPUT_BYTES + 1), ["result", 1_048_576, 1_048_577])
  })
  it("have a schema version that every store can hold", () => {
    assert.isUndefined(refusal(MAX_OPAQUE_SCHEMA_VERSION, 0))
    assert.deepStrictEqual(refusal(2 ** 31, 0), ["version", 2 ** 31 - 1, 2 ** 31])
    assert.deepStrictEqual(refusal(0, 0), ["version", 1, 0])
  })
})
