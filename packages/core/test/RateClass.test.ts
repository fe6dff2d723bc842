import { assert, describe, it } from "@effect/vitest"
import { RateClass } from "@headgate/core/RateClass"
import { Invalid } from "@headgate/core/Refusals"

const refusal = (define: () => unknown): unknown => {
  try {
    define()
    return undefined
  } catch (error) {
    return error
  }
}

describe("RateClass", () => {
  it("saves up one window's tokens where no burst is given", () => {
    const shop = RateClass.make("shop", { limit: 100, window: "1 minute" })
    assert.deepInclude(shop, { name: "shop", limit: 100, windowMs: 60_000, burst: 100, paused: false })
  })

  it("a task's own key and weight leave the definition as it is", () => {
    const tokens = RateClass.make("tokens", { limit: 10, window: "1 second" })
    const weighed = tokens.weigh((payload: { readonly n: number }) => payload.n)
      .by((payload: { readonly n: number; readonly account: string }) => payload.account)
    assert.deepStrictEqual([weighed.weight?.({ n: 3, account: "a" }), weighed.key?.({ n: 3, account: "a" })], [3, "a"])
    assert.deepStrictEqual([tokens.weight, tokens.key], [undefined, undefined])
    assert.deepInclude(weighed, { name: "tokens", limit: 10, windowMs: 1000 })
  })

  it("what breaks a limit throws where it is defined, and names field, limit and value", () => {
    const window = "1 second"
    const bad = [
      [() => RateClass.make("a b", { limit: 1, window }), { field: "name" }],
      [() => RateClass.make("r", { limit: 0, window }), { field: "limit", limit: 1, actual: 0 }],
      [() => RateClass.make("r", { limit: 1e9 + 1, window }), { field: "limit", limit: 1e9, actual: 1e9 + 1 }],
      [() => RateClass.make("r", { limit: 1, window: "100 micros" }), { field: "window", limit: 1 }],
      [() => RateClass.make("r", { limit: 1, window: "25 hours" }), { field: "window", limit: 86_400_000 }],
      [() => RateClass.make("r", { limit: 1, window, burst: 0 }), { field: "burst", limit: 1, actual: 0 }]
    ] as const
    for (const [define, expected] of bad) {
      const error = refusal(define)
      assert.instanceOf(error, Invalid)
      assert.deepInclude(error, expected)
    }
  })
})
