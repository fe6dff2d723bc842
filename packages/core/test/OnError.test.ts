import { assert, describe, it } from "@effect/vitest"
import { type FailedAttempt, OnError, outcomeOnError } from "@headgate/core/OnError"
import { RateClass } from "@headgate/core/RateClass"
import { Invalid } from "@headgate/core/Refusals"
import { Retry } from "@headgate/core/Retry"
import { Task } from "@headgate/core/Task"
import { Duration, Schema } from "effect"

class Throttled extends Schema.TaggedError<Throttled>()("Throttled", {
  retryAfter: Schema.optionalKey(Schema.Duration)
}) {}
class NotFound extends Schema.TaggedError<NotFound>()("NotFound", { id: Schema.String }) {}
class Down extends Schema.TaggedError<Down>()("Down", { status: Schema.Number }) {}

const payload = Schema.Void
const Api = RateClass.make("api", { limit: 10, window: "1 second" })

const stored = { tag: "NotFound", message: "the message", text: "NotFound: the message" }

const failed = (facts: Partial<FailedAttempt> = {}): FailedAttempt => ({
  attempt: 0,
  streak: 0,
  retry: Retry.fixed("7 seconds", { jitter: 0 }),
  random: 0.5,
  ...facts
})

/** The outcome without the stored error. */
const outcome = (on: OnError, facts?: Partial<FailedAttempt>): object => {
  const { error: _, ...rest } = { error: undefined, ...outcomeOnError(on, stored, failed(facts)) }
  return rest
}

const ruleOf = (onError: unknown) => {
  const options: object = { payload, error: NotFound, onError }
  return Task.make("rule", options as { readonly payload: typeof payload }).definition.onError
}

describe("what OnError makes becomes an outcome", () => {
  it("retry keeps the task's policy or brings its own, and ends the job once it has failed so often", () => {
    assert.deepStrictEqual(outcome(OnError.retry()), { _tag: "Retry", delayMs: 7000 })
    const own = Retry.linear({ base: "1 second", step: "1 second", jitter: 0 })
    assert.deepStrictEqual(outcome(OnError.retry({ policy: own }), { attempt: 2 }), { _tag: "Retry", delayMs: 3000 })
    const thrice = OnError.retry({ policy: own, maxAttempts: 3 })
    assert.deepStrictEqual([1, 2].map((attempt) => outcome(thrice, { attempt })), [
      { _tag: "Retry", delayMs: 2000 },
      { _tag: "Retry", delayMs: 0, isLast: true }
    ])
  })

  it("stop, snooze and not a failure", () => {
    assert.deepStrictEqual(outcome(OnError.stop), { _tag: "Fatal" })
    assert.deepStrictEqual(outcome(OnError.snooze("1 hour")), { _tag: "Snooze", delayMs: 3_600_000 })
    assert.deepStrictEqual(outcome(OnError.notAFailure, { streak: 2 }), { _tag: "NotAFailure", delayMs: 4000 })
  })

  it("rate limited closes the classes for as long as it says; without a time the job alone waits, longer each time", () => {
    assert.deepStrictEqual(outcome(OnError.rateLimited("1 minute", { class: Api })), {
      _tag: "RateLimited",
      delayMs: 60_000,
      pushBackMs: 60_000,
      rateClass: "api"
    })
    assert.deepStrictEqual(outcome(OnError.rateLimited(20)), {
      _tag: "RateLimited",
      delayMs: 1000,
      pushBackMs: 20,
      rateClass: undefined
    })
    assert.deepStrictEqual(outcome(OnError.rateLimited(), { streak: 2 }), { _tag: "RateLimited", delayMs: 4000 })
  })

  it("every outcome carries the typed error; the reason of a skip stands in its message's place", () => {
    const encoded = new Uint8Array([1])
    const errorOf = (on: OnError) => Object(outcomeOnError(on, { ...stored, encoded }, failed())).error
    const kept = [OnError.retry(), OnError.stop, OnError.snooze(1), OnError.rateLimited(1), OnError.notAFailure]
    for (const on of kept) assert.deepStrictEqual(errorOf(on), { ...stored, encoded })
    assert.deepStrictEqual(errorOf(OnError.skip("gone")), {
      tag: "NotFound",
      message: "gone",
      text: "gone\nCaused by: NotFound: the message",
      encoded
    })
  })

  it("what an error's function says of time or reason is brought into bounds", () => {
    const nonsense = [Number.NaN, -1, 0, "soon", null, {}, Duration.zero]
    for (const value of nonsense) {
      const duration = value as Duration.Input
      assert.deepStrictEqual(outcome(OnError.snooze(duration)), { _tag: "Snooze", delayMs: 1000 }, String(value))
      assert.deepStrictEqual(outcome(OnError.rateLimited(duration)), { _tag: "RateLimited", delayMs: 1000 })
    }
    const year = Duration.toMillis("365 days")
    assert.deepStrictEqual(outcome(OnError.snooze(Number.POSITIVE_INFINITY)), { _tag: "Snooze", delayMs: year })
    const broken = OnError.retry({ policy: Retry.custom(() => Number.NaN) })
    assert.deepStrictEqual(outcome(broken), { _tag: "Retry", delayMs: 1000 })
    assert.deepStrictEqual(outcome(OnError.retry({ policy: { maxAttempts: 3 } as never })), {
      _tag: "Retry",
      delayMs: 1000
    })
    assert.propertyVal(outcome(OnError.rateLimited(5, { class: "a\u0000" })), "rateClass", "a\ufffd")
    const reasonOf = (reason: unknown) => Object(outcome(OnError.skip(reason as string))).reason
    assert.deepStrictEqual([reasonOf(""), reasonOf(undefined)], ["the message", "the message"])
    assert.deepStrictEqual(reasonOf("a\u0000" + "b".repeat(2000)), "a\ufffd" + "b".repeat(1022))
  })
})

