import { Result } from "effect"
import { assert, describe, it } from "vitest"
import * as UniqueKey from "../src/UniqueKey.ts"
import { bytesOf, hexOf, type VectorBytes, vectors } from "./vectors.ts"

const { cases } = vectors<{
  readonly cases: ReadonlyArray<{
    readonly name: string
    readonly kind: string
    readonly key: VectorBytes
    readonly exclude_kind: boolean
    readonly effective_hex?: string
    readonly refused?: { readonly field: string; readonly limit: number; readonly actual: number }
  }>
}>("unique_key")

const effective = (each: (typeof cases)[number]) =>
  UniqueKey.effectiveUniqueKey({ kind: each.kind, key: bytesOf(each.key), excludeKind: each.exclude_kind })

describe("the effective unique key", () => {
  for (const each of cases) {
    it(`agrees with every other implementation: ${each.name}`, () => {
      const key = effective(each)
      if (Result.isSuccess(key)) assert.strictEqual(hexOf(key.success), each.effective_hex)
      else {
        const { actual, field, limit } = key.failure
        assert.deepStrictEqual({ field, limit: limit ?? 0, actual: actual ?? 0 }, each.refused)
      }
    })
  }

  it("never meets a key of another scope", () => {
    const keys = cases.map(effective).filter(Result.isSuccess).map((key) => hexOf(key.success))
    assert.strictEqual(new Set(keys).size, keys.length)
  })

  it("has replace bits that together are ALL", () => {
    const bits = UniqueKey.UNIQUE_REPLACE_PAYLOAD | UniqueKey.UNIQUE_REPLACE_SCHEDULED_AT |
      UniqueKey.UNIQUE_REPLACE_PRIORITY | UniqueKey.UNIQUE_REPLACE_MAX_ATTEMPTS
    assert.deepStrictEqual([bits, UniqueKey.UNIQUE_REPLACE_ALL], [15, 15])
  })
})
