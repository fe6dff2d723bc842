import { assert, describe, it } from "@effect/vitest"
import {
  CodecError,
  DuplicateStep,
  Fence,
  ForeignTransaction,
  Invalid,
  JobId,
  LeaseId,
  StoreUnavailable,
  Task
} from "@headgate/core"
import { Cause, Context, Effect, Exit, Schema } from "effect"
import { ConnectionError, SqlError, UnknownError } from "effect/sql/SqlError"
import { type Ending, LocalAttempt } from "../src/Attempt.ts"
import { normalise } from "../src/Normalise.ts"

class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}

const task = Task.make("n", {
  payload: Schema.Void,
  success: Schema.Struct({ n: Schema.Int }),
  error: Broken,
  isFailure: ({ part }) => {
    if (part === "throws") throw new Error("isFailure")
    return part !== "none"
  }
})

const attempt = (facts: { readonly retentionMs?: number; readonly streak?: number } = {}) =>
  new LocalAttempt(
    {
      lease: {
        jobId: JobId.make("j"),
        leaseId: LeaseId.make("00000000-0000-4000-8000-000000000000"),
        fence: Fence.make(1)
      },
      kind: "n",
      schemaVersion: 1,
      queue: "default",
      partitionKey: "",
      payload: new Uint8Array(0),
      priority: 0,
      attempt: 0,
      maxAttempts: 25,
      crashAttempt: 0,
      streak: 0,
      enqueuedAtMs: 0,
      scheduledAtMs: 0,
      claimedAtMs: 0,
      timeoutMs: 100,
      deadlineAtMs: undefined,
      retentionMs: 60_000,
      headers: {},
      checkpoint: undefined,
      ...facts
    },
    { definition: task.definition, run: () => Effect.void, context: Context.empty() },
    30_000,
    { validUntil: () => Number.POSITIVE_INFINITY, extended: () => {}, end: () => {} },
    0
  )

const after = (exit: Exit.Exit<unknown, unknown>, ending?: Ending) => {
  const ended = attempt()
  ended.ending = ending
  return normalise(ended, exit)
}

describe("normalise", () => {
  it("a result is kept where it can be asked for, and one that does not fit its schema is not tried again", () => {
    assert.strictEqual(after(Exit.succeed({ n: 1 }))?._tag, "Success")
    assert.isDefined(Object(after(Exit.succeed({ n: 1 }))).result)
    assert.isUndefined(Object(normalise(attempt({ retentionMs: 0 }), Exit.succeed({ n: 1 }))).result)
    assert.strictEqual(after(Exit.succeed({ n: "one" }))?._tag, "Fatal")
  })

  it("a failure is a retry with the error in its schema, or no failure with a backoff that grows by its streak", () => {
    const retry = Object(after(Exit.fail(new Broken({ part: "wheel" }))))
    assert.deepStrictEqual([retry._tag, retry.error.tag, new TextDecoder().decode(retry.error.encoded)], [
      "Retry",
      "Broken",
      "{\"_tag\":\"Broken\",\"part\":\"wheel\"}"
    ])
    const later = (streak: number) => Object(normalise(attempt({ streak }), Exit.fail(new Broken({ part: "none" }))))
    assert.deepStrictEqual([later(0)._tag, later(0).delayMs, later(3).delayMs], ["NotAFailure", 1000, 8000])
    assert.strictEqual(after(Exit.fail(new Broken({ part: "throws" })))?._tag, "Retry")
  })

  it("what another try would meet again is fatal, an outage of the database charges nothing, the rest is retried", () => {
    const tagOf = (error: unknown) => after(Exit.fail(error))?._tag
    assert.strictEqual(tagOf(new Invalid({ field: "f", message: "m" })), "Fatal")
    assert.strictEqual(tagOf(new DuplicateStep({ step: "s", message: "m" })), "Fatal")
    assert.strictEqual(tagOf(new ForeignTransaction({ operation: "o", message: "m" })), "Fatal")
    assert.strictEqual(tagOf(new CodecError({ direction: "encode", message: "m" })), "Fatal")
    assert.strictEqual(tagOf(new CodecError({ direction: "decode", message: "m" })), "Retry")
    assert.strictEqual(tagOf(new StoreUnavailable({ operation: "o", message: "m" })), "NotAFailure")
    const lost = new ConnectionError({ cause: new Error("closed"), message: "m", operation: "execute" })
    const query = (code: string) => new UnknownError({ cause: { code }, message: "m", operation: "execute" })
    assert.strictEqual(tagOf(new SqlError({ reason: lost })), "NotAFailure")
    for (const code of ["57P01", "08006", "25006", "53300"]) {
      assert.strictEqual(tagOf(new SqlError({ reason: query(code) })), "NotAFailure", code)
    }
    assert.strictEqual(tagOf(new SqlError({ reason: query("42P01") })), "Retry")
    assert.strictEqual(tagOf("not in the schema"), "Retry")
  })

  it("any defect is a crash, whatever was thrown", () => {
    const hostile = new Proxy({}, {
      get: () => {
        throw new Error("get")
      },
      ownKeys: () => {
        throw new Error("keys")
      }
    })
    for (const thrown of [new Error("x"), undefined, null, Symbol("s"), 1n, hostile, Object.create(null)]) {
      assert.strictEqual(after(Exit.die(thrown))?._tag, "Crashed")
    }
    assert.strictEqual(after(Exit.failCause(Cause.interrupt(1)))?._tag, "Crashed")
    const throws = () => {
      throw new Error("codec")
    }
    const { claim, registration, tracked } = attempt()
    const definition = { ...task.definition, success: { encode: throws, decode: throws } }
    const coded = new LocalAttempt(claim, { ...registration, definition }, 30_000, tracked, 0)
    assert.strictEqual(normalise(coded, Exit.succeed({ n: 1 }))?._tag, "Crashed")
  })

  it("a failure that became a defect because a finalizer died behind it stays a failure; two real defects are a crash", () => {
    const both = (first: unknown) =>
      after(
        Exit.failCause(Cause.fromReasons([Cause.makeDieReason(first), Cause.makeDieReason(new Error("finalizer"))]))
      )?._tag
    assert.deepStrictEqual([both(new Broken({ part: "door" })), both(new Error("bug"))], ["Retry", "Crashed"])
  })

  it("an ending decides, whatever the handler does after it", () => {
    const interrupted = (reason: Extract<Ending, { readonly _tag: "Interrupted" }>["reason"]): Ending => ({
      _tag: "Interrupted",
      reason
    })
    for (const exit of [Exit.succeed({ n: 1 }), Exit.fail(new Broken({ part: "wheel" })), Exit.die("x")]) {
      assert.strictEqual(after(exit, interrupted("timeout"))?._tag, "TimedOut")
      assert.strictEqual(after(exit, interrupted("deadline"))?._tag, "DeadlinePassed")
      assert.strictEqual(after(exit, interrupted("shutdown"))?._tag, "Released")
      assert.strictEqual(after(exit, { _tag: "Chosen", outcome: { _tag: "Revoke" } })?._tag, "Revoke")
      for (const reason of ["lease_lost", "operator_cancel", "superseded"] as const) {
        assert.isUndefined(after(exit, interrupted(reason)))
      }
      assert.isUndefined(after(exit, { _tag: "Settled", outcome: "success", state: "completed" }))
    }
  })
})
