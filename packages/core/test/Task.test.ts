import { assert, describe, it } from "@effect/vitest"
import { type Handler, handlersIn } from "@headgate/core/Handler"
import type { AttemptServices } from "@headgate/core/Job"
import { Invalid } from "@headgate/core/Refusals"
import { Cursor, Once, Step } from "@headgate/core/Step"
import { Task } from "@headgate/core/Task"
import { TaskGroup } from "@headgate/core/TaskGroup"
import type { Transactional } from "@headgate/core/Transactional"
import { Context, Effect, Layer, Result, Schema } from "effect"

class ShopDown extends Schema.TaggedError<ShopDown>()("ShopDown", { shop: Schema.String }) {}

const Import = Task.make("orders:import", {
  payload: Schema.Struct({ shop: Schema.String, days: Schema.Array(Schema.String) }),
  success: Schema.Struct({ rows: Schema.Int }),
  error: ShopDown,
  version: 3,
  upcast: {
    1: (v1) => ({ shop: v1.store, day: v1.day }),
    2: (v2) => ({ shop: v2.shop, days: [v2.day] })
  },
  aliases: ["orders:sync"],
  steps: ["download", "publish"],
  queue: "imports",
  partitionKey: (payload) => payload.shop,
  uniqueKey: (payload) => payload.shop,
  timeout: "5 minutes",
  deadline: "1 day"
})

const json = (value: unknown) => new TextEncoder().encode(JSON.stringify(value))

describe("Task", () => {
  it.effect("an envelope carries the task's settings, and an option overrides each", () =>
    Effect.gen(function*() {
      const payload = { shop: "north", days: ["mon"] }
      const plain = yield* Import.envelope(payload)
      assert.deepStrictEqual(
        [plain.kind, plain.schemaVersion, plain.queue, plain.partitionKey, plain.timeoutMs, plain.deadlineInMs],
        ["orders:import", 3, "imports", "north", 300_000, 86_400_000]
      )
      const other = yield* Import.envelope(payload, { id: "mine", queue: "late", timeout: "1 second", delay: "1 hour" })
      assert.deepStrictEqual([other.id, other.queue, other.timeoutMs, other.delayMs], ["mine", "late", 1000, 3_600_000])
    }))

  it.effect("a duration that rounds to nothing is refused, and the refusal names the minimum", () =>
    Effect.gen(function*() {
      const refusal = yield* Effect.flip(Import.envelope({ shop: "n", days: [] }, { timeout: "100 micros" }))
      assert.deepInclude(refusal, { _tag: "Invalid", field: "timeout", limit: 1 })
    }))

  it("an old payload is brought to the newest shape, version by version", () => {
    const fromFirst = Import.definition.decodePayload(json({ store: "north", day: "mon" }), 1)
    assert.deepStrictEqual(Result.getOrThrow(fromFirst), { shop: "north", days: ["mon"] })
  })

  it("a version without an upcast does not decode, and the error names both versions", () => {
    const Gap = Task.make("gap", { payload: Schema.String, version: 3, upcast: { 1: (v1) => v1 } })
    const decoded = Gap.definition.decodePayload(json("x"), 2)
    assert.include(Result.isFailure(decoded) ? decoded.failure.message : "", "version 2, this worker has 3")
  })

  it("a payload of nothing has versions as well, and may become something", () => {
    const nothing = new Uint8Array()
    for (const same of [(old: unknown) => old, () => undefined]) {
      const Steps = Task.make("steps", { payload: Schema.Void, version: 2, upcast: { 1: same } })
      assert.isUndefined(Result.getOrThrow(Steps.definition.decodePayload(nothing, 1)))
    }
    const Some = Task.make("some", { payload: Schema.Int, version: 2, upcast: { 1: () => 7 } })
    assert.strictEqual(Result.getOrThrow(Some.definition.decodePayload(nothing, 1)), 7)
  })

  it("an upcast that throws is a readable refusal", () => {
    const Bad = Task.make("bad", {
      payload: Schema.String,
      version: 2,
      upcast: {
        1: () => {
          throw new Error("no shop")
        }
      }
    })
    const decoded = Bad.definition.decodePayload(json("x"), 1)
    assert.include(Result.isFailure(decoded) ? decoded.failure.message : "", "no shop")
  })

  it("what breaks a rule is refused where the task is defined, by name", () => {
    const refused = (kind: string, options: object): unknown => {
      try {
        return Task.make(kind, { payload: Schema.Void, ...options })
      } catch (refusal) {
        return refusal instanceof Invalid ? refusal.field : refusal
      }
    }
    const cases: ReadonlyArray<readonly [field: string, kind: string, options: object]> = [
      ["kind", "-bad", {}],
      ["aliases", "ok", { aliases: ["no spaces"] }],
      ["step", "ok", { steps: ["a[b]"] }],
      ["steps", "ok", { steps: ["a", "a"] }],
      ["step", "ok", { stepMappings: [{ from: ["a"], to: { a: "b,c" } }] }],
      ["stepMappings", "ok", { steps: ["b"], stepMappings: [{ from: ["a"], to: { a: "c" } }] }],
      ["version", "ok", { version: 0 }],
      ["queue", "ok", { queue: "no spaces" }],
      ["priority", "ok", { priority: 1.5 }],
      ["maxAttempts", "ok", { maxAttempts: 0 }],
      ["crashLimit", "ok", { crashLimit: 1001 }],
      ["timeout", "ok", { timeout: "100 micros" }],
      ["stepTimeout", "ok", { stepTimeout: 0 }],
      ["stepTimeout", "ok", { stepTimeout: "1 second", steps: [] }],
      ["stallTimeout", "ok", { stallTimeout: Number.POSITIVE_INFINITY }],
      ["retention", "ok", { retention: Number.NaN }]
    ]
    assert.deepStrictEqual(cases.map(([, kind, options]) => refused(kind, options)), cases.map(([field]) => field))
  })

  it("a codec that throws is a readable refusal", () => {
    const broken = () => {
      throw new Error("no codec today")
    }
    const Odd = Task.make("odd", { payload: Schema.String, codec: { encode: broken, decode: broken } })
    assert.include(Result.getOrThrow(Result.flip(Odd.definition.decodePayload(json("x"), 1))).message, "no codec today")
  })

  it("an old payload that is no JSON is refused without being quoted", () => {
    const Old = Task.make("old", { payload: Schema.String, version: 2, upcast: { 1: (v1) => v1 } })
    const refusal = Result.getOrThrow(Result.flip(Old.definition.decodePayload(new TextEncoder().encode("secret!"), 1)))
    assert.notInclude(refusal.message, "secret")
  })

  it.effect("a time that is none, and two times where one counts, are refused by name", () =>
    Effect.gen(function*() {
      const payload = { shop: "n", days: [] }
      const refusals = [
        yield* Effect.flip(Import.envelope(payload, { at: new Date(Number.NaN) })),
        yield* Effect.flip(Import.envelope(payload, { deadlineAt: "never" })),
        yield* Effect.flip(Import.envelope(payload, { delay: Number.NaN })),
        yield* Effect.flip(Import.envelope(payload, { retention: "400 micros" })),
        yield* Effect.flip(Import.envelope(payload, { delay: "1 second", at: 0 })),
        yield* Effect.flip(Import.envelope(payload, { deadline: "1 second", deadlineAt: 0 }))
      ]
      assert.deepStrictEqual(
        refusals.map((refusal) => refusal._tag === "Invalid" ? refusal.field : refusal._tag),
        ["at", "deadlineAt", "delay", "retention", "delay", "deadline"]
      )
    }))

  it.effect("a handler's layer puts the task where the worker looks for it", () =>
    Effect.gen(function*() {
      const context = yield* Layer.build(Import.toLayer(() => Effect.succeed({ rows: 1 })))
      assert.deepStrictEqual(handlersIn(context).map((found) => found.definition.kind), ["orders:import"])
    }).pipe(Effect.scoped))
})