describe("a task's onError", () => {
  it("finds the entry by the error's tag, and asks its function about the error", () => {
    const rule = ruleOf({
      NotFound: ({ id }: NotFound) => OnError.skip(id),
      Down: OnError.stop
    })
    assert.deepStrictEqual(rule(new NotFound({ id: "x" })), OnError.skip("x"))
    assert.deepStrictEqual(rule(new Down({ status: 1 })), OnError.stop)
  })

  it("a function that throws, or answers what OnError did not make, means a retry", () => {
    const answers = [undefined, null, "skip", {}, { type: "explode" }, Promise.resolve(OnError.stop)]
    for (const answer of answers) {
      assert.deepStrictEqual(ruleOf({ NotFound: () => answer })(new NotFound({ id: "x" })), OnError.retry())
    }
    const throws = () => {
      throw new Error("no rule")
    }
    assert.deepStrictEqual(ruleOf({ NotFound: throws })(new NotFound({ id: "x" })), OnError.retry())
    assert.deepStrictEqual(ruleOf({})({ _tag: "toString" }), OnError.retry())
  })

  it("isFailure denies some errors and says nothing of the others", () => {
    const { onError } = Task.make("denies", {
      payload,
      error: NotFound,
      isFailure: ({ id }) => {
        if (id === "throws") throw new Error("isFailure")
        return id !== "fine"
      }
    }).definition
    const said = ["fine", "bad", "throws"].map((id) => onError(new NotFound({ id })))
    assert.deepStrictEqual(said, [OnError.notAFailure, undefined, undefined])
  })

  it("what breaks a rule is refused where the task is defined, and names the tag", () => {
    const refused = (options: object): unknown => {
      try {
        return Task.make("refused", { payload, ...options })
      } catch (refusal) {
        return refusal instanceof Invalid ? [refusal.field, refusal.limit, refusal.actual] : refusal
      }
    }
    const ofEntry = (entry: unknown) => refused({ error: NotFound, onError: { NotFound: entry } })
    assert.deepStrictEqual(ofEntry(OnError.snooze("100 micros")), ["onError.NotFound", 1, 0])
    assert.deepStrictEqual(ofEntry(OnError.rateLimited(0)), ["onError.NotFound", 1, 0])
    assert.deepStrictEqual(ofEntry(OnError.retry({ maxAttempts: 1001 })), [
      "onError.NotFound.maxAttempts",
      1000,
      1001
    ])
    assert.deepStrictEqual(ofEntry(OnError.skip("x".repeat(1025))), ["onError.NotFound", 1024, 1025])
    const plain: ReadonlyArray<unknown> = [
      ofEntry(OnError.snooze("soon" as "1 second")),
      ofEntry(OnError.rateLimited("1 second", { class: "not-named" })),
      ofEntry("skip"),
      ofEntry(undefined),
      ofEntry(OnError.retry({ policy: { maxAttempts: 3 } as never }))
    ]
    assert.deepStrictEqual(plain, plain.map(() => ["onError.NotFound", undefined, undefined]))
    const both = { error: NotFound, isFailure: () => true, onError: { NotFound: OnError.stop } }
    assert.deepStrictEqual([refused(both), refused({ onError: "skip" })], [
      ["onError", undefined, undefined],
      ["onError", undefined, undefined]
    ])
    assert.isObject(Task.make("fine", {
      payload,
      rates: [Api],
      error: NotFound,
      onError: { NotFound: OnError.rateLimited("1 second", { class: "api" }) }
    }))
  })
})

