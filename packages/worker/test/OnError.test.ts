import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Inspect, Invalid, JobId, OnError, RateClass, Retry, Task } from "@headgate/core"
import { Duration, Effect, Exit, Result, Schema } from "effect"
import * as Workers from "./Workers.ts"

class Throttled extends Schema.TaggedError<Throttled>()("Throttled", {
  retryAfter: Schema.optionalKey(Schema.Duration)
}) {}
class Gone extends Schema.TaggedError<Gone>()("Gone", { page: Schema.String }) {}
class Bad extends Schema.TaggedError<Bad>()("Bad", { status: Schema.Int }) {}
class Full extends Schema.TaggedError<Full>()("Full", {}) {}
class Closed extends Schema.TaggedError<Closed>()("Closed", {}) {}

const classOf = (name: string) => RateClass.make(name, { limit: 1, window: "1 day", burst: 100 })
const [Api, Mail] = [classOf("api"), classOf("mail")]

const error = Schema.Union([Throttled, Gone, Bad, Full, Closed])

const Fetch = Task.make("fetch", {
  payload: error,
  error,
  rates: [Api, Mail],
  retry: Retry.fixed("1 day"),
  onError: {
    Throttled: ({ retryAfter }) => OnError.rateLimited(retryAfter, { class: Api }),
    Gone: ({ page }) => OnError.skip(`${page} is gone`),
    Bad: ({ status }) => status < 500 ? OnError.stop : OnError.retry({ policy: Retry.fixed("1 hour", { jitter: 0 }) }),
    Full: OnError.snooze("1 hour"),
    Closed: OnError.notAFailure
  }
})

/** One job whose handler fails with what it was given, after its attempt. */
const failing = Effect.fnUntraced(function*(failure: typeof error.Type, queue: string) {
  yield* Workers.start(Fetch.toLayer((failure) => failure), { queues: [queue] })
  const id = yield* Fetch.enqueue(failure, { queue })
  yield* Workers.ended(id)
  const { attempt, claimedAtMs, crashAttempt, reason, scheduledAtMs, state } = yield* Workers.job(id)
  const stored = yield* Inspect.use((inspect) => inspect.failure(JobId.make(id)))
  const [ended] = yield* Workers.attempts(id)
  assert.deepStrictEqual(
    Result.getOrThrow(Fetch.definition.error.decode(stored?.encoded ?? new Uint8Array(0))),
    failure,
    "the typed error is stored"
  )
  assert.deepStrictEqual([ended?.errorTag, crashAttempt], [failure._tag, 0])
  return {
    id,
    state,
    reason,
    attempt,
    outcome: ended?.outcome,
    message: stored?.message,
    text: ended?.errorText,
    waitMs: scheduledAtMs - (claimedAtMs ?? 0)
  }
})

const ends = ({ attempt, outcome, reason, state }: Effect.Success<ReturnType<typeof failing>>) => [
  state,
  reason,
  attempt,
  outcome
]

const HOUR_MS = 3_600_000

