import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import {
  type AttemptRefusal,
  type AttemptServices,
  Cursor,
  type InterruptionReason,
  Job,
  Output,
  Progress,
  Retry,
  Step,
  Task,
  type Transactional
} from "@headgate/core"
import { Deferred, Effect, Layer, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const retry = Retry.fixed("20 millis", { jitter: 0 })

/** Why it was interrupted. */
const noting = (reasons: Array<InterruptionReason | undefined>) => <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.onInterrupt(effect, () => Effect.map(Job.interruption, (why) => void reasons.push(Option.getOrUndefined(why))))

/** How the attempts of a job ended, the latest first. */
const ends = (id: string) =>
  Effect.map(
    Workers.attempts(id),
    (attempts) => attempts.map(({ errorTag, outcome }) => errorTag == null ? outcome : `${outcome} ${errorTag}`)
  )

const message = (id: string) => Effect.map(Workers.attempts(id), ([latest]) => latest?.errorText ?? "")

layer(Workers.layer, { excludeTestServices: true })("TimeLimits", (it) => {
  it.effect("a step past its time is interrupted, and the next attempt goes on from it", () =>
    Effect.gen(function*() {
      const task = Task.make("late-step", { payload, retry, steps: ["first", "second"] })
      const reasons: Array<InterruptionReason | undefined> = []
      const runs = { first: 0, second: 0 }
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          yield* task.step("first", Effect.sync(() => void runs.first++))
          const body = Effect.suspend(() => ++runs.second === 1 ? Effect.never : Effect.void)
          yield* task.step("second", noting(reasons)(body), { timeout: "150 millis" })
        })
      )
      yield* Workers.start(handler, { queues: ["l1"] })
      const id = yield* task.enqueue(undefined, { queue: "l1" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual([reasons, runs], [["step_timeout"], { first: 1, second: 2 }])
      const [timedOut] = yield* Workers.attempts(id)
      assert.deepStrictEqual([timedOut?.outcome, timedOut?.errorTag], ["timed_out", "StepTimeout"])
      assert.include(timedOut?.errorText, "step second did not end within 150 ms")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("the task's stepTimeout bounds every kind of body, a cursor's from one saved position to the next", () =>
    Effect.gen(function*() {
      const task = Task.make("each-kind", {
        payload: Schema.Literals(["step", "once", "cursor", "own"]),
        stepTimeout: "600 millis",
        maxAttempts: 1
      })
      const patient = Task.make("each-page", { payload, stepTimeout: "4 seconds", maxAttempts: 1 })
      const counting = { schema: Schema.Int, initial: 0 }
      const handler = task.toLayer((how): Effect.Effect<void, AttemptRefusal, AttemptServices | Transactional> => {
        switch (how) {
          case "step":
            return Step.run("a-step", Effect.never)
          case "once":
            return task.once("a-once", Effect.never)
          case "cursor":
            return Cursor.run("a-cursor", counting, (_, save) => Effect.andThen(save(1), Effect.never))
          case "own":
            return Step.run("long", Effect.sleep(900), { timeout: "1 minute" })
        }
      })
      const pages = patient.toLayer(() =>
        Cursor.run(
          "a-cursor",
          counting,
          (_, save) =>
            Effect.forEach([1, 2, 3, 4, 5], (page) => Effect.andThen(Effect.sleep(1000), save(page)), { discard: true })
        )
      )
      yield* Workers.start(Layer.merge(handler, pages), { queues: ["l2"] })
      for (const how of ["step", "once", "cursor"] as const) {
        const id = yield* task.enqueue(how, { queue: "l2" })
        yield* Workers.settled(id, "archived")
        assert.include(yield* message(id), `StepTimeout: step a-${how} did not end within 600 ms`)
      }
      for (
        const id of [yield* task.enqueue("own", { queue: "l2" }), yield* patient.enqueue(undefined, { queue: "l2" })]
      ) {
        assert.strictEqual(yield* Workers.ended(id), "completed")
      }
    }))

  it.effect("of steps side by side the late one is named", () =>
    Effect.gen(function*() {
      const task = Task.make("side-by-side", { payload, maxAttempts: 1 })
      const handler = task.toLayer(() =>
        Effect.all([
          Step.run("patient", Effect.never, { timeout: "1 minute" }),
          Step.run("late", Effect.never, { timeout: "150 millis" }),
          Step.run("unbounded", Effect.never)
        ], { concurrency: 3, discard: true })
      )
      yield* Workers.start(handler, { queues: ["l3"] })
      const id = yield* task.enqueue(undefined, { queue: "l3" })
      yield* Workers.settled(id, "archived")
      assert.include(yield* message(id), "StepTimeout: step late did not end within 150 ms")
    }))

  it.effect("a step that ended, failed or was given up in time is not late afterwards", () =>
    Effect.gen(function*() {
      const task = Task.make("in-time", { payload, maxAttempts: 1 })
      const timeout = "4 seconds"
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          yield* Step.run("ends", Effect.void, { timeout })
          yield* Effect.ignore(Step.run("fails", Effect.fail("no"), { timeout }))
          yield* Effect.timeoutOption(Step.run("given-up", Effect.never, { timeout }), "20 millis")
          yield* Effect.sleep("4500 millis")
        })
      )
      yield* Workers.start(handler, { queues: ["l4"] })
      const id = yield* task.enqueue(undefined, { queue: "l4" })
      assert.strictEqual(yield* Workers.ended(id), "completed")
    }))

  it.effect("an attempt without progress for its stallTimeout is interrupted, and names the step it was in", () =>
    Effect.gen(function*() {
      const task = Task.make("stalls", { payload, stallTimeout: "4 seconds", maxAttempts: 1 })
      const reasons: Array<InterruptionReason | undefined> = []
      const handler = task.toLayer(() => noting(reasons)(Step.run("download", Effect.never)))
      yield* Workers.start(handler, { queues: ["l5"] })
      const id = yield* task.enqueue(undefined, { queue: "l5" })
      yield* Workers.settled(id, "archived")
      assert.deepStrictEqual([reasons, yield* ends(id)], [["progress_stalled"], ["timed_out ProgressStalled"]])
      assert.include(yield* message(id), "the attempt made no progress for 4000 ms, in download")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("steps, saved positions, reports and outputs are progress each", () =>
    Effect.gen(function*() {
      const task = Task.make("goes-on", {
        payload: Schema.Literals(["step", "cursor", "report", "output", "none"]),
        stallTimeout: "4 seconds",
        maxAttempts: 1
      })
      const rounds = [1, 2, 3, 4, 5, 6]
      const slowly = <E, R>(go: (round: number) => Effect.Effect<unknown, E, R>) =>
        Effect.forEach(rounds, (round) => Effect.andThen(Effect.sleep(1000), go(round)), { discard: true })
      const handler = task.toLayer((how): Effect.Effect<void, AttemptRefusal, AttemptServices> => {
        switch (how) {
          case "step":
            return slowly((round) => Step.run("round", Effect.void, { key: `${round}` }))
          case "cursor":
            return Cursor.run("pages", { schema: Schema.Int, initial: 0 }, (_, save) => slowly(save))
          case "report":
            return slowly((current) => Progress.report({ current, total: 6 }))
          case "output":
            return slowly((round) => Output.put(Schema.Int, round))
          case "none":
            return slowly(() => Effect.void)
        }
      })
      yield* Workers.start(handler, { queues: ["l6"] })
      const kinds = ["step", "cursor", "report", "output", "none"] as const
      const ids = yield* task.enqueueAll(kinds, { queue: "l6" })
      for (const [at, id] of ids.entries()) {
        yield* Workers.settled(id, "completed", "archived")
        assert.deepStrictEqual(
          yield* ends(id),
          [kinds[at] === "none" ? "timed_out ProgressStalled" : "success"],
          kinds[at]
        )
      }
    }))

  it.effect("an outage is charged to neither limit: only the handler's own time counts", () =>
    Effect.gen(function*() {
      const task = Task.make("outage", {
        payload,
        stepTimeout: "4 seconds",
        stallTimeout: "4 seconds",
        maxAttempts: 1
      })
      const { proxy, use } = yield* Workers.throughProxy()
      const isCut = yield* Deferred.make<void>()
      const pages = (_: number, save: (page: number) => Effect.Effect<void, unknown>) =>
        Effect.andThen(Effect.andThen(proxy.cut, Deferred.succeed(isCut, undefined)), Effect.orDie(save(1)))
      const handler = task.toLayer(() => Cursor.run("pages", { schema: Schema.Int, initial: 0 }, pages))
      yield* use(Workers.start(handler, { queues: ["l7"], lease: "20 seconds" }))
      const id = yield* task.enqueue(undefined, { queue: "l7" })
      yield* Deferred.await(isCut)
      yield* Effect.sleep(5500)
      yield* proxy.heal
      yield* Workers.settled(id, "completed", "archived")
      assert.deepStrictEqual(yield* ends(id), ["success"])
    }))

  it.effect("a durable sleep counts neither for the step around it nor as a stall", () =>
    Effect.gen(function*() {
      const task = Task.make("sleeps", {
        payload,
        stepTimeout: "2 seconds",
        stallTimeout: "2 seconds",
        maxAttempts: 1
      })
      const handler = task.toLayer(() => Step.run("outer", Step.sleep("inner", "3 seconds")))
      yield* Workers.start(handler, { queues: ["l8"] })
      const id = yield* task.enqueue(undefined, { queue: "l8" })
      yield* Workers.settled(id, "completed", "archived")
      assert.deepStrictEqual(yield* ends(id), ["success"])
    }))

  it.effect("a sleep that waits for the store's lock on its job does not make the step around it late", () =>
    Effect.gen(function*() {
      const task = Task.make("held", { payload, stepTimeout: "4 seconds", maxAttempts: 1 })
      const sql = yield* PgClient.PgClient
      const isHeld = yield* Deferred.make<void>()
      const isReady = yield* Deferred.make<void>()
      const handler = task.toLayer(() =>
        Step.run(
          "outer",
          Effect.gen(function*() {
            yield* Deferred.succeed(isReady, undefined)
            yield* Deferred.await(isHeld)
            yield* Step.sleep("inner", "1 hour")
          })
        )
      )
      const worker = yield* Workers.start(handler, { queues: ["l9"], lease: "20 seconds" })
      const id = yield* task.enqueue(undefined, { queue: "l9" })
      yield* Deferred.await(isReady)
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT 1 FROM headgate.job WHERE id = ${id} FOR UPDATE`
        yield* Deferred.succeed(isHeld, undefined)
        yield* Effect.sleep(5500)
      }))
      const told = () => [...worker.told("JobEnded", id), ...worker.told("LeaseLost", id)]
      yield* Workers.untilTrue(() => told().length > 0, "the end to be told")
      assert.deepInclude(told()[0], { _tag: "JobEnded", outcome: "snooze", state: "scheduled" })
    }))

  it.effect("a step's timeout that is none is refused on the first run", () =>
    Effect.gen(function*() {
      const task = Task.make("no-time", { payload, retry })
      yield* Workers.start(task.toLayer(() => Step.run("s", Effect.void, { timeout: 0 })), { queues: ["l10"] })
      const id = yield* task.enqueue(undefined, { queue: "l10" })
      yield* Workers.settled(id, "archived")
      assert.deepStrictEqual([(yield* Workers.job(id)).reason, yield* ends(id)], ["fatal", ["fatal Invalid"]])
      assert.include(yield* message(id), "timeout is below the minimum of 1 ms")
    }))
})
