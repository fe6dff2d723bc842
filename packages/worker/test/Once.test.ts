import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import {
  CodecError,
  Control,
  Cursor,
  ForeignTransaction,
  Inspect,
  Invalid,
  JobId,
  MAX_STEP_RESULT_BYTES,
  Once,
  Retry,
  Step,
  StoreUnavailable,
  Task
} from "@headgate/core"
import { MAX_EFFECT_KEY_BYTES } from "@headgate/core/Transactional"
import { Time } from "@headgate/testkit"
import { Effect, Layer, Predicate, Schema } from "effect"
import * as Reactivity from "effect/reactivity/Reactivity"
import { MAX_LOST_TRANSACTIONS } from "../src/Transacting.ts"
import * as Attempts from "./Attempts.ts"

const payload = Schema.Void
const number = { result: Schema.Number }

/** Ends the server's side of the transaction this runs in, from outside. */
const killTransaction = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`
  const outside = yield* PgClient.makeClient(sql.config)
  yield* outside`SELECT pg_terminate_backend(${row!.pid})`
}).pipe(Effect.scoped, Effect.provide(Reactivity.layer))

layer(Layer.provideMerge(Attempts.ledger, Attempts.layer), { excludeTestServices: true })("Once", (it) => {
  it.effect("a body's writes commit with its record, and later attempts get the recorded answer", () =>
    Effect.gen(function*() {
      const task = Task.make("publish", { payload, steps: ["publish"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const handler = Effect.flatMap(task.once("publish", Effect.as(Attempts.write("publish"), 7), number), Effect.fail)
      const first = yield* worker.run(task, handler)
      yield* Attempts.due()
      const second = yield* worker.run(task, handler)
      assert.deepStrictEqual([first, second].map(({ exit }) => Attempts.failure(exit)), [7, 7])
      assert.strictEqual(yield* Attempts.written("publish"), 1)
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual(checkpoint?.records.map(({ kind, step }) => [step, kind]), [["publish", "once"]])
    }))

  it.effect("a body that fails rolls back, leaves no record, and its error passes through", () =>
    Effect.gen(function*() {
      const task = Task.make("rollback", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit } = yield* worker.run(
        task,
        Once.run("x", Effect.andThen(Attempts.write("rollback"), Effect.fail("no")))
      )
      assert.strictEqual(Attempts.failure(exit), "no")
      assert.strictEqual(yield* Attempts.written("rollback"), 0)
      assert.deepStrictEqual((yield* (yield* Inspect).checkpoint(id))?.records, [])
      yield* Attempts.due()
      yield* worker.run(task, Once.run("x", Attempts.write("rollback")))
      assert.strictEqual(yield* Attempts.written("rollback"), 1)
    }))

  it.effect("an error of the body that the store could have answered is still the body's", () =>
    Effect.gen(function*() {
      const task = Task.make("own-errors", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      let runs = 0
      const own = new StoreUnavailable({ operation: "another store", message: "down" })
      const ran = yield* worker.run(task, Once.run("x", Effect.suspend(() => (runs++, own))))
      assert.deepStrictEqual([Attempts.failure(ran.exit), runs, Attempts.ending(ran)], [own, 1, undefined])
    }))

  it.effect("a key of one's own spans jobs: the second gets the first one's result, its body does not run, and it is recorded", () =>
    Effect.gen(function*() {
      const task = Task.make("shared-key", { payload })
      const ids = yield* task.enqueueAll([undefined, undefined])
      const worker = yield* Attempts.worker()
      let runs = 0
      const body = Effect.suspend(() => Effect.as(Attempts.write("shared"), ++runs))
      const results = yield* Effect.all(
        [1, 2].map(() => worker.run(task, Once.run("charge", body, { effectKey: "invoice 7", ...number })))
      )
      assert.deepStrictEqual(results.map(({ exit }) => exit._tag === "Success" && exit.value), [1, 1])
      assert.strictEqual(yield* Attempts.written("shared"), 1)
      const inspect = yield* Inspect
      for (const id of ids) {
        assert.deepStrictEqual((yield* inspect.checkpoint(id))?.records.map(({ step }) => step), ["charge"])
      }
    }))

  it.effect("by default the key is the job's: other jobs and other steps have their own effect", () =>
    Effect.gen(function*() {
      const task = Task.make("own-key", { payload })
      yield* task.enqueueAll([undefined, undefined])
      const worker = yield* Attempts.worker()
      const handler = Effect.all(["1", "2"].map((key) => Once.run("item", Attempts.write("own-key"), { key })))
      yield* worker.run(task, handler)
      yield* worker.run(task, handler)
      assert.strictEqual(yield* Attempts.written("own-key"), 4)
    }))

  it.effect("a lease lost while the body runs leaves nothing of it behind, and ends the attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("lost", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const control = yield* Control
      const { entries, say } = Attempts.log()
      const ran = yield* worker.run(
        task,
        Effect.andThen(
          Once.run("x", Effect.andThen(Attempts.write("lost"), Effect.orDie(control.cancel(id)))),
          say("went on")
        )
      )
      assert.deepStrictEqual([Attempts.ending(ran), entries, yield* Attempts.written("lost")], ["lease_lost", [], 0])
    }))

  it.effect("its mark is durable before the body, and its record carries the next step's: no write between", () =>
    Effect.gen(function*() {
      const task = Task.make("marked-once", { payload, steps: ["a", "x", "b"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const marked = Effect.flatMap(yield* Attempts.markOf(id), say)
      const held = yield* worker.claim(task)
      yield* worker.finish(
        held,
        Effect.gen(function*() {
          yield* task.step("a", Effect.void)
          yield* task.once("x", marked)
          yield* task.step("b", marked)
        })
      )
      assert.deepStrictEqual([entries, worker.batches.length, held.lease.extensions.length], [["x", "b"], 3, 4])
    }))

  it.effect("a result that cannot be stored rolls the body back", () =>
    Effect.gen(function*() {
      const task = Task.make("unstorable", { payload })
      yield* task.enqueueAll([undefined, undefined])
      const worker = yield* Attempts.worker()
      const large = Effect.as(Attempts.write("unstorable"), "x".repeat(MAX_STEP_RESULT_BYTES))
      const first = yield* worker.run(task, Once.run("x", large, { result: Schema.String }))
      const second = yield* worker.run(
        task,
        Once.run("x", Effect.as(Attempts.write("unstorable"), 1), {
          result: Schema.Number.check(Schema.isGreaterThan(5))
        })
      )
      assert.instanceOf(Attempts.failure(first.exit), Invalid)
      assert.instanceOf(Attempts.failure(second.exit), CodecError)
      assert.deepStrictEqual([first, second].map(({ outcome }) => outcome?._tag), ["Fatal", "Fatal"])
      assert.strictEqual(yield* Attempts.written("unstorable"), 0)
    }))

  it.effect("inside an open transaction it is refused", () =>
    Effect.gen(function*() {
      const task = Task.make("foreign", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit } = yield* worker.run(
        task,
        Effect.flatMap(PgClient.PgClient, (sql) => sql.withTransaction(Once.run("x", Attempts.write("foreign"))))
      )
      assert.instanceOf(Attempts.failure(exit), ForeignTransaction)
      assert.strictEqual(yield* Attempts.written("foreign"), 0)
    }))

  it.effect("a step or a cursor inside an open transaction is refused before its body runs, and so is a save", () =>
    Effect.gen(function*() {
      const task = Task.make("inside", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const pages = { schema: Schema.Int, initial: 0 }
      const inside = <E, R>(effect: Effect.Effect<unknown, E, R>) =>
        Effect.flatMap(PgClient.PgClient, (sql) => Effect.flip(sql.withTransaction(effect)))
      const body = Effect.asVoid(Attempts.write("inside"))
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          const refusals = [
            yield* inside(Step.run("step", body)),
            yield* inside(Cursor.run("cursor", pages, () => body)),
            yield* Effect.flip(Once.run("once", Step.run("step in once", body))),
            yield* Effect.flip(Cursor.run("open", pages, (_, save) => Effect.asVoid(Effect.flip(inside(save(1))))))
          ]
          return refusals.map((refusal) => Predicate.hasProperty(refusal, "field") ? refusal.field : String(refusal))
        }).pipe(Effect.flatMap((fields) => Effect.fail(fields.join())))
      )
      assert.strictEqual(Attempts.failure(exit), "step,cursor,step,position")
      assert.strictEqual(yield* Attempts.written("inside"), 0)
    }))

  it.effect("keys made of a job's id and a step do not meet, whatever both hold, and a key of the caller's meets none", () =>
    Effect.gen(function*() {
      const task = Task.make("keys", { payload })
      const worker = yield* Attempts.worker()
      yield* task.enqueue(undefined, { id: "orders" })
      yield* worker.run(task, Once.run("eu/send", Attempts.write("keys")))
      yield* task.enqueue(undefined, { id: "orders/eu" })
      yield* worker.run(task, Once.run("send", Attempts.write("keys")))
      assert.strictEqual(yield* Attempts.written("keys"), 2)
      yield* task.enqueue(undefined)
      const { exit } = yield* worker.run(
        task,
        Once.run("send", Attempts.write("keys"), { effectKey: "orders\u001feu/send" })
      )
      assert.deepInclude(Attempts.failure(exit), { _tag: "Invalid", field: "effectKey" })
    }))

  it.effect("an effect key that no store could hold is refused, and its step name is still free", () =>
    Effect.gen(function*() {
      const task = Task.make("bad-key", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          for (const effectKey of ["", "a\u0000b", "x".repeat(MAX_EFFECT_KEY_BYTES + 1)]) {
            assert.instanceOf(yield* Effect.flip(Once.run("x", Attempts.write("bad-key"), { effectKey })), Invalid)
          }
          yield* Once.run("x", Attempts.write("bad-key"), { effectKey: "x".repeat(MAX_EFFECT_KEY_BYTES) })
        })
      )
      assert.deepStrictEqual([exit._tag, yield* Attempts.written("bad-key")], ["Success", 1])
    }))

  it.effect("a transaction that the server ends is run again, and takes effect once", () =>
    Effect.gen(function*() {
      const task = Task.make("killed", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      let runs = 0
      const body = Effect.suspend(() =>
        ++runs === 1
          ? Effect.andThen(Attempts.write("killed"), Effect.orDie(killTransaction))
          : Attempts.write("killed")
      )
      const { outcome } = yield* worker.run(task, Once.run("x", body))
      assert.deepStrictEqual([outcome?._tag, runs, yield* Attempts.written("killed")], ["Success", 2, 1])
    }))

  it.effect("a body too slow for the server each time fails the attempt, which is retried; the lease was held throughout", () =>
    Effect.gen(function*() {
      const task = Task.make("too-long", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      let runs = 0
      // The body waits for something else than its database, for longer than the server allows.
      const body = Effect.gen(function*() {
        runs++
        const sql = yield* PgClient.PgClient
        yield* Attempts.write("too-long")
        yield* sql`SET LOCAL idle_in_transaction_session_timeout = '50ms'`
        yield* Effect.sleep(200)
      })
      yield* worker.run(task, Once.run("x", body))
      const job = yield* (yield* Inspect).job(id)
      assert.deepStrictEqual([job.state, job.attempt, job.crashAttempt, runs], [
        "retryable",
        1,
        0,
        MAX_LOST_TRANSACTIONS
      ])
      assert.strictEqual(yield* Attempts.written("too-long"), 0)
      yield* Attempts.due()
      const { outcome } = yield* worker.run(task, Once.run("x", Attempts.write("too-long")))
      assert.deepStrictEqual([outcome?._tag, yield* Attempts.written("too-long")], ["Success", 1])
    }))

  it.effect("a transaction that is lost each time, by no fault of its body, costs the job a pause and no attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("killed-always", { payload, retry: Retry.fixed("1 millis") })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const now = yield* Time.freeze()
      yield* worker.run(task, Once.run("x", Effect.orDie(killTransaction)))
      const { attempt, crashAttempt, scheduledAtMs, state } = yield* (yield* Inspect).job(id)
      assert.deepStrictEqual([state, attempt, crashAttempt, scheduledAtMs - now], ["retryable", 0, 0, 1000])
    }))

  it.effect("a transaction that was lost is not run again once the lease has run out", () =>
    Effect.gen(function*() {
      const task = Task.make("killed-late", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const held = yield* worker.claim(task)
      let runs = 0
      const body = Effect.gen(function*() {
        runs++
        yield* Effect.orDie(killTransaction)
        held.lease.until = 0
      })
      const ran = yield* worker.finish(held, Once.run("x", body))
      assert.deepStrictEqual([Attempts.ending(ran), runs], ["lease_lost", 1])
    }))

  it.effect("a redriven job does not repeat an effect that it has claimed", () =>
    Effect.gen(function*() {
      const task = Task.make("redriven", { payload, maxAttempts: 1 })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const handler = Effect.andThen(Once.run("x", Attempts.write("redriven")), Effect.fail("no"))
      yield* worker.run(task, handler)
      const control = yield* Control
      yield* control.retry(JobId.make(id))
      yield* worker.run(task, handler)
      assert.strictEqual(yield* Attempts.written("redriven"), 1)
    }))

  it.effect("a name recorded by a plain step is not taken for a once", () =>
    Effect.gen(function*() {
      const task = Task.make("became-once", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(task, Effect.andThen(Step.run("x", Effect.void), Effect.fail("later")))
      yield* Attempts.due()
      yield* worker.run(task, Once.run("x", Attempts.write("became-once")))
      assert.strictEqual((yield* (yield* Inspect).job(id)).state, "undecodable")
      assert.include(yield* Attempts.reason(id), "step x was recorded as a step, and this build runs it as a once")
      assert.strictEqual(yield* Attempts.written("became-once"), 0)
    }))
})