describe("types", () => {
  class Mailer extends Context.Service<Mailer, { readonly send: Effect.Effect<void> }>()("test/Mailer") {}

  it("a handler's own services stay in its layer's requirements, the attempt's do not", () => {
    const layer = Import.toLayer((payload) =>
      Effect.gen(function*() {
        yield* Mailer.use((mailer) => mailer.send)
        yield* Import.step("download", Effect.void)
        yield* Import.once("publish", Effect.succeed(payload.shop))
        return { rows: 1 }
      })
    )
    const needs: Layer.Layer<Handler<"orders:import">, never, Mailer | Transactional> = layer
    // @ts-expect-error a layer that needs a mailer does not fit where none is given
    const free: Layer.Layer<Handler<"orders:import">, never, Transactional> = layer
    assert.isDefined(needs)
    assert.isDefined(free)
  })

  it("step names, step results and error types are the compiler's business", () => {
    // @ts-expect-error not a declared step
    const unknownStep = Import.step("upload", Effect.void)
    // @ts-expect-error a step without a result schema answers nothing
    const lostResult = Import.step("download", Effect.succeed(1))
    const kept: Effect.Effect<number, unknown, Step> = Import.step("download", Effect.succeed(1), {
      result: Schema.Int
    })
    // @ts-expect-error the task does not declare this error
    const undeclared = Import.toLayer(() => Effect.fail(new Error("other")))
    for (const value of [unknownStep, lostResult, kept, undeclared]) assert.isDefined(value)
  })

  it("steps run only inside an attempt", () => {
    const step = Step.run("a", Effect.void)
    const cursor = Cursor.run("b", { schema: Schema.Int, initial: 0 }, () => Effect.void)
    const once = Once.run("c", Effect.void)
    const inside: Effect.Effect<void, unknown, AttemptServices | Transactional> = Effect.all([step, cursor, once])
      .pipe(Effect.asVoid)
    // @ts-expect-error outside an attempt there is no Step
    const outside: Effect.Effect<void, unknown> = step
    assert.isDefined(inside)
    assert.isDefined(outside)
  })
})

describe("TaskGroup", () => {
  const Ping = Task.make("ping", { payload: Schema.Void })

  it.effect("gives one layer for all its tasks", () =>
    Effect.gen(function*() {
      const group = TaskGroup.make(Import, Ping)
      const layer = group.toLayer({ "orders:import": () => Effect.succeed({ rows: 0 }), ping: () => Effect.void })
      const kinds = handlersIn(yield* Layer.build(layer)).map((found) => found.definition.kind)
      assert.sameMembers(kinds, ["orders:import", "ping"])
    }).pipe(Effect.scoped))

  it("a missing handler does not compile", () => {
    const group = TaskGroup.make(Import, Ping)
    // @ts-expect-error no handler for orders:import
    const build = () => group.toLayer({ ping: () => Effect.void })
    assert.isFunction(build)
  })

  it("two tasks that answer to one name are refused", () => {
    const Clash = Task.make("orders:sync", { payload: Schema.Void })
    assert.throws(() => TaskGroup.make(Import, Clash))
  })
})
