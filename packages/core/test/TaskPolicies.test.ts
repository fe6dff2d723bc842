import { assert, describe, it } from "@effect/vitest"
import { ConcurrencyLimit } from "@headgate/core/ConcurrencyLimit"
import { Queue } from "@headgate/core/Queue"
import { RateClass } from "@headgate/core/RateClass"
import { Invalid } from "@headgate/core/Refusals"
import { Task } from "@headgate/core/Task"
import { Effect, Schema } from "effect"

const Payload = Schema.Struct({ shop: Schema.String, tokens: Schema.Number })
type Payload = typeof Payload.Type

const Api = RateClass.make("api", { limit: 10, window: "1 second" })
const Tokens = RateClass.make("tokens", { limit: 10, window: "1 second" })
const PerShop = ConcurrencyLimit.make("per-shop", { scope: "key", max: 1 })
const Fleet = ConcurrencyLimit.make("fleet", { scope: "queue", queue: "imports", max: 9 })
const Imports = Queue.make("imports", { weight: 3 })

const boom = () => {
  throw new Error("no shop today")
}

const options = { payload: Payload } as const

const fieldOf = (make: () => unknown): unknown => {
  try {
    return make()
  } catch (refusal) {
    return refusal instanceof Invalid ? refusal.field : refusal
  }
}

describe("a task's policies", () => {
  const Import = Task.make("import", {
    ...options,
    queue: Imports,
    rates: [Api, Tokens.by((payload: Payload) => payload.shop).weigh((payload: Payload) => payload.tokens)],
    limits: [Fleet, PerShop.by((payload: Payload) => payload.shop)],
    partitionKey: (payload) => payload.shop
  })

  it.effect("say what each job costs, and where it counts, by its payload", () =>
    Effect.gen(function*() {
      const envelope = yield* Import.envelope({ shop: "north", tokens: 7 })
      assert.deepStrictEqual([envelope.queue, envelope.partitionKey], ["imports", "north"])
      assert.deepStrictEqual(envelope.rates, [
        { class: "api", key: "", weight: 1 },
        { class: "tokens", key: "north", weight: 7 }
      ])
      // A limit of another scope finds its jobs by itself.
      assert.deepStrictEqual(envelope.limits, [{ limit: "per-shop", key: "north" }])
    }))

  it("are in the definition, for a worker to apply", () => {
    assert.deepStrictEqual(
      Import.definition.policies.map(({ _tag, name }) => [_tag, name]),
      [["RateClass", "api"], ["RateClass", "tokens"], ["ConcurrencyLimit", "fleet"], ["ConcurrencyLimit", "per-shop"], [
        "Queue",
        "imports"
      ]]
    )
    assert.strictEqual(Import.definition.queue, "imports")
    assert.deepStrictEqual(Task.make("plain", { ...options, queue: "imports" }).definition.policies, [])
  })

  it.effect("a function that throws, or answers what is no key or weight, is an Invalid that names it", () =>
    Effect.gen(function*() {
      // SAFETY: what a caller without types may do.
      const bad = <A>(value: unknown) => (() => value) as () => A
      const tasks = [
        ["rates[1].key", Task.make("t", { ...options, rates: [Api, Tokens.by(boom)] })],
        ["rates[0].key", Task.make("t", { ...options, rates: [Api.by(bad<string>(7))] })],
        ["rates[0].weight", Task.make("t", { ...options, rates: [Api.weigh(boom)] })],
        ...[0, -1, 1.5, Number.NaN, 1_000_001, "2"].map((weight) =>
          ["rates[0].weight", Task.make("t", { ...options, rates: [Api.weigh(bad<number>(weight))] })] as const
        ),
        ["limits[0].key", Task.make("t", { ...options, limits: [Fleet, PerShop.by(boom)] })],
        ["limits[0].key", Task.make("t", { ...options, limits: [PerShop.by(bad<string>(undefined))] })],
        ["partitionKey", Task.make("t", { ...options, partitionKey: boom })],
        ["uniqueKey", Task.make("t", { ...options, uniqueKey: boom })]
      ] as const
      for (const [field, task] of tasks) {
        const refusal = yield* Effect.flip(task.envelope({ shop: "n", tokens: 1 }))
        assert.deepInclude(refusal, { _tag: "Invalid", field })
      }
    }))

  it("that would refuse every job are refused where the task is defined", () => {
    const nine = Array.from({ length: 9 }, (_, n) => `p${n}`)
    const rates = nine.map((name) => RateClass.make(name, { limit: 1, window: "1 second" }))
    const limits = nine.map((name) => ConcurrencyLimit.make(name, { scope: "key", max: 1 }))
    const cases: ReadonlyArray<readonly [string, object]> = [
      ["rates", { rates }],
      ["limits", { limits }],
      ["rates", { rates: [Api, Api.weigh(() => 2)] }],
      ["limits", { limits: [PerShop, PerShop.by(() => "k")] }]
    ]
    for (const [field, more] of cases) {
      assert.strictEqual(fieldOf(() => Task.make("t", { ...options, ...more })), field, JSON.stringify(more))
    }
    // With keys of their own they are different buckets.
    assert.isDefined(Task.make("t", { ...options, rates: [Api.by(() => "a"), Api.by(() => "b")] }))
  })

  it.effect("an option names another queue, by name or definition, and the worker it sticks to", () =>
    Effect.gen(function*() {
      const payload = { shop: "n", tokens: 1 }
      assert.strictEqual((yield* Import.envelope(payload, { queue: Queue.make("late") })).queue, "late")
      const sticky = yield* Import.envelope(payload, { stickyWorker: "w1", stickyFallback: "5 seconds" })
      assert.deepStrictEqual([sticky.stickyWorker, sticky.stickyFallbackMs], ["w1", 5000])
      const refusal = yield* Effect.flip(Import.envelope(payload, { stickyWorker: "w1", stickyFallback: "1 micro" }))
      assert.deepInclude(refusal, { _tag: "Invalid", field: "stickyFallback", limit: 1 })
    }))

  it("of another payload do not compile", () => {
    const Other = Api.by((payload: { readonly other: string }) => payload.other)
    // @ts-expect-error the key needs a field that this payload has not
    assert.isDefined(Task.make("t", { ...options, rates: [Other] }))
  })
})