describe("types", () => {
  const error = Schema.Union([Throttled, NotFound, Down])

  it("functions are given the error of their tag: of classes, of one class alone, of structs", () => {
    const classes = Task.make("classes", {
      payload,
      // Before the errors, and without an annotation.
      onError: {
        Throttled: ({ retryAfter }) => OnError.rateLimited(retryAfter),
        NotFound: OnError.skip("gone"),
        Down: ({ status }) => status < 500 ? OnError.stop : OnError.retry({ policy: Retry.fixed("1 minute") })
      },
      error
    })
    const kept: Task<"classes", void, void, Throttled | NotFound | Down, string> = classes
    const single = Task.make("single", { payload, error: Down, onError: { Down: (e) => OnError.snooze(e.status) } })
    const structs = Task.make("structs", {
      payload,
      error: Schema.Union([
        Schema.TaggedStruct("A", { n: Schema.Number }),
        Schema.Struct({ _tag: Schema.Literals(["B", "C"]), s: Schema.String })
      ]),
      onError: { A: ({ n }) => OnError.snooze(n), B: ({ s }) => OnError.skip(s), C: OnError.notAFailure }
    })
    for (const task of [kept, single, structs]) assert.isDefined(task)
  })

  it("a tag without an entry, and an entry without a tag, do not compile", () => {
    // @ts-expect-error no entry for Throttled
    const missing = Task.make("missing", { payload, error, onError: { NotFound: OnError.stop, Down: OnError.stop } })
    const extra = Task.make("extra", {
      payload,
      error: NotFound,
      // @ts-expect-error the task has no error of this tag
      onError: { NotFound: (e) => OnError.skip(e.id), Gone: OnError.stop }
    })
    const other = Task.make("other", {
      payload,
      error: NotFound,
      // @ts-expect-error a NotFound has no status
      onError: { NotFound: ({ status }) => OnError.snooze(status) }
    })
    for (const task of [missing, extra, other]) assert.isDefined(task)
  })

  it("errors without a literal tag have no onError", () => {
    const onError = { NotFound: OnError.stop }
    const cases = [
      // @ts-expect-error onError needs a literal _tag on each error of the task
      () => Task.make("text", { payload, error: Schema.String, onError }),
      // @ts-expect-error onError needs a literal _tag on each error of the task
      () => Task.make("mixed", { payload, error: Schema.Union([NotFound, Schema.String]), onError }),
      // @ts-expect-error onError needs a literal _tag on each error of the task
      () => Task.make("wide", { payload, error: Schema.Struct({ _tag: Schema.String }), onError }),
      // @ts-expect-error onError needs a task that declares its errors
      () => Task.make("none", { payload, onError })
    ]
    for (const make of cases) assert.isDefined(make)
  })
})
