import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control, Gate, Job, Leases, StoreUnavailable, Task } from "@headgate/core"
import { Deferred, Effect, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

layer(Workers.layer, { excludeTestServices: true })("Settler", (it) => {
  it.effect("a settlement whose answer was lost is repeated and counts as done, with and without a row left", () =>
    Effect.gen(function*() {
      const { proxy, use } = yield* Workers.throughProxy()
      for (const retention of ["1 hour", 0] as const) {
        const task = Task.make(`unanswered:${String(retention).length}`, { payload, retention })
        const queue = `s1-${String(retention).length}`
        const gate = yield* Deferred.make<void>()
        let starts = 0
        const handler = task.toLayer(() => Effect.andThen(Effect.sync(() => void starts++), Deferred.await(gate)))
        const worker = yield* use(Workers.start(handler, { queues: [queue], duties: false }))
        const id = yield* task.enqueue(undefined, { queue })
        yield* Workers.begins(id)
        const { fired } = yield* proxy.dropOn({ sql: /\.succeed\(/, moment: "after" })
        yield* Deferred.succeed(gate, undefined)
        yield* fired
        yield* Workers.untilTrue(() => worker.told("JobEnded", id).length > 0, "the end to be told")
        const state = retention === 0 ? "deleted" : "completed"
        assert.strictEqual(yield* Workers.stateOf(id), state)
        assert.deepInclude(worker.told("JobEnded", id)[0], { outcome: "success", state })
        assert.deepStrictEqual([starts, worker.told("LeaseLost").length], [1, 0])
      }
    }))

  it.effect("a job that is gone when its settlement gets through is told as lost", () =>
    Effect.gen(function*() {
      const task = Task.make("gone", { payload })
      const gate = yield* Deferred.make<void>()
      const { proxy, use } = yield* Workers.throughProxy()
      const worker = yield* use(
        Workers.start(task.toLayer(() => Effect.andThen(Deferred.await(gate), Job.snooze("1 hour"))), {
          queues: ["s5"],
          duties: false
        })
      )
      const id = yield* task.enqueue(undefined, { queue: "s5" })
      yield* Workers.begins(id)
      yield* proxy.cut
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.untilTrue(
        () => worker.events.some((event) => event._tag === "StoreUnreachable" && event.operation === "Leases.settle"),
        "the settlement to fail"
      )
      yield* Workers.cancel(id)
      yield* Control.use((control) => control.remove(id))
      yield* proxy.heal
      yield* Workers.untilTrue(() => worker.told("LeaseLost", id).length === 1, "the loss to be told")
      assert.deepStrictEqual(worker.told("JobEnded", id), [])
    }))

  it.effect("a job whose row another transaction holds is settled when it lets go, and others do not wait for it", () =>
    Effect.gen(function*() {
      const task = Task.make("held", { payload })
      const sql = yield* PgClient.PgClient
      const gate = yield* Deferred.make<void>()
      let starts = 0
      const handler = task.toLayer(() => Effect.andThen(Effect.sync(() => void starts++), Deferred.await(gate)))
      const worker = yield* Workers.start(handler, { queues: ["s6"], duties: false })
      const [held, beside] = yield* task.enqueueAll([undefined, undefined], { queue: "s6" })
      yield* Workers.untilTrue(() => starts === 2, "two handlers")
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT FROM headgate.job WHERE id = ${held!} FOR UPDATE`
        yield* Deferred.succeed(gate, undefined)
        yield* Workers.untilTrue(() => worker.told("JobEnded", beside!).length === 1, "the other to be settled")
        yield* Effect.sleep(300)
      }))
      yield* Workers.settled(held!, "completed")
      yield* Workers.untilTrue(() => worker.told("JobEnded", held!).length === 1, "the end to be told")
      assert.deepStrictEqual([starts, worker.told("LeaseLost").length], [2, 0])
    }))

  it.effect("what ends during an outage is settled when it is over: one start, nothing charged", () =>
    Effect.gen(function*() {
      const task = Task.make("outage", { payload })
      const gate = yield* Deferred.make<void>()
      let starts = 0
      const handler = task.toLayer(() => Effect.andThen(Effect.sync(() => void starts++), Deferred.await(gate)))
      const { proxy, use } = yield* Workers.throughProxy()
      yield* use(Workers.start(handler, { queues: ["s2"], duties: false }))
      const ids = yield* task.enqueueAll(Array.from({ length: 5 }), { queue: "s2" })
      yield* Workers.untilTrue(() => starts === 5, "five handlers")
      yield* proxy.cut
      yield* Deferred.succeed(gate, undefined)
      yield* Effect.sleep(500)
      yield* proxy.heal
      for (const id of ids) {
        yield* Workers.settled(id, "completed")
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
      }
      assert.strictEqual(starts, 5)
    }))

  it.effect("a crash that the store cannot be told of keeps what was claimed ahead waiting for one try only", () =>
    Effect.gen(function*() {
      const task = Task.make("untold", { payload: Schema.Int })
      const started: Array<number> = []
      const handler = task.toLayer((n) =>
        Effect.suspend(() => {
          started.push(n)
          return n === 0 ? Effect.die("boom") : Effect.void
        })
      )
      const leases = yield* Leases
      const gate = yield* Gate
      const cutOff = new StoreUnavailable({ operation: "any", message: "cut off" })
      let calls = 0
      const deaf = Leases.of({
        ...leases,
        settle: (batch) => batch.some(({ outcome }) => outcome._tag === "Crashed") ? cutOff : leases.settle(batch)
      })
      const shut = Gate.of({ ...gate, admit: (request) => calls++ === 0 ? gate.admit(request) : cutOff })
      yield* task.enqueueAll([0, 1], { queue: "s7" })
      const options = { queues: ["s7"], duties: false, concurrency: 1, prefetch: 1 }
      yield* Workers.start(handler, options).pipe(
        Effect.provideService(Leases, deaf),
        Effect.provideService(Gate, shut)
      )
      yield* Workers.untilTrue(() => started.length === 2, "the second to start")
    }))

  it.effect("a settlement the store cannot take does not hold up those that end with it", () =>
    Effect.gen(function*() {
      const task = Task.make("indigestible", { payload: Schema.Int })
      const gate = yield* Deferred.make<void>()
      let starts = 0
      const handler = task.toLayer(() => Effect.andThen(Effect.sync(() => void starts++), Deferred.await(gate)))
      const ids = yield* task.enqueueAll([0, 1, 2, 3, 4, 5, 6], { queue: "s3" })
      const leases = yield* Leases
      const choking = Leases.of({
        ...leases,
        settle: (batch) =>
          batch.some(({ lease }) => lease.jobId === ids[3]) ? Effect.die(new Error("cannot")) : leases.settle(batch)
      })
      const worker = yield* Effect.provideService(
        Workers.start(handler, { queues: ["s3"], duties: false }),
        Leases,
        choking
      )
      yield* Workers.untilTrue(() => starts === 7, "seven handlers")
      yield* Deferred.succeed(gate, undefined)
      for (const id of ids) if (id !== ids[3]) yield* Workers.settled(id, "completed")
      assert.strictEqual(yield* Workers.stateOf(ids[3]!), "running")
      assert.strictEqual(worker.told("LeaseLost", ids[3]).length, 1)
    }))

  it.effect("a refused settlement is told as a lost lease, and the job is left to its new owner", () =>
    Effect.gen(function*() {
      const task = Task.make("refused", { payload })
      const gate = yield* Deferred.make<void>()
      const handler = task.toLayer(() => Effect.uninterruptible(Deferred.await(gate)))
      const worker = yield* Workers.start(handler, { queues: ["s4"], duties: false })
      const id = yield* task.enqueue(undefined, { queue: "s4" })
      yield* Workers.begins(id)
      yield* Workers.cancel(id)
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.untilTrue(() => worker.told("LeaseLost", id).length > 0, "the loss to be told")
      assert.strictEqual(yield* Workers.stateOf(id), "cancelled")
      assert.strictEqual(worker.told("JobEnded", id).length, 0)
    }))
})
