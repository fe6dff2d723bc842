import { assert, layer } from "@effect/vitest"
import { Invalid, Job, Retry, Task } from "@headgate/core"
import { handlerKey } from "@headgate/core/Handler"
import { isStorableText } from "@headgate/core/Text"
import { Context, Deferred, Effect, Exit, Fiber, Layer, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const retry = Retry.fixed("20 millis", { jitter: 0 })
class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}

layer(Workers.layer, { excludeTestServices: true })("Attempt", (it) => {
  it.effect("a success completes the job with its result", () =>
    Effect.gen(function*() {
      const task = Task.make("success", { payload: Schema.Int, success: Schema.Struct({ twice: Schema.Int }) })
      yield* Workers.start(task.toLayer((n) => Effect.succeed({ twice: 2 * n })), { queues: ["s1"] })
      const id = yield* task.enqueue(21, { queue: "s1" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(yield* Workers.result(id, task.definition.success), { twice: 42 })
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("a typed failure consumes an attempt, is stored by its schema, and the job is tried again", () =>
    Effect.gen(function*() {
      const task = Task.make("failure", { payload, error: Broken, retry })
      let tries = 0
      const handler = task.toLayer(() => tries++ === 0 ? new Broken({ part: "wheel" }) : Effect.void)
      yield* Workers.start(handler, { queues: ["f1"] })
      const id = yield* task.enqueue(undefined, { queue: "f1" })
      yield* Workers.settled(id, "completed")
      const [failed] = yield* Workers.attempts(id)
      assert.deepStrictEqual([failed?.outcome, failed?.errorTag], ["retry", "Broken"])
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("the last failure archives the job", () =>
    Effect.gen(function*() {
      const task = Task.make("exhausted", { payload, error: Broken, retry, maxAttempts: 2 })
      yield* Workers.start(task.toLayer(() => new Broken({ part: "axle" })), { queues: ["f2"] })
      const id = yield* task.enqueue(undefined, { queue: "f2" })
      yield* Workers.settled(id, "archived")
      const { attempt, reason } = yield* Workers.job(id)
      assert.deepStrictEqual([attempt, reason], [2, "exhausted"])
    }))

  it.effect("a defect consumes a crash attempt and no attempt, and leaves the jobs beside it alone", () =>
    Effect.gen(function*() {
      const bad = Task.make("defect", { payload, crashLimit: 1 })
      const good = Task.make("beside", { payload })
      const gate = yield* Deferred.make<void>()
      const handlers = Layer.merge(
        bad.toLayer(() => Effect.die(new Error("bug"))),
        good.toLayer(() => Deferred.await(gate))
      )
      yield* Workers.start(handlers, { queues: ["d1"] })
      const beside = yield* good.enqueue(undefined, { queue: "d1" })
      const id = yield* bad.enqueue(undefined, { queue: "d1" })
      yield* Workers.settled(id, "quarantined")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 1 })
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.settled(beside, "completed")
    }))

  it.effect("a failure stays a failure when finalizers die behind it, inside the handler and in its scope", () =>
    Effect.gen(function*() {
      const task = Task.make("untidy", { payload: Schema.Literals(["inside", "scope"]), error: Broken, maxAttempts: 1 })
      const handler = task.toLayer((where) =>
        where === "inside"
          ? Effect.ensuring(new Broken({ part: "door" }), Effect.die(new Error("finalizer")))
          : Effect.andThen(Effect.addFinalizer(() => Effect.die(new Error("finalizer"))), new Broken({ part: "door" }))
      )
      yield* Workers.start(handler, { queues: ["u1"] })
      for (const where of ["inside", "scope"] as const) {
        const id = yield* task.enqueue(where, { queue: "u1" })
        yield* Workers.settled(id, "archived")
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 }, where)
        assert.strictEqual((yield* Workers.attempts(id))[0]?.errorTag, "Broken", where)
      }
    }))

  it.effect("a codec that throws crashes its own job, and the jobs beside and behind it run", () =>
    Effect.gen(function*() {
      const good = Task.make("fine", { payload })
      const bad = Task.make("throws", { payload, crashLimit: 1 })
      const throws = () => {
        throw new Error("codec")
      }
      const registration = {
        definition: { ...bad.definition, decodePayload: throws },
        run: () => Effect.void,
        context: Context.empty()
      }
      const handlers = Layer.merge(
        good.toLayer(() => Effect.void),
        Layer.succeed(handlerKey("throws"), registration)
      )
      const id = yield* bad.enqueue(undefined, { queue: "t1", priority: 1 })
      const beside = yield* good.enqueue(undefined, { queue: "t1" })
      yield* Workers.start(handlers, { queues: ["t1"], concurrency: 2 })
      yield* Workers.settled(id, "quarantined")
      yield* Workers.settled(beside, "completed")
      yield* Workers.settled(yield* good.enqueue(undefined, { queue: "t1" }), "completed")
    }))

  it.effect("what the handler acquires is released when its attempt ends, before the worker ends", () =>
    Effect.gen(function*() {
      const task = Task.make("scoped", { payload })
      const released = yield* Deferred.make<string>()
      const handler = task.toLayer(() => Effect.addFinalizer((exit) => Deferred.succeed(released, exit._tag)))
      yield* Workers.start(handler, { queues: ["s2"] })
      yield* task.enqueue(undefined, { queue: "s2" })
      assert.strictEqual(yield* Deferred.await(released), "Success")
    }))

  it.effect("an error that is no failure sends the job back without consuming an attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("later", { payload, error: Broken, isFailure: ({ part }) => part !== "none" })
      yield* Workers.start(task.toLayer(() => new Broken({ part: "none" })), { queues: ["n1"] })
      const id = yield* task.enqueue(undefined, { queue: "n1" })
      yield* Workers.settled(id, "retryable")
      const { attempt, crashAttempt, scheduledAtMs, enqueuedAtMs } = yield* Workers.job(id)
      assert.deepStrictEqual([attempt, crashAttempt, scheduledAtMs - enqueuedAtMs >= 1000], [0, 0, true])
    }))

  it.effect("a handler ends its attempt on purpose: snooze, skip, revoke, rate limited, release", () =>
    Effect.gen(function*() {
      const task = Task.make("chosen", { payload: Schema.String })
      let releases = 0
      const endings: Record<string, Effect.Effect<void, never, Job>> = {
        snooze: Job.snooze("1 hour"),
        skip: Job.skip("not\u0000 needed"),
        revoke: Job.revoke,
        limited: Job.rateLimited({ retryAfter: "5 seconds" }),
        release: Effect.suspend(() => releases++ === 0 ? Job.release : Effect.void)
      }
      yield* Workers.start(task.toLayer((how) => endings[how] ?? Effect.void), { queues: ["c1"] })
      const expected = {
        snooze: "scheduled",
        skip: "archived",
        revoke: "deleted",
        limited: "scheduled",
        release: "completed"
      }
      for (const [how, state] of Object.entries(expected)) {
        const id = yield* task.enqueue(how, { queue: "c1" })
        assert.strictEqual(yield* Workers.ended(id), state, how)
      }
      assert.strictEqual(releases, 2)
    }))

  it.effect("an ending stands even when the handler catches everything and goes on", () =>
    Effect.gen(function*() {
      const task = Task.make("stubborn", { payload })
      const handler = task.toLayer(() =>
        Effect.uninterruptible(Effect.ignoreCause(Job.snooze("1 hour")).pipe(Effect.andThen(Effect.sleep(20))))
      )
      yield* Workers.start(handler, { queues: ["c2"] })
      const id = yield* task.enqueue(undefined, { queue: "c2" })
      assert.strictEqual(yield* Workers.ended(id), "scheduled")
    }))

  it.effect("a duration that is none ends the job for good, with the refusal as its error", () =>
    Effect.gen(function*() {
      const task = Task.make("nonsense", { payload })
      yield* Workers.start(task.toLayer(() => Job.snooze(0)), { queues: ["c3"] })
      const id = yield* task.enqueue(undefined, { queue: "c3" })
      yield* Workers.settled(id, "archived")
      assert.deepStrictEqual(
        [(yield* Workers.job(id)).reason, (yield* Workers.attempts(id))[0]?.errorTag],
        ["fatal", "Invalid"]
      )
    }))

  it.effect("a payload this build cannot read parks the job, and the handler does not run", () =>
    Effect.gen(function*() {
      const old = Task.make("reshaped", { payload: Schema.Struct({ a: Schema.String }) })
      const now = Task.make("reshaped", { payload: Schema.Struct({ a: Schema.Int }) })
      let runs = 0
      yield* Workers.start(now.toLayer(() => Effect.sync(() => void runs++)), { queues: ["p1"] })
      const id = yield* old.enqueue({ a: "text" }, { queue: "p1" })
      yield* Workers.settled(id, "undecodable")
      assert.deepStrictEqual([runs, yield* Workers.counters(id)], [0, { attempt: 0, crashAttempt: 0 }])
    }))

  it.effect("a handler serves the former kinds of its task", () =>
    Effect.gen(function*() {
      const old = Task.make("orders:sync", { payload })
      const now = Task.make("orders:import", { payload, aliases: ["orders:sync"] })
      yield* Workers.start(now.toLayer(() => Effect.void), { queues: ["p2"] })
      const id = yield* old.enqueue(undefined, { queue: "p2" })
      yield* Workers.settled(id, "completed")
    }))

  it.effect("a result above the limit archives the job at once, naming limit and size", () =>
    Effect.gen(function*() {
      const task = Task.make("large", { payload: Schema.Int, success: Schema.String, retry })
      let runs = 0
      const handler = task.toLayer((bytes) => Effect.sync(() => (runs++, "x".repeat(bytes - 2))))
      yield* Workers.start(handler, { queues: ["r1"] })
      const exact = yield* task.enqueue(1_048_576, { queue: "r1" })
      yield* Workers.settled(exact, "completed")
      const over = yield* task.enqueue(1_048_577, { queue: "r1" })
      yield* Workers.settled(over, "archived")
      const [attempt] = yield* Workers.attempts(over)
      assert.deepStrictEqual([runs, attempt?.errorTag, (yield* Workers.job(over)).reason], [
        2,
        "ResultTooLarge",
        "fatal"
      ])
      assert.include(attempt?.errorText, "the result is 1048577 bytes, the limit is 1048576")
    }))

  it.effect("a refusal that another try would meet again is not tried again", () =>
    Effect.gen(function*() {
      const task = Task.make("refused", { payload, retry })
      const handler = task.toLayer(() => Effect.fail(new Invalid({ field: "step", message: "no" })))
      yield* Workers.start(handler, { queues: ["r2"] })
      const id = yield* task.enqueue(undefined, { queue: "r2" })
      yield* Workers.settled(id, "archived")
      assert.strictEqual((yield* Workers.job(id)).reason, "fatal")
    }))

  it.effect("whatever a handler throws is stored, and the job beside it in the same batch completes", () =>
    Effect.gen(function*() {
      const hostile = Object.defineProperty({}, "message", {
        get: () => {
          throw new Error("no")
        }
      })
      const cycle = new Error("cycle")
      cycle.cause = new Error("inner", { cause: cycle })
      const thrown = [new Error("bad\u0000\ud83d"), new Error("😀".repeat(12_500_000)), hostile, undefined, cycle]
      const task = Task.make("thrown", { payload: Schema.Int, error: Schema.Unknown, retry, maxAttempts: 2 })
      const handler = task.toLayer((at) => at < thrown.length ? Effect.fail(thrown[at]) : Effect.void)
      yield* Workers.start(handler, { queues: ["b11"] })
      const ids = yield* task.enqueueAll([0, 1, 2, 3, 4, 5], { queue: "b11" })
      for (const [at, id] of ids.entries()) {
        yield* Workers.settled(id, "archived", "completed")
        const { attempt, state } = yield* Workers.job(id)
        assert.deepStrictEqual([state, attempt], at < thrown.length ? ["archived", 2] : ["completed", 0], `job ${at}`)
        const text = (yield* Workers.attempts(id))[0]?.errorText ?? ""
        assert.isAtMost(Buffer.byteLength(text), 65_536)
        assert.isTrue(isStorableText(text))
      }
    }))

  it.effect("a handler past its timeout is interrupted, learns why, and consumes an attempt once it has ended", () =>
    Effect.gen(function*() {
      const task = Task.make("slow", { payload, timeout: "1 second", maxAttempts: 1 })
      const reason = yield* Deferred.make<string | undefined>()
      const handler = task.toLayer(() =>
        Effect.onInterrupt(
          Effect.never,
          () => Effect.flatMap(Job.interruption, (why) => Deferred.succeed(reason, Option.getOrUndefined(why)))
        )
      )
      yield* Workers.start(handler, { queues: ["t1"] })
      const id = yield* task.enqueue(undefined, { queue: "t1" })
      yield* Workers.settled(id, "archived")
      assert.strictEqual(yield* Deferred.await(reason), "timeout")
      const [attempt] = yield* Workers.attempts(id)
      assert.deepStrictEqual([attempt?.outcome, attempt?.errorTag], ["timed_out", "TaskTimeout"])
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("the retry of an attempt that timed out does not start before its handler has ended", () =>
    Effect.gen(function*() {
      const task = Task.make("overlap", {
        payload,
        timeout: "1 second",
        retry: Retry.fixed("1 millis"),
        maxAttempts: 2
      })
      let running = 0
      let most = 0
      let starts = 0
      const handler = task.toLayer(() =>
        Effect.suspend(() => {
          starts++
          most = Math.max(most, ++running)
          return Effect.uninterruptible(Effect.sleep(2000))
        }).pipe(Effect.ensuring(Effect.sync(() => void running--)))
      )
      yield* Workers.start(handler, { queues: ["t2"], concurrency: 2 })
      const id = yield* task.enqueue(undefined, { queue: "t2" })
      yield* Workers.settled(id, "archived")
      assert.deepStrictEqual([starts, most], [2, 1])
    }))

  it.effect("at its deadline a running job is archived, whatever its timeout", () =>
    Effect.gen(function*() {
      const task = Task.make("deadline", { payload, timeout: "1 hour", deadline: "4 seconds" })
      const exit = yield* Deferred.make<Exit.Exit<unknown>>()
      const handler = task.toLayer(() => Effect.onExit(Effect.never, (how) => Deferred.succeed(exit, how)))
      yield* Workers.start(handler, { queues: ["t3"], duties: false })
      const id = yield* task.enqueue(undefined, { queue: "t3" })
      yield* Workers.settled(id, "archived")
      assert.strictEqual((yield* Workers.job(id)).reason, "deadline")
      assert.isTrue(Exit.isFailure(yield* Deferred.await(exit)))
    }))

  it.effect("a timeout of 30 days and a deadline of 60 do not fire at once", () =>
    Effect.gen(function*() {
      const task = Task.make("month", { payload, timeout: "30 days", deadline: "60 days" })
      yield* Workers.start(task.toLayer(() => Effect.sleep(200)), { queues: ["t4"] })
      const id = yield* task.enqueue(undefined, { queue: "t4" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("a handler that interrupts itself counts as a crash", () =>
    Effect.gen(function*() {
      const task = Task.make("suicidal", { payload, crashLimit: 1 })
      const handler = task.toLayer(() =>
        Effect.flatMap(Effect.forkChild(Effect.never), (fiber) =>
          Effect.andThen(Fiber.interrupt(fiber), Fiber.join(fiber)))
      )
      yield* Workers.start(handler, { queues: ["i1"] })
      const id = yield* task.enqueue(undefined, { queue: "i1" })
      yield* Workers.settled(id, "quarantined")
      assert.strictEqual((yield* Workers.attempts(id))[0]?.errorTag, "SelfInterrupted")
    }))

  it.effect("a cancelled job's handler is interrupted within a heartbeat, and nothing is settled", () =>
    Effect.gen(function*() {
      const task = Task.make("cancelled", { payload })
      const reason = yield* Deferred.make<string | undefined>()
      const handler = task.toLayer(() =>
        Effect.onInterrupt(
          Effect.never,
          () => Effect.flatMap(Job.interruption, (why) => Deferred.succeed(reason, Option.getOrUndefined(why)))
        )
      )
      const worker = yield* Workers.start(handler, { queues: ["i2"], lease: "5 seconds" })
      const id = yield* task.enqueue(undefined, { queue: "i2" })
      yield* Workers.begins(id)
      yield* Workers.cancel(id)
      assert.strictEqual(yield* Deferred.await(reason), "operator_cancel")
      assert.strictEqual(yield* Workers.stateOf(id), "cancelled")
      assert.strictEqual(worker.told("LeaseLost", id).length, 1)
    }))

  it.effect("a custom retry delay that is no delay does not make the job spin", () =>
    Effect.gen(function*() {
      const task = Task.make("spin", {
        payload: Schema.Int,
        error: Broken,
        retry: Retry.custom((n) => n === 1 ? -5 : Number.NaN)
      })
      let starts = 0
      const handler = task.toLayer(() => Effect.suspend(() => (starts++, new Broken({ part: "clock" }))))
      yield* Workers.start(handler, { queues: ["b15"] })
      yield* task.enqueue(1, { queue: "b15" })
      yield* Effect.sleep(1000)
      assert.isAtMost(starts, 2)
    }))
})
