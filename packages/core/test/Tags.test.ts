import { Result } from "effect"
import { assert, describe, it } from "vitest"
import { canonicalTags } from "../src/Tags.ts"
import { vectors } from "./vectors.ts"

const { cases } = vectors<{
  readonly cases: ReadonlyArray<{
    readonly name: string
    readonly tags: ReadonlyArray<string>
    readonly canonical?: ReadonlyArray<string>
    readonly refused?: { readonly field: string; readonly limit?: number; readonly actual?: number }
  }>
}>("tags")

describe("tags", () => {
  for (const { canonical, name, refused, tags } of cases) {
    it(`agree with every other implementation: ${name}`, () => {
      const result = canonicalTags(tags)
      if (Result.isSuccess(result)) assert.deepStrictEqual(result.success, canonical)
      else {
        const { actual, field, limit } = result.failure
        assert.deepStrictEqual({ field, limit, actual }, { limit: undefined, actual: undefined, ...refused })
      }
    })
  }

  for (const tag of ["\ud83d", "\ude00", "a\ud83db"]) {
    it(`may not hold half of a surrogate pair: ${JSON.stringify(tag)}`, () => {
      assert.isTrue(Result.isFailure(canonicalTags([tag])))
    })
  }

  it("leave the caller's array as it was", () => {
    const tags = ["b", "a"]
    canonicalTags(tags)
    assert.deepStrictEqual(tags, ["b", "a"])
  })
})
