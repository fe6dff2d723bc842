import { Result } from "effect"
import { assert, describe, it } from "vitest"
import { MAX_PROGRESS_VALUE, type ProgressUpdate, validateProgress } from "../src/Progress.ts"

const refusal = (update: ProgressUpdate) => {
  const result = validateProgress(update)
  return Result.isFailure(result) ? [result.failure.field, result.failure.limit, result.failure.actual] : undefined
}

describe("a progress update", () => {
  it("runs from 0 to its total", () => {
    assert.isUndefined(refusal({ current: 0, total: 1 }))
    assert.isUndefined(refusal({ current: MAX_PROGRESS_VALUE, total: MAX_PROGRESS_VALUE, message: "" }))
  })
  it("may not pass its total, go below 0 or have no total", () => {
    assert.deepStrictEqual(refusal({ current: 3, total: 2 }), ["current", 2, 3])
    assert.deepStrictEqual(refusal({ current: -1, total: 2 }), ["current", 0, -1])
    assert.deepStrictEqual(refusal({ current: 0, total: 0 }), ["total", 1, 0])
    assert.deepStrictEqual(refusal({ current: 0, total: 2 ** 53 }), ["total", 2 ** 53 - 1, 2 ** 53])
  })
  it("counts exact units, never a fraction or no number", () => {
    for (const current of [0.5, Number.NaN, Infinity, -Infinity]) {
      assert.strictEqual(refusal({ current, total: 10 })?.[0], "current", String(current))
    }
    assert.strictEqual(refusal({ current: 0, total: Number.NaN })?.[0], "total")
  })
  it("has a message of at most 512 UTF-8 bytes", () => {
    assert.isUndefined(refusal({ current: 0, total: 1, message: "😀".repeat(128) }))
    assert.deepStrictEqual(refusal({ current: 0, total: 1, message: "é".repeat(257) }), ["message", 512, 514])
  })
  it("has a message that every store can hold", () => {
    for (const message of ["a\u0000b", "\ud83d", "\ude00"]) {
      assert.strictEqual(refusal({ current: 0, total: 1, message })?.[0], "message")
    }
    assert.isUndefined(refusal({ current: 0, total: 1, message: "\\u0000 😀" }))
  })
})
