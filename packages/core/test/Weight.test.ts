import { Result } from "effect"
import { assert, describe, it } from "vitest"
import { effectiveWeight, validateWeight } from "../src/Weight.ts"

describe("a weight", () => {
  it("of 0 on the wire is charged as 1", () => {
    assert.deepStrictEqual([0, 1, 7].map(effectiveWeight), [1, 1, 7])
  })
  it("of 0 given on purpose is refused, as is what is no whole number in 1..1,000,000", () => {
    const accepted = [0, 1, 1_000_000, 1_000_001, -1, 1.5, Number.NaN].filter((n) =>
      Result.isSuccess(validateWeight(n))
    )
    assert.deepStrictEqual(accepted, [1, 1_000_000])
  })
})
