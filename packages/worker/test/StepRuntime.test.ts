import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import {
  Control,
  DuplicateStep,
  Inspect,
  Invalid,
  Job,
  MAX_STEP_RESULT_BYTES,
  Step,
  StoreUnavailable,
  Task
} from "@headgate/core"
import { Deferred, Effect, Fiber, Layer, Schema } from "effect"
import * as Attempts from "./Attempts.ts"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const number = { result: Schema.Number }

layer(Attempts.layer, { excludeTestServices: true })("StepRuntime", (it) => {
  it.effect("a finished step answers from its record in the next attempt, and its body does not run again", () =>
    Effect.gen(function*() {
      const task = Task.make("recorded", { payload, steps: ["a", "b"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const answers: Array<number> = []
      const handler = (isBroken: boolean) =>
        Effect.gen(function*() {
          answers.push(yield* task.step("a", Effect.as(say("a"), 7), number))
          yield* task.step("b", isBroken ? Effect.fail("broken") : say("b"))
        })
      yield* worker.run(task, handler(true))
      yield* Attempts.due()
      const { outcome } = yield* worker.run(task, handler(false))
      assert.deepStrictEqual([entries, answers, outcome?._tag], [["a", "b"], [7, 7], "Success"])
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual(checkpoint?.records.map(({ position, step }) => [step, position]), [["a", 0], ["b", 1]])
    }))

  it.effect("a name that the task does not declare is refused", () =>
    Effect.gen(function*() {
      const task = Task.make("undeclared", { payload, steps: ["a"] })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit, outcome } = yield* worker.run(task, Step.run("b", Effect.die("ran")))
      assert.instanceOf(Attempts.failure(exit), Invalid)
      assert.strictEqual(outcome?._tag, "Fatal")
    }))

  it.effect("a task without declared steps takes any name, and refuses what is no name", () =>
    Effect.gen(function*() {
      const task = Task.make("free", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const { exit } = yield* worker.run(
        task,
        Effect.andThen(Step.run("whatever", say("whatever")), Step.run("no[name", say("never")))
      )
      assert.deepStrictEqual(entries, ["whatever"])
      assert.instanceOf(Attempts.failure(exit), Invalid)
    }))

  it.effect("the same step twice in one attempt is refused on the first run, on replay, and after a failed body", () =>
    Effect.gen(function*() {
      const task = Task.make("twice", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const handler = Effect.gen(function*() {
        yield* Step.run("a", say("a"))
        const second = yield* Effect.flip(Step.run("a", say("a again")))
        yield* Effect.ignore(Step.run("b", Effect.andThen(say("b"), Effect.fail("no"))))
        const retried = yield* Effect.flip(Step.run("b", say("b again")))
        const isRefused = second instanceof DuplicateStep && retried instanceof DuplicateStep
        return yield* Effect.fail(isRefused ? "refused" : "accepted")
      })
      const first = yield* worker.run(task, handler)
      yield* Attempts.due()
      const second = yield* worker.run(task, handler)
      assert.deepStrictEqual([first, second].map(({ exit }) => Attempts.failure(exit)), ["refused", "refused"])
      assert.deepStrictEqual(entries, ["a", "b", "b"])
    }))

  it.effect("the same step in two parallel branches is refused in one of them before its body starts", () =>
    Effect.gen(function*() {
      const task = Task.make("parallel-twice", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const branch = Effect.result(Step.run("a", say("a")))
      const { exit } = yield* worker.run(
        task,
        Effect.map(
          Effect.all([branch, branch], { concurrency: 2 }),
          (results) => assert.deepStrictEqual(results.map(({ _tag }) => _tag), ["Success", "Failure"])
        )
      )
      assert.deepStrictEqual([exit._tag, entries], ["Success", ["a"]])
    }))

  it.effect("a step recorded as another kind makes the job undecodable, and says so", () =>
    Effect.gen(function*() {
      const task = Task.make("other-kind", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(task, Effect.andThen(Step.run("a", Effect.void), Effect.fail("later")))
      yield* Attempts.due()
      const { entries, say } = Attempts.log()
      yield* worker.run(task, Effect.andThen(Step.sleep("a", "1 hour"), say("went on")))
      const inspect = yield* Inspect
      const job = yield* inspect.job(id)
      assert.deepStrictEqual([job.state, job.attempt, job.crashAttempt, entries], ["undecodable", 1, 0, []])
      assert.include(yield* Attempts.reason(id), "step a was recorded as a step, and this build runs it as a sleep")
    }))

  it.effect("a recorded result that no longer fits its schema makes the job undecodable, and says so", () =>
    Effect.gen(function*() {
      const task = Task.make("other-schema", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(task, Effect.andThen(Step.run("a", Effect.succeed(1), number), Effect.fail("later")))
      yield* Attempts.due()
      yield* worker.run(task, Step.run("a", Effect.die("ran"), { result: Schema.String }))
      const inspect = yield* Inspect
      assert.strictEqual((yield* inspect.job(id)).state, "undecodable")
      assert.include(yield* Attempts.reason(id), "the recorded result of step a does not fit its schema")
    }))

  it.effect("the mark is durable before the body runs, the record before the step answers", () =>
    Effect.gen(function*() {
      const task = Task.make("durable", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const inspect = yield* Inspect
      const stored = Effect.map(Effect.orDie(inspect.checkpoint(id)), (checkpoint) => [
        checkpoint?.inProgress,
        checkpoint?.records.map(({ step }) => step)
      ])
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* Step.run(
            "a",
            Effect.flatMap(stored, (now) => Effect.sync(() => assert.deepStrictEqual(now, ["a", []])))
          )
          assert.deepStrictEqual(yield* stored, [undefined, ["a"]])
        })
      )
      assert.strictEqual(exit._tag, "Success")
    }))

  it.effect("a body that fails or is interrupted leaves its mark and no record", () =>
    Effect.gen(function*() {
      const task = Task.make("failing", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const inspect = yield* Inspect
      const stored = Effect.map(Effect.orDie(inspect.checkpoint(id)), (checkpoint) => [
        checkpoint?.inProgress,
        checkpoint?.records.length
      ])
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* Effect.ignore(Step.run("a", Effect.fail("no")))
          assert.deepStrictEqual(yield* stored, ["a", 0])
          const began = yield* Deferred.make<void>()
          const fiber = yield* Effect.forkChild(
            Step.run("b", Effect.andThen(Deferred.succeed(began, undefined), Effect.never))
          )
          yield* Deferred.await(began)
          yield* Fiber.interrupt(fiber)
          assert.deepStrictEqual(yield* stored, ["b", 0])
        })
      )
      assert.strictEqual(exit._tag, "Success")
    }))

  it.effect("a crash is charged to the step whose body was running, and to none between steps", () =>
    Effect.gen(function*() {
      const task = Task.make("crashing", { payload, crashLimit: 10 })
      const id = yield* task.enqueue(undefined)
      const inspect = yield* Inspect
      const crashIn = Effect.fnUntraced(function*(handler: (here: Effect.Effect<never>) => Attempts.Handler) {
        const worker = yield* Attempts.worker()
        const reached = yield* Deferred.make<void>()
        const here = Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)
        const fiber = yield* worker.start(yield* worker.claim(task), handler(here))
        yield* Deferred.await(reached)
        yield* Attempts.crash()
        yield* Fiber.interrupt(fiber)
        return (yield* inspect.checkpoint(id))?.crashesByStep
      })
      assert.deepStrictEqual(yield* crashIn((here) => Step.run("a", here)), { a: 1 })
      assert.deepStrictEqual(yield* crashIn((here) => Effect.andThen(Step.run("a", Effect.void), here)), { a: 1 })
      const inNext = yield* crashIn((here) => Effect.andThen(Step.run("a", Effect.void), Step.run("b", here)))
      assert.deepStrictEqual(inNext, { a: 1, b: 1 })
      // A step that failed before, and was let go, has no part in what comes after the next one.
      const failed = Effect.ignore(Step.run("c", Effect.fail("no")))
      const between = yield* crashIn((here) => Effect.andThen(Effect.andThen(failed, Step.run("d", Effect.void)), here))
      assert.deepStrictEqual(between, { a: 1, b: 1 })
    }))

  it.effect("a step that is refused because the job was cancelled ends the attempt, and no further body starts", () =>
    Effect.gen(function*() {
      const task = Task.make("cancelled", { payload, steps: ["a", "b", "c"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const control = yield* Control
      const { entries, say } = Attempts.log()
      const cancel = Effect.asVoid(Effect.orDie(control.cancel(id)))
      const ran = yield* worker.run(
        task,
        // A handler deaf to interruption, which also swallows how its steps end.
        Effect.uninterruptible(
          Effect.gen(function*() {
            yield* Effect.exit(task.step("a", Effect.andThen(say("a"), cancel)))
            yield* Effect.exit(task.step("b", say("b")))
            yield* Effect.exit(task.step("c", say("c")))
          })
        )
      )
      assert.deepStrictEqual([entries, Attempts.ending(ran), ran.outcome], [["a"], "lease_lost", undefined])
    }))

  it.effect("a body does not start once the lease has run out on this process's clock", () =>
    Effect.gen(function*() {
      const task = Task.make("run-out", { payload, steps: ["a", "b"] })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const held = yield* worker.claim(task)
      const { entries, say } = Attempts.log()
      const ran = yield* worker.finish(
        held,
        Effect.gen(function*() {
          yield* task.step("a", say("a"))
          held.lease.until = 0
          yield* task.step("b", say("b"))
        })
      )
      assert.deepStrictEqual([entries, Attempts.ending(ran)], [["a"], "lease_lost"])
    }))

  it.effect("an accepted write extends the lease from when it was sent", () =>
    Effect.gen(function*() {
      const task = Task.make("extending", { payload, steps: ["a"] })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const held = yield* worker.claim(task)
      const before = performance.now()
      const bodyAt: Array<number> = []
      yield* worker.finish(held, task.step("a", Effect.sync(() => void bodyAt.push(performance.now()))))
      const [marked, recorded, ...more] = held.lease.extensions
      assert.isEmpty(more)
      assert.isTrue(before <= marked! && marked! <= bodyAt[0]! && bodyAt[0]! <= recorded!)
    }))

  it.effect("a result of exactly the limit is kept; one byte more is refused with both numbers, and not retried", () =>
    Effect.gen(function*() {
      const task = Task.make("large", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const text = (bytes: number) => "x".repeat(bytes - 2) // two quotes
      const result = Schema.String
      const { exit, outcome } = yield* worker.run(
        task,
        Effect.andThen(
          Step.run("fits", Effect.succeed(text(MAX_STEP_RESULT_BYTES)), { result }),
          Step.run("over", Effect.succeed(text(MAX_STEP_RESULT_BYTES + 1)), { result })
        )
      )
      const refusal = Attempts.failure(exit)
      assert.instanceOf(refusal, Invalid)
      assert.deepInclude(refusal, { limit: MAX_STEP_RESULT_BYTES, actual: MAX_STEP_RESULT_BYTES + 1 })
      assert.include(refusal.message, "step over")
      assert.strictEqual(outcome?._tag, "Fatal")
    }))

  it.effect("a write that meets an outage is repeated while the lease lasts, and stores the step once", () =>
    Effect.gen(function*() {
      const task = Task.make("outage", { payload, steps: ["a", "b"], version: 3 })
      const id = yield* task.enqueue(undefined)
      let faults = 0
      const worker = yield* Attempts.worker({
        // Two of three calls fail: one before it reaches the store, one after, so that its answer is lost.
        way: (batch, send) => {
          const turn = faults++ % 3
          if (turn === 0) return new StoreUnavailable({ operation: "test", message: "not sent" })
          return turn === 1
            ? Effect.andThen(send(batch), new StoreUnavailable({ operation: "test", message: "no answer" }))
            : send(batch)
        }
      })
      const { entries, say } = Attempts.log()
      const { outcome } = yield* worker.run(task, Effect.andThen(task.step("a", say("a")), task.step("b", say("b"))))
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual([entries, outcome?._tag], [["a", "b"], "Success"])
      assert.deepStrictEqual(checkpoint?.records.map(({ position, step }) => [step, position]), [["a", 0], ["b", 1]])
      assert.deepStrictEqual([checkpoint?.stepSet, checkpoint?.version], [["a", "b"], 3])
    }))

  it.effect("an outage that outlasts the lease ends the attempt without a further body", () =>
    Effect.gen(function*() {
      const task = Task.make("long-outage", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker({
        way: () => new StoreUnavailable({ operation: "test", message: "down" })
      })
      const held = yield* worker.claim(task)
      held.lease.until = performance.now() + 300
      const { entries, say } = Attempts.log()
      const ran = yield* worker.finish(held, Step.run("a", say("a")))
      assert.deepStrictEqual([entries, Attempts.ending(ran)], [[], "lease_lost"])
      assert.isAbove(worker.batches.length, 1)
    }))

  it.effect("parallel steps are recorded in the order they finish, each with its own result", () =>
    Effect.gen(function*() {
      const task = Task.make("parallel", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const gates = yield* Effect.all(Array.from({ length: 5 }, () => Deferred.make<void>()))
      const begun = yield* Deferred.make<void>()
      let count = 0
      const q = (x: number) =>
        Step.run(
          "q",
          Effect.gen(function*() {
            if (++count === 5) yield* Deferred.succeed(begun, undefined)
            yield* Deferred.await(gates[x]!)
            return x
          }),
          { key: String(x), ...number }
        )
      const inspect = yield* Inspect
      const records = Effect.map(Effect.orDie(inspect.checkpoint(id)), (checkpoint) => checkpoint!.records)
      const open = [3, 0, 4, 1, 2]
      const release = Effect.gen(function*() {
        yield* Deferred.await(begun)
        for (const [at, x] of open.entries()) {
          yield* Deferred.succeed(gates[x]!, undefined)
          yield* Effect.repeat(records, { until: (records) => records.length === at + 1 })
        }
      })
      const [ran] = yield* Effect.all([
        worker.run(task, Effect.all([0, 1, 2, 3, 4].map(q), { concurrency: 5 })),
        release
      ], { concurrency: 2 })
      assert.deepStrictEqual(ran.exit._tag === "Success" && ran.exit.value, [0, 1, 2, 3, 4])
      assert.deepStrictEqual(
        (yield* records).map(({ position, step }) => [step, position]),
        open.map((x, at) => [`q[${x}]`, at])
      )
    }))

  it.effect("n declared steps in a row take n + 1 writes, also the first time", () =>
    Effect.gen(function*() {
      const task = Task.make("ten", { payload, steps: TEN })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(task, Effect.forEach(TEN, (name) => task.step(name, Effect.void)))
      assert.strictEqual(worker.batches.length, 11)
      assert.isAtMost(worker.batches.length / TEN.length, 1.1)
    }))

  it.effect("undeclared names and keyed loops cost as little once the process has seen them", () =>
    Effect.gen(function*() {
      const task = Task.make("learnt", { payload })
      yield* task.enqueueAll([undefined, undefined])
      const handler = Effect.forEach(TEN, (key) => Step.run("item", Effect.void, { key }))
      const first = yield* Attempts.worker()
      yield* first.run(task, handler)
      const second = yield* Attempts.worker()
      yield* second.run(task, handler)
      assert.deepStrictEqual([first.batches.length, second.batches.length], [20, 11])
    }))

  it.effect("a wrong guess costs one write, and the body still starts under its own mark", () =>
    Effect.gen(function*() {
      const task = Task.make("guessed", { payload, steps: ["a", "b", "c"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const marked = Effect.flatMap(yield* Attempts.markOf(id), say)
      yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* task.step("a", Effect.void)
          yield* marked
          yield* task.step("c", marked)
          yield* marked
        })
      )
      assert.deepStrictEqual([worker.batches.length, entries], [4, ["b", "c", "none"]])
    }))

  it.effect("a guess never marks a step that is recorded or was used already", () =>
    Effect.gen(function*() {
      const task = Task.make("used-guess", { payload })
      yield* task.enqueueAll([undefined, undefined, undefined])
      const worker = yield* Attempts.worker()
      const inspect = yield* Inspect
      const step = (name: string) => Step.run(name, Effect.void)
      yield* worker.run(task, Effect.andThen(step("a"), step("b")))
      const marked = ({ attempt }: Attempts.Held) =>
        Effect.map(Effect.orDie(inspect.checkpoint(attempt.claim.lease.jobId)), (checkpoint) => checkpoint?.inProgress)
      const used = yield* worker.claim(task)
      yield* worker.finish(used, Effect.andThen(step("b"), step("a")))
      assert.isUndefined(yield* marked(used))
      const recorded = yield* worker.claim(task)
      yield* worker.finish(recorded, Effect.andThen(step("b"), Effect.fail("later")))
      yield* Attempts.due()
      yield* worker.run(task, step("a"))
      assert.isUndefined(yield* marked(recorded))
    }))

  it.effect("a guess that has grown old is not trusted: the start is written, and with it the lease verified", () =>
    Effect.gen(function*() {
      const task = Task.make("old-guess", { payload, steps: ["a", "b"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker({ guessMs: 0 })
      const control = yield* Control
      const { entries, say } = Attempts.log()
      const ran = yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* task.step("a", say("a"))
          yield* Effect.orDie(control.cancel(id))
          yield* task.step("b", say("b"))
        })
      )
      assert.deepStrictEqual([entries, Attempts.ending(ran)], [["a"], "lease_lost"])
    }))

  it.effect("a step that was interrupted before its body began has no part in later marks", () =>
    Effect.gen(function*() {
      const task = Task.make("never-began", { payload, steps: ["first", "next", "slow"] })
      const id = yield* task.enqueue(undefined)
      const isHeld = yield* Deferred.make<void>()
      const worker = yield* Attempts.worker({
        way: (batch, send) =>
          batch.some(({ mark }) => mark === "slow")
            ? Effect.andThen(Deferred.succeed(isHeld, undefined), Effect.andThen(Effect.sleep(30), send(batch)))
            : send(batch)
      })
      const { entries, say } = Attempts.log()
      const marked = Effect.flatMap(yield* Attempts.markOf(id), say)
      yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* task.step("first", Effect.void)
          yield* Effect.race(task.step("slow", say("slow ran")), Deferred.await(isHeld))
          yield* task.step("next", marked)
          yield* marked
        })
      )
      assert.deepStrictEqual(entries, ["next", "none"])
    }))

  it.effect("the declared steps and the version are stored with the first write that reaches the store", () =>
    Effect.gen(function*() {
      const task = Task.make("opened", { payload, steps: ["a", "b"], version: 3 })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      // The first step is called off before its mark is sent.
      yield* worker.run(
        task,
        Effect.andThen(Effect.race(task.step("a", say("a")), Effect.void), task.step("b", say("b")))
      )
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual([entries, worker.batches.length], [["b"], 2])
      assert.deepStrictEqual([checkpoint?.stepSet, checkpoint?.version], [["a", "b"], 3])
    }))

  it.effect("when an inner step is recorded, the mark goes back to the step around it", () =>
    Effect.gen(function*() {
      const task = Task.make("nested", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const marked = Effect.flatMap(yield* Attempts.markOf(id), say)
      yield* worker.run(
        task,
        Step.run("outer", Effect.andThen(Step.run("inner", marked), marked)).pipe(Effect.andThen(marked))
      )
      assert.deepStrictEqual(entries, ["inner", "outer", "none"])
    }))
})

layer(Workers.layer, { excludeTestServices: true })("StepRuntime in a real worker", (it) => {
  it.effect("no transaction is open while a handler or a step's body runs", () =>
    Effect.gen(function*() {
      const task = Task.make("slow", { payload, steps: ["slow"] })
      const sql = yield* PgClient.PgClient
      const handler = task.toLayer(() => Effect.andThen(Effect.sleep(250), task.step("slow", Effect.sleep(250))))
      yield* Workers.start(handler, { concurrency: 5 })
      const ids = yield* task.enqueueAll(Array.from({ length: 5 }, () => undefined))
      const sample = sql`SELECT 1 AS one FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()`
      const samples: Array<number> = []
      const look = Effect.map(sample, (rows) => void samples.push(rows.length))
      const done = Effect.forEach(ids, (id) => Workers.settled(id, "completed"))
      yield* Effect.race(done, Effect.forever(Effect.andThen(look, Effect.sleep(20))))
      assert.isAbove(samples.length, 10)
      assert.isEmpty(samples.filter((open) => open > 0))
    }))

  it.effect("a job cancelled a tenth of a second ago starts no further step, though no heartbeat has told yet", () =>
    Effect.gen(function*() {
      const task = Task.make("late", { payload, queue: "late", steps: ["a", "b"] })
      const { entries, say } = Attempts.log()
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          yield* task.step("a", say("a"))
          const { facts } = yield* Job
          yield* Effect.orDie(Workers.cancel(facts.id))
          yield* Effect.sleep(100)
          yield* task.step("b", say("b"))
        })
      )
      const control = yield* Effect.context<Control>()
      const worker = yield* Workers.start(Layer.provide(handler, Layer.succeedContext(control)))
      const id = yield* task.enqueue(undefined)
      yield* Workers.untilTrue(() => worker.told("LeaseLost", id).length > 0, "the attempt to end")
      assert.deepStrictEqual(entries, ["a"])
    }))
})

const TEN = Array.from({ length: 10 }, (_, n) => `s${n}`)
