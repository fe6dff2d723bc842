import { assert, describe, it } from "vitest"
import { noisyPartitionKeys } from "../src/Noisy.ts"

const noisy = (loads: Record<string, number>) =>
  noisyPartitionKeys(Object.entries(loads).map(([key, inFlight]) => ({ key, inFlight })))

describe("a partition is noisy", () => {
  it("when it holds more than twice the mean of its peers", () => {
    assert.deepStrictEqual(noisy({ a: 5, b: 2, c: 2 }), ["a"])
  })
  it("but not at exactly twice the mean", () => {
    assert.deepStrictEqual(noisy({ a: 4, b: 2, c: 2 }), [])
  })
  it("by peers that do not include itself", () => {
    assert.deepStrictEqual(noisy({ a: 3, b: 1 }), ["a"])
  })
  it("when its peers are idle and it holds two, but not one", () => {
    assert.deepStrictEqual(noisy({ a: 2, b: 0 }), ["a"])
    assert.deepStrictEqual(noisy({ a: 1, b: 0 }), [])
  })
  it("never alone, and never among none", () => {
    assert.deepStrictEqual(noisy({ a: 1000 }), [])
    assert.deepStrictEqual(noisy({}), [])
  })
  it("by exact arithmetic, where a mean in floating point would round", () => {
    assert.deepStrictEqual(noisy({ a: 2 ** 53 - 1, b: 2 ** 52 - 1, c: 2 ** 52 - 1, d: 2 ** 52 }), ["a"])
    assert.deepStrictEqual(noisy({ a: 2 ** 53 - 2, b: 2 ** 52 - 1, c: 2 ** 52 - 1, d: 2 ** 52 - 1 }), [])
  })
  it("in the order given", () => {
    assert.deepStrictEqual(noisy({ z: 9, m: 0, n: 0, o: 0, a: 9 }), ["z", "a"])
  })
})
