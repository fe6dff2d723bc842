import { assert, describe, it } from "@effect/vitest"
import { ConcurrencyLimit } from "@headgate/core/ConcurrencyLimit"

describe("ConcurrencyLimit", () => {
  it("its subject is the queue or the kind, and none for keys", () => {
    const limits = [
      ConcurrencyLimit.make("a", { scope: "queue", queue: "mail", max: 1 }),
      ConcurrencyLimit.make("b", { scope: "partition", queue: "mail", max: 1 }),
      ConcurrencyLimit.make("c", { scope: "kind", kind: "send", max: 1 }),
      ConcurrencyLimit.make("d", { scope: "key", max: 1, onSaturated: "discard" })
    ]
    assert.deepStrictEqual(limits.map(({ onSaturated, subject }) => [subject, onSaturated]), [
      ["mail", "queue"],
      ["mail", "queue"],
      ["send", "queue"],
      ["", "discard"]
    ])
  })

  it("only a limit of scope key takes a key of its jobs", () => {
    const account = (payload: { readonly account: string }) => payload.account
    const keyed = ConcurrencyLimit.make("account", { scope: "key", max: 1 }).by(account)
    assert.strictEqual(keyed.key?.({ account: "a" }), "a")
    assert.throws(() => ConcurrencyLimit.make("all", { scope: "kind", kind: "send", max: 1 }).by(account), /scope kind/)
  })

  it("what breaks a limit throws where it is defined", () => {
    assert.throws(() => ConcurrencyLimit.make("", { scope: "key", max: 1 }), /name is empty/)
    assert.throws(() => ConcurrencyLimit.make("l", { scope: "queue", queue: "", max: 1 }), /queue is empty/)
    assert.throws(() => ConcurrencyLimit.make("l", { scope: "key", max: -1 }), /max is below the minimum of 0/)
    assert.throws(() => ConcurrencyLimit.make("l", { scope: "key", max: 1_000_001 }), /maximum of 1000000/)
  })
})
