import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control, Duties, Invalid, Job, type JobId, Leases, StoreUnavailable, Task } from "@headgate/core"
import { Deferred, Effect, Fiber, Schema } from "effect"
import * as Attempts from "./Attempts.ts"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const down = new StoreUnavailable({ operation: "test", message: "down" })

/** Milliseconds left of the lease in the store. */
const left = Effect.fnUntraced(function*(id: JobId) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ left: number }>`SELECT (lease_expires_at_ms - headgate.now_ms())::int AS left
    FROM headgate.job WHERE id = ${id}`
  return row?.left ?? 0
})

layer(Attempts.layer, { excludeTestServices: true })("Job.extendLease", (it) => {
  it.effect("extends the lease in the store, and this process believes as much from when it was sent", () =>
    Effect.gen(function*() {
      const task = Task.make("extend", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const before = performance.now()
      let found = 0
      const { exit, lease } = yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* Job.extendLease("10 minutes")
          found = yield* left((yield* Job.facts).id)
        })
      )
      assert.strictEqual(exit._tag, "Success")
      assert.approximately(found, 600_000, 10_000)
      assert.deepStrictEqual(lease.extensions.map((sentAt) => sentAt >= before), [true])
    }))

  it.effect("never shortens the lease", () =>
    Effect.gen(function*() {
      const task = Task.make("extend-less", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const held = yield* worker.claim(task)
      const before = yield* left(id)
      const fiber = yield* worker.start(held, Effect.andThen(Job.extendLease(1), left(id)))
      const after = yield* Fiber.join(fiber)
      assert.isAbove(Number(after), before - 10_000)
    }))

  it.effect("asks for 1 ms to a day", () =>
    Effect.gen(function*() {
      const task = Task.make("extend-bounds", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const refusals: Array<Invalid> = []
      yield* worker.run(
        task,
        Effect.gen(function*() {
          for (const duration of [0, Number.NaN, 86_400_001, "2 days"] as const) {
            refusals.push(yield* Effect.flip(Job.extendLease(duration)))
          }
          yield* Job.extendLease("1 day")
        })
      )
      assert.deepStrictEqual(refusals.map(({ actual, field, limit }) => [field, limit, actual]), [
        ["extendLease duration", 1, 0],
        ["extendLease duration", undefined, undefined],
        ["extendLease duration", 86_400_000, 86_400_001],
        ["extendLease duration", 86_400_000, 172_800_000]
      ])
    }))

  it.effect("of a lease that is lost already ends the attempt, with the reason", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const cancelled = Task.make("extend-cancelled", { payload })
      const reclaimed = Task.make("extend-reclaimed", { payload })
      for (const task of [cancelled, reclaimed]) {
        const id = yield* task.enqueue(undefined)
        const worker = yield* Attempts.worker()
        const held = yield* worker.claim(task)
        if (task === cancelled) yield* control.cancel(id)
        else yield* Attempts.crash()
        const { entries, say } = Attempts.log()
        const ran = yield* worker.finish(held, Effect.andThen(Job.extendLease("1 minute"), say("went on")))
        assert.deepStrictEqual([Attempts.ending(ran), entries], [
          task === cancelled ? "operator_cancel" : "lease_lost",
          []
        ])
        assert.deepStrictEqual(held.lease.extensions, [])
      }
    }))

  it.effect("waits for the end of an outage, and for a row that somebody holds", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const real = yield* Leases
      const task = Task.make("extend-outage", { payload })
      const id = yield* task.enqueue(undefined)
      let calls = 0
      const busy = yield* Deferred.make<void>()
      const renew: typeof real.renew = (leases, ms) =>
        Effect.suspend(() => ++calls < 3 ? down : real.renew(leases, ms)).pipe(
          Effect.tap(({ busy: [held] }) => held === undefined ? Effect.void : Deferred.succeed(busy, undefined))
        )
      const worker = yield* Attempts.worker().pipe(Effect.provideService(Leases, Leases.of({ ...real, renew })))
      const held = yield* worker.claim(task)
      const fiber = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT FROM headgate.job WHERE id = ${id} FOR UPDATE`
        const fiber = yield* worker.start(held, Job.extendLease("10 minutes"))
        yield* Deferred.await(busy)
        return fiber
      }))
      yield* Workers.joined(fiber)
      assert.isAtLeast(calls, 4)
      assert.approximately(yield* left(id), 600_000, 10_000)
      assert.lengthOf(held.lease.extensions, 1)
    }))
})

layer(Workers.layer, { excludeTestServices: true })("A lease", (it) => {
  it.effect("that was extended outlasts a loop that is blocked beyond the worker's tolerance", () =>
    Effect.gen(function*() {
      const task = Task.make("extend-blocked", { payload })
      const duties = yield* Duties
      const run = Effect.gen(function*() {
        yield* Job.extendLease("1 minute")
        Workers.block(4000)
        // The watchdog is overdue, and looks first.
        yield* Effect.sleep(100)
        yield* duties.reclaimExpired(100)
      })
      const options = { queues: ["x1"], lease: "3 seconds", maxBlocked: 0 } as const
      yield* Workers.start(task.toLayer(() => Effect.orDie(run)), options)
      const id = yield* task.enqueue(undefined, { queue: "x1" })
      yield* Workers.settled(id, "completed", "retryable")
      const { crashAttempt, fence, state } = yield* Workers.job(id)
      assert.deepStrictEqual([state, fence, crashAttempt], ["completed", 1, 0])
    }))

  it.effect("is renewed for as long as a handler runs, without a step or a word from it", () =>
    Effect.gen(function*() {
      const task = Task.make("long", { payload })
      let starts = 0
      const handler = task.toLayer(() => Effect.andThen(Effect.sync(() => void starts++), Effect.sleep(9000)))
      const options = { queues: ["x2"], lease: "4 seconds" } as const
      // Either would take the job over, and sweeps.
      for (const _ of [1, 2]) yield* Workers.start(handler, options)
      const id = yield* task.enqueue(undefined, { queue: "x2" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual([starts, yield* Workers.counters(id)], [1, { attempt: 0, crashAttempt: 0 }])
    }))
})