layer(Workers.layer, { excludeTestServices: true })("onError", (it) => {
  it.effect("retry consumes an attempt and takes the entry's own delay in place of the task's", () =>
    Effect.gen(function*() {
      const down = yield* failing(new Bad({ status: 502 }), "e1")
      assert.deepStrictEqual(ends(down), ["retryable", undefined, 1, "retry"])
      assert.isTrue(down.waitMs >= HOUR_MS && down.waitMs < 2 * HOUR_MS, `${down.waitMs} ms`)
    }))

  it.effect("a retry whose own limit is used up exhausts the job", () =>
    Effect.gen(function*() {
      const error = Closed
      const onError = { Closed: OnError.retry({ maxAttempts: 1 }) }
      const task = Task.make("once-only", { payload: Schema.Void, error, onError })
      yield* Workers.start(task.toLayer(() => new Closed()), { queues: ["e11"] })
      const id = yield* task.enqueue(undefined, { queue: "e11" })
      yield* Workers.settled(id, "archived")
      const { attempt, maxAttempts, reason } = yield* Workers.job(id)
      assert.deepStrictEqual([reason, attempt, maxAttempts], ["exhausted", 1, 25])
    }))

  it.effect("stop archives the job with one attempt consumed, and whoever awaits it is given the error", () =>
    Effect.gen(function*() {
      const stopped = yield* failing(new Bad({ status: 404 }), "e2")
      assert.deepStrictEqual(ends(stopped), ["archived", "fatal", 1, "fatal"])
      assert.deepStrictEqual(yield* Effect.exit(Fetch.await(stopped.id)), Exit.fail(new Bad({ status: 404 })))
    }))

  it.effect("skip archives the job with nothing counted; the reason and the error are stored", () =>
    Effect.gen(function*() {
      const skipped = yield* failing(new Gone({ page: "/a" }), "e3")
      assert.deepStrictEqual(ends(skipped), ["archived", "skipped", 0, "skip"])
      assert.strictEqual(skipped.message, "/a is gone")
      assert.match(skipped.text ?? "", /^\/a is gone\nCaused by: Gone/)
      assert.deepStrictEqual(yield* Effect.exit(Fetch.await(skipped.id)), Exit.fail(new Gone({ page: "/a" })))
    }))

  it.effect("snooze schedules the job with nothing counted", () =>
    Effect.gen(function*() {
      const snoozed = yield* failing(new Full(), "e4")
      assert.deepStrictEqual(ends(snoozed), ["scheduled", undefined, 0, "snooze"])
      assert.isTrue(snoozed.waitMs >= HOUR_MS && snoozed.waitMs < 2 * HOUR_MS, `${snoozed.waitMs} ms`)
    }))

  it.effect("not a failure sends the job back with nothing counted, after its own backoff", () =>
    Effect.gen(function*() {
      const back = yield* failing(new Closed(), "e5")
      assert.deepStrictEqual(ends(back), ["retryable", undefined, 0, "not_a_failure"])
      assert.isTrue(back.waitMs >= 1000 && back.waitMs < HOUR_MS, `${back.waitMs} ms`)
    }))

  it.effect("rate limited counts nothing, and closes the class it names for as long as the error says", () =>
    Effect.gen(function*() {
      const limited = yield* failing(new Throttled({ retryAfter: Duration.minutes(10) }), "e6")
      assert.deepStrictEqual(ends(limited), ["scheduled", undefined, 0, "rate_limited"])
      assert.isTrue(limited.waitMs >= 600_000 && limited.waitMs < HOUR_MS, `${limited.waitMs} ms`)
      const sql = yield* PgClient.PgClient
      const closed = yield* sql<{ class: string }>`SELECT b.class FROM headgate.bucket b
        WHERE b.closed_until_ms > headgate.now_ms() + 500000`
      assert.deepStrictEqual(closed, [{ class: "api" }])
    }))

  it.effect("an error without a time closes nothing", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`UPDATE headgate.bucket SET closed_until_ms = 0`
      const limited = yield* failing(new Throttled({}), "e7")
      assert.deepStrictEqual(ends(limited), ["scheduled", undefined, 0, "rate_limited"])
      const closed = yield* sql`SELECT FROM headgate.bucket b WHERE b.closed_until_ms > headgate.now_ms()`
      assert.deepStrictEqual(closed, [])
    }))

  it.effect("a function that throws costs the job one ordinary failure, and the jobs beside it nothing", () =>
    Effect.gen(function*() {
      const task = Task.make("throws", {
        payload: Schema.Boolean,
        error: Full,
        onError: {
          Full: () => {
            throw new Error("no rule")
          }
        }
      })
      yield* Workers.start(task.toLayer((fails) => fails ? new Full() : Effect.void), { queues: ["e8"] })
      const [failed, beside] = yield* task.enqueueAll([true, false], { queue: "e8" })
      yield* Workers.settled(beside!, "completed")
      yield* Workers.settled(failed!, "retryable")
      assert.deepStrictEqual(yield* Workers.counters(failed!), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("an entry for one of the library's own errors, where the task declares it, comes before what else it means", () =>
    Effect.gen(function*() {
      const refusal = new Invalid({ field: "shop", message: "no such shop" })
      const plain = Task.make("plain", { payload: Schema.Void, error: Invalid })
      const mapped = Task.make("mapped", {
        payload: Schema.Void,
        error: Invalid,
        onError: { Invalid: ({ field }) => OnError.skip(field) }
      })
      yield* Workers.start(plain.toLayer(() => refusal), { queues: ["e9"] })
      yield* Workers.start(mapped.toLayer(() => refusal), { queues: ["e10"] })
      const ids = [
        yield* plain.enqueue(undefined, { queue: "e9" }),
        yield* mapped.enqueue(undefined, { queue: "e10" })
      ]
      for (const id of ids) yield* Workers.settled(id, "archived")
      const reasons = yield* Effect.forEach(ids, (id) => Effect.map(Workers.job(id), ({ reason }) => reason))
      assert.deepStrictEqual(reasons, ["fatal", "skipped"])
    }))
})
