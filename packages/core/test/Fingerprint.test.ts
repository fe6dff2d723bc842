import { Effect } from "effect"
import { assert, describe, it } from "vitest"
import { fingerprint, fingerprintBytes, isFingerprint } from "../src/Fingerprint.ts"
import { bytesOf, hexOf, type VectorBytes, vectors } from "./vectors.ts"

const { cases } = vectors<{
  readonly cases: ReadonlyArray<{
    readonly name: string
    readonly kind: string
    readonly payload: VectorBytes
    readonly hashed_hex?: string
    readonly fingerprint: string
  }>
}>("fingerprint")

describe("the fingerprint", () => {
  for (const each of cases) {
    it(`agrees with every other implementation: ${each.name}`, async () => {
      const payload = bytesOf(each.payload)
      if (each.hashed_hex !== undefined) {
        assert.strictEqual(hexOf(fingerprintBytes(each.kind, payload)), each.hashed_hex)
      }
      assert.strictEqual(await Effect.runPromise(fingerprint(each.kind, payload)), each.fingerprint)
      assert.isTrue(isFingerprint(each.fingerprint))
    })
  }

  it("tells apart a border moved between kind and payload", () => {
    assert.strictEqual(new Set(cases.map((each) => each.fingerprint)).size, cases.length)
  })

  it("hashes the window of a payload that is a view into a larger buffer", () => {
    const whole = Uint8Array.from([1, 2, 3, 4])
    assert.deepStrictEqual(fingerprintBytes("k", whole.subarray(1, 3)), fingerprintBytes("k", Uint8Array.from([2, 3])))
  })
})
