import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Inspect, Invalid, Job, type JobId, Retry, Task } from "@headgate/core"
import { Deferred, Effect, Fiber, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const retry = Retry.fixed("1 hour")
class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}

const tracked = (id: JobId) => Inspect.use((inspect) => inspect.tracked(id))
const lastAttempt = (id: string) => Effect.map(Workers.attempts(id), (attempts) => attempts.at(-1))

/** Says whether it was stopped, and runs until somebody does. */
const endless = () => {
  const said = { isRunning: false, isStopped: false }
  const work = Effect.suspend(() => {
    said.isRunning = true
    return Effect.never
  }).pipe(Effect.onInterrupt(() => Effect.sync(() => void (said.isStopped = true))))
  return { said, work }
}

layer(Workers.layer, { excludeTestServices: true })("Tracked work", (it) => {
  it.effect("keeps its attempt running after the handler, whose answer stands", () =>
    Effect.gen(function*() {
      const task = Task.make("track-wait", { payload, success: Schema.String })
      const gate = yield* Deferred.make<void>()
      let isDone = false
      const work = Effect.andThen(Deferred.await(gate), Effect.sync(() => void (isDone = true)))
      yield* Workers.start(task.toLayer(() => Effect.as(Job.track("upload", work), "answer")), { queues: ["t1"] })
      const id = yield* task.enqueue(undefined, { queue: "t1" })
      yield* Workers.eventually(tracked(id), (found) => found?.isWaiting === true)
      assert.strictEqual(yield* Workers.stateOf(id), "running")
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual([isDone, yield* Workers.result(id, task.definition.success)], [true, "answer"])
    }))

  it.effect("gives its value to the handler that joins it, and may track more after the handler's end", () =>
    Effect.gen(function*() {
      const task = Task.make("track-join", { payload, success: Schema.Int })
      const ended: Array<string> = []
      const child = Job.track("child", Effect.sync(() => void ended.push("child")))
      const parent = Effect.andThen(
        Effect.sleep(20),
        Effect.andThen(child, Effect.sync(() => void ended.push("parent")))
      )
      const handler = Effect.gen(function*() {
        const fiber = yield* Job.track("sum", Effect.delay(Effect.succeed(42), 5))
        yield* Job.track("parent", parent)
        return yield* Fiber.join(fiber)
      })
      yield* Workers.start(task.toLayer(() => handler), { queues: ["t2"] })
      const id = yield* task.enqueue(undefined, { queue: "t2" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual([ended.toSorted(), yield* Workers.result(id, task.definition.success)], [
        ["child", "parent"],
        42
      ])
    }))

  it.effect("a failure of it is the attempt's: the handler and what else it tracks are stopped", () =>
    Effect.gen(function*() {
      const task = Task.make("track-fail", { payload, error: Broken, retry })
      const handler = endless()
      const sibling = endless()
      const run = Effect.gen(function*() {
        yield* Job.track("sibling", sibling.work)
        yield* Job.track("broken", Effect.delay(Effect.fail(new Broken({ part: "wheel" })), 20))
        return yield* handler.work
      })
      yield* Workers.start(task.toLayer(() => run), { queues: ["t3"] })
      const id = yield* task.enqueue(undefined, { queue: "t3" })
      yield* Workers.settled(id, "retryable")
      const attempt = yield* lastAttempt(id)
      assert.deepStrictEqual([attempt?.outcome, attempt?.errorTag], ["retry", "Broken"])
      assert.deepStrictEqual([handler.said.isStopped, sibling.said.isStopped], [true, true])
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
      const failure = yield* Inspect.use((inspect) => inspect.failure(id))
      assert.strictEqual(new TextDecoder().decode(failure?.encoded), "{\"_tag\":\"Broken\",\"part\":\"wheel\"}")
    }))

  it.effect("a failure of it after the handler's success fails the attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("track-fail-late", { payload, error: Broken, retry })
      const gate = yield* Deferred.make<void>()
      const late = Effect.andThen(Deferred.await(gate), Effect.fail(new Broken({ part: "axle" })))
      yield* Workers.start(task.toLayer(() => Effect.asVoid(Job.track("late", late))), { queues: ["t4"] })
      const id = yield* task.enqueue(undefined, { queue: "t4" })
      yield* Workers.eventually(tracked(id), (found) => found?.isWaiting === true)
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.settled(id, "retryable")
      assert.strictEqual((yield* lastAttempt(id))?.errorTag, "Broken")
    }))

  it.effect("a defect of it is a crash of the attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("track-die", { payload, crashLimit: 1 })
      const run = Effect.andThen(Job.track("bug", Effect.die(new Error("tracked bug"))), Effect.never)
      yield* Workers.start(task.toLayer(() => run), { queues: ["t5"] })
      const id = yield* task.enqueue(undefined, { queue: "t5" })
      yield* Workers.settled(id, "quarantined")
      assert.include((yield* lastAttempt(id))?.errorText, "tracked bug")
    }))

  it.effect("the first failure stands: what fails while it is being stopped changes nothing", () =>
    Effect.gen(function*() {
      const task = Task.make("track-first", { payload, error: Broken, retry })
      const stubborn = Effect.onInterrupt(Effect.never, () => Effect.die(new Error("while stopping")))
      const run = Effect.gen(function*() {
        yield* Job.track("stubborn", stubborn)
        yield* Effect.sleep(20)
        return yield* new Broken({ part: "handler" })
      })
      yield* Workers.start(task.toLayer(() => run), { queues: ["t6"] })
      const id = yield* task.enqueue(undefined, { queue: "t6" })
      yield* Workers.settled(id, "retryable")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("is stopped with the attempt: by a cancel, a timeout, an end on purpose, also when only it still runs", () =>
    Effect.gen(function*() {
      const cancelled = endless()
      const late = endless()
      const snoozed = endless()
      const waiting = Task.make("track-cancel", { payload })
      const timed = Task.make("track-timeout", { payload, retry, timeout: "2 seconds" })
      const chosen = Task.make("track-snooze", { payload })
      yield* Workers.start(waiting.toLayer(() => Effect.asVoid(Job.track("w", cancelled.work))), { queues: ["t7"] })
      yield* Workers.start(timed.toLayer(() => Effect.asVoid(Job.track("w", late.work))), { queues: ["t8"] })
      const handler = Effect.gen(function*() {
        yield* Job.track("w", snoozed.work)
        yield* Effect.sleep(20)
        yield* Job.snooze("1 hour")
      })
      yield* Workers.start(chosen.toLayer(() => handler), { queues: ["t9"] })
      const toCancel = yield* waiting.enqueue(undefined, { queue: "t7" })
      const toTimeOut = yield* timed.enqueue(undefined, { queue: "t8" })
      const toSnooze = yield* chosen.enqueue(undefined, { queue: "t9" })
      yield* Workers.untilTrue(() => cancelled.said.isRunning, "tracked work to run")
      yield* Workers.cancel(toCancel)
      yield* Workers.untilTrue(() => cancelled.said.isStopped, "tracked work to stop")
      yield* Workers.settled(toTimeOut, "retryable")
      yield* Workers.settled(toSnooze, "scheduled")
      assert.deepStrictEqual([late.said.isStopped, snoozed.said.isStopped], [true, true])
      assert.strictEqual((yield* lastAttempt(toTimeOut))?.errorTag, "TaskTimeout")
    }))

  it.effect("may end the attempt on purpose, while the handler runs and after it", () =>
    Effect.gen(function*() {
      const during = Task.make("track-chooses", { payload })
      const after = Task.make("track-chooses-late", { payload })
      const { said, work } = endless()
      const snooze = Job.track("w", Effect.delay(Job.snooze("1 hour"), 20))
      yield* Workers.start(during.toLayer(() => Effect.andThen(snooze, work)), { queues: ["t17"] })
      yield* Workers.start(after.toLayer(() => Effect.asVoid(snooze)), { queues: ["t18"] })
      const first = yield* during.enqueue(undefined, { queue: "t17" })
      const second = yield* after.enqueue(undefined, { queue: "t18" })
      yield* Workers.settled(first, "scheduled")
      yield* Workers.settled(second, "scheduled")
      assert.isTrue(said.isStopped)
    }))

  it.effect("a drain hands the job back when its handler has ended and its tracked work has not", () =>
    Effect.gen(function*() {
      const task = Task.make("track-drain", { payload })
      const { said, work } = endless()
      const worker = yield* Workers.start(task.toLayer(() => Effect.asVoid(Job.track("w", work))), { queues: ["t10"] })
      const id = yield* task.enqueue(undefined, { queue: "t10" })
      yield* Workers.untilTrue(() => said.isRunning, "tracked work to run")
      yield* worker.stop
      assert.deepStrictEqual([said.isStopped, yield* Workers.stateOf(id)], [true, "available"])
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("an attempt whose tracked work is deaf to its end is settled without it", () =>
    Effect.gen(function*() {
      const task = Task.make("track-deaf", { payload, retry, timeout: "2 seconds" })
      const gate = yield* Deferred.make<void>()
      const run = Effect.asVoid(Job.track("deaf", Effect.uninterruptible(Deferred.await(gate))))
      const worker = yield* Workers.start(task.toLayer(() => run), { queues: ["t16"], handlerGrace: "200 millis" })
      const id = yield* task.enqueue(undefined, { queue: "t16" })
      yield* Workers.settled(id, "retryable")
      assert.strictEqual((yield* worker.health).zombies, 1)
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.eventually(worker.health, ({ zombies }) => zombies === 0)
    }))

  it.effect("the compiler asks for its errors among the task's", () =>
    Effect.sync(() => {
      const task = Task.make("track-types", { payload, error: Broken })
      const none = Task.make("track-types-none", { payload })
      task.toLayer(() => Effect.asVoid(Job.track("w", Effect.fail(new Broken({ part: "wheel" })))))
      // @ts-expect-error the task declares no error
      none.toLayer(() => Effect.asVoid(Job.track("w", Effect.fail(new Broken({ part: "wheel" })))))
    }))

  it.effect("work that the handler interrupts is no failure", () =>
    Effect.gen(function*() {
      const task = Task.make("track-interrupt", { payload })
      const { said, work } = endless()
      const run = Effect.gen(function*() {
        const fiber = yield* Job.track("w", work)
        yield* Workers.untilTrue(() => said.isRunning, "tracked work to run")
        yield* Fiber.interrupt(fiber)
      })
      yield* Workers.start(task.toLayer(() => run), { queues: ["t11"] })
      const id = yield* task.enqueue(undefined, { queue: "t11" })
      yield* Workers.settled(id, "completed")
    }))

  it.effect("completeWith waits for it", () =>
    Effect.gen(function*() {
      const task = Task.make("track-complete", { payload })
      const gate = yield* Deferred.make<void>()
      const order: Array<string> = []
      const run = Effect.gen(function*() {
        yield* Job.track("w", Effect.andThen(Deferred.await(gate), Effect.sync(() => void order.push("tracked"))))
        yield* Effect.forkChild(Effect.delay(Deferred.succeed(gate, undefined), 50))
        yield* task.completeWith(Effect.sync(() => void order.push("completed")))
      })
      yield* Workers.start(task.toLayer(() => run), { queues: ["t12"] })
      const id = yield* task.enqueue(undefined, { queue: "t12" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(order, ["tracked", "completed"])
    }))

  it.effect("a name that breaks its rules, and an open transaction, are refused before anything starts", () =>
    Effect.gen(function*() {
      const task = Task.make("track-refused", { payload })
      const refusals: Array<unknown> = []
      let starts = 0
      const work = Effect.sync(() => void starts++)
      const run = Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        for (const name of ["", "x".repeat(129), "nul\u0000"]) refusals.push(yield* Effect.flip(Job.track(name, work)))
        refusals.push(yield* Effect.flip(sql.withTransaction(Job.track("w", work))))
        yield* Job.track("x".repeat(128), work)
      })
      yield* Workers.start(task.toLayer(() => Effect.orDie(run)), { queues: ["t13"] })
      const id = yield* task.enqueue(undefined, { queue: "t13" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(
        refusals.map((refusal) =>
          refusal instanceof Invalid ? [refusal.field, refusal.limit, refusal.actual] : refusal
        ),
        [["name", 1, 0], ["name", 128, 129], ["name", undefined, undefined], ["track", undefined, undefined]]
      )
      assert.strictEqual(starts, 1)
    }))

  it.effect("operators see what runs, what has ended and since when, and nothing once the attempt is over", () =>
    Effect.gen(function*() {
      const task = Task.make("track-shown", { payload })
      const gate = yield* Deferred.make<void>()
      const run = Effect.gen(function*() {
        yield* Job.track("quick", Effect.void)
        yield* Job.track("long", Deferred.await(gate))
        yield* Deferred.await(gate)
      })
      yield* Workers.start(task.toLayer(() => run), { queues: ["t14"] })
      const id = yield* task.enqueue(undefined, { queue: "t14" })
      const shown = yield* Workers.until(Effect.map(tracked(id), Option.fromUndefinedOr), "tracked work to be shown")
      const { claimedAtMs } = yield* Workers.job(id)
      assert.deepStrictEqual(shown.work.map(({ name, state }) => [name, state]), [["long", "running"], [
        "quick",
        "done"
      ]])
      assert.deepStrictEqual([shown.isWaiting, shown.omitted, Number(shown.fence)], [false, 0, 1])
      for (const { enteredAtMs } of shown.work) assert.approximately(enteredAtMs, claimedAtMs ?? 0, 60_000)
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.settled(id, "completed")
      assert.isUndefined(yield* tracked(id))
    }))

  it.effect("short work costs no report", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const task = Task.make("track-short", { payload })
      yield* Workers.start(task.toLayer(() => Effect.asVoid(Job.track("short", Effect.void))), { queues: ["t15"] })
      const id = yield* task.enqueue(undefined, { queue: "t15" })
      yield* Workers.settled(id, "completed")
      assert.lengthOf(yield* sql`SELECT FROM headgate.tracked WHERE job_id = ${id}`, 0)
    }))
})
