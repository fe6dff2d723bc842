import { assert, layer } from "@effect/vitest"
import {
  ConcurrencyLimit,
  type Handler,
  Invalid,
  Job,
  Policies,
  Progress,
  Queue,
  RateClass,
  Retry,
  Step,
  StoreUnavailable,
  Task,
  TaskGroup
} from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Context, Deferred, Effect, Layer, Option, Result, Schema } from "effect"
import { TestClock } from "effect/testing"
import { NoHandlers } from "../src/Served.ts"
import { Worker } from "../src/Worker.ts"
import { settingsOf } from "../src/WorkerOptions.ts"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const startFailure = <E, R>(live: Layer.Layer<Worker, E, R>) => Effect.flip(Effect.scoped(Layer.build(live)))

layer(Workers.layer, { excludeTestServices: true })("Worker", (it) => {
  it.effect("a worker without handlers does not start, and says which task it misses", () =>
    Effect.gen(function*() {
      assert.instanceOf(yield* startFailure(Worker.layer()), NoHandlers)
      const [a, b] = [Task.make("task-a", { payload }), Task.make("task-b", { payload })]
      const some = Worker.layer({ tasks: [a, b] }).pipe(
        Layer.provide(Layer.merge(a.toLayer(() => Effect.void), missing(b)))
      )
      assert.deepInclude(yield* startFailure(some), { _tag: "NoHandlers", missing: ["task-b"] })
    }))

  it.effect("a worker with two handlers for one kind does not start", () =>
    Effect.gen(function*() {
      const a = Task.make("twice", { payload })
      const b = Task.make("other", { payload, aliases: ["twice"] })
      const handlers = Layer.merge(a.toLayer(() => Effect.void), b.toLayer(() => Effect.void))
      assert.instanceOf(yield* startFailure(Worker.layer().pipe(Layer.provide(handlers))), Invalid)
    }))

  it.effect("an option that makes no sense is refused, with its name and its limit", () =>
    Effect.gen(function*() {
      const handler = Task.make("options", { payload }).toLayer(() => Effect.void)
      const bad = {
        concurrency: { concurrency: 0 },
        prefetch: { prefetch: -1 },
        lease: { lease: "499 millis" },
        pollInterval: { pollInterval: "0.2 millis" },
        handlerGrace: { handlerGrace: 0 },
        shutdownGrace: { shutdownGrace: "0.4 millis" },
        maxBlocked: { maxBlocked: Number.NaN },
        queues: { queues: [] },
        id: { id: "a b" }
      } as const
      for (const [field, options] of Object.entries(bad)) {
        assert.deepInclude(yield* startFailure(Worker.layer(options).pipe(Layer.provide(handler))), {
          _tag: "Invalid",
          field
        })
      }
      const lease = yield* startFailure(Worker.layer({ lease: "499 millis" }).pipe(Layer.provide(handler)))
      assert.deepInclude(lease, { limit: 500, actual: 499 })
    }))

  it("the defaults are the documented ones: a lease of 30 s, ten of them blocked, a drain of 25 s", () => {
    assert.deepInclude(Result.getOrThrow(settingsOf({})), {
      concurrency: 100,
      leaseMs: 30_000,
      maxBlockedMs: 300_000,
      pollMs: 1000,
      shutdownGraceMs: 25_000,
      handlerGraceMs: 10_000,
      hasDuties: true
    })
    assert.strictEqual(Result.getOrThrow(settingsOf({ lease: "2 seconds" })).maxBlockedMs, 20_000)
  })

  it.effect("a worker that cannot reach the store at its start fails with that", () =>
    Effect.gen(function*() {
      const { proxy, use } = yield* Workers.throughProxy()
      yield* proxy.cut
      const handler = Task.make("unreachable", { payload }).toLayer(() => Effect.void)
      assert.instanceOf(yield* use(startFailure(Worker.layer().pipe(Layer.provide(handler)))), StoreUnavailable)
    }))

  it.effect("a group's handlers are all served, from the queues its tasks name", () =>
    Effect.gen(function*() {
      const a = Task.make("group-a", { payload, queue: "w1a" })
      const b = Task.make("group-b", { payload, queue: "w1b" })
      const group = TaskGroup.make(a, b)
      const handlers = group.toLayer({ "group-a": () => Effect.void, "group-b": () => Effect.void })
      yield* Layer.build(Worker.layer({ tasks: group }).pipe(Layer.provide(handlers)))
      for (const id of [yield* a.enqueue(undefined), yield* b.enqueue(undefined)]) {
        yield* Workers.settled(id, "completed")
      }
    }))

  it.effect("a handler that blocks the event loop longer than its lease keeps its job", () =>
    Effect.gen(function*() {
      const task = Task.make("blocking", { payload })
      let starts = 0
      const handler = task.toLayer(() => Effect.sync(() => (starts++, Workers.block(6000))))
      yield* Workers.start(handler, { queues: ["w2"], lease: "5 seconds" })
      const id = yield* task.enqueue(undefined, { queue: "w2" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual([starts, yield* Workers.counters(id)], [1, { attempt: 0, crashAttempt: 0 }])
    }))

  it.effect("without tolerance for blocking the job is lost at expiry, the late result refused, and the worker goes on", () =>
    Effect.gen(function*() {
      const task = Task.make("wedged", { payload, success: Schema.String, retry: Retry.fixed("10 millis") })
      let starts = 0
      const after = yield* Deferred.make<boolean>()
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          if (++starts > 1) return "B"
          Workers.block(2500)
          yield* Effect.ensuring(
            Step.run("late", Deferred.succeed(after, true).pipe(Effect.asVoid)),
            Deferred.succeed(after, false)
          )
          return "A"
        })
      )
      const worker = yield* Workers.start(handler, { queues: ["w3"], lease: "1 second", maxBlocked: 0 })
      const id = yield* task.enqueue(undefined, { queue: "w3" })
      yield* Workers.settled(id, "completed")
      assert.strictEqual(yield* Workers.result(id, task.definition.success), "B")
      assert.isFalse(yield* Deferred.await(after))
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 1 })
      assert.strictEqual(worker.told("LeaseLost", id).length, 1)
    }))

  it.effect("an outage shorter than the lease costs nothing", () =>
    Effect.gen(function*() {
      const task = Task.make("brief", { payload })
      let aborts = 0
      const handler = task.toLayer(() => Effect.onInterrupt(Effect.sleep(7000), () => Effect.sync(() => void aborts++)))
      const { proxy, use } = yield* Workers.throughProxy()
      yield* use(Workers.start(handler, { queues: ["w4"], lease: "10 seconds" }))
      const ids = yield* task.enqueueAll(Array.from({ length: 5 }), { queue: "w4" })
      for (const id of ids) yield* Workers.begins(id)
      yield* proxy.cut
      // A renewal falls into it.
      yield* Effect.sleep(4000)
      yield* proxy.heal
      for (const id of ids) {
        yield* Workers.settled(id, "completed")
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
      }
      assert.strictEqual(aborts, 0)
    }))

  it.effect("in an outage longer than the lease a handler stops no later than its lease, and the worker claims again", () =>
    Effect.gen(function*() {
      const task = Task.make("long", { payload })
      const aborts = new Map<string, { readonly at: number; readonly reason: string | undefined }>()
      const overtaken: Array<string> = []
      const handler = task.toLayer(Effect.fn(function*() {
        const { fence, id } = yield* Job.facts
        if (fence > 1) return aborts.has(id) ? undefined : void overtaken.push(id)
        yield* Effect.onInterrupt(Effect.never, () =>
          Effect.map(Job.interruption, (reason) => {
            aborts.set(id, { at: monotonicMs(), reason: Option.getOrUndefined(reason) })
          }))
      }))
      const { proxy, use } = yield* Workers.throughProxy()
      const leaseMs = 5000
      const options = { queues: ["w5"], lease: leaseMs } as const
      const worker = yield* use(Workers.start(handler, options))
      const ids = yield* task.enqueueAll(Array.from({ length: 5 }), { queue: "w5" })
      yield* Workers.untilTrue(() => worker.told("JobStarted").length === 5, "all to run")
      const other = yield* Workers.start(handler, options)
      yield* Effect.sleep(600)
      yield* proxy.cut
      const cutAt = monotonicMs()
      for (const id of ids) yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(overtaken, [], "jobs that another worker had before their handler here was stopped")
      const stoppedAt = Math.max(...ids.map((id) => aborts.get(id)?.at ?? Infinity))
      Workers.within("handlers of a worker cut off were stopped", stoppedAt - cutAt, leaseMs + 50)
      for (const id of ids) {
        assert.strictEqual(aborts.get(id)?.reason, "lease_lost")
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 1 })
        assert.strictEqual(worker.told("LeaseLost", id).length, 1)
        assert.strictEqual(other.told("JobStarted", id).length, 1)
      }
      assert.include((yield* worker.health).failing, "Heartbeat")
      yield* other.stop
      yield* proxy.heal
      const late = yield* task.enqueue(undefined, { queue: "w5" })
      yield* Workers.untilTrue(() => worker.told("JobStarted", late).length === 1, "the worker to claim again")
      yield* Workers.eventually(worker.health, ({ failing }) => failing.length === 0)
      yield* Workers.cancel(late)
    }))

  it.effect("handlers deaf to their timeout are settled without them; others run elsewhere, and the worker says it is stuck", () =>
    Effect.gen(function*() {
      const limits = [ConcurrencyLimit.make("w6", { scope: "key", max: 2 })]
      const deaf = Task.make("deaf", { payload, timeout: "1 second", maxAttempts: 1, limits })
      const normal = Task.make("normal", { payload, limits })
      const release = yield* Deferred.make<void>()
      const late = yield* Deferred.make<boolean>()
      const handlers = Layer.merge(
        deaf.toLayer(() =>
          Effect.uninterruptible(Effect.gen(function*() {
            yield* Deferred.await(release)
            yield* Progress.report({ current: 1, total: 1 })
            yield* Step.run("late", Effect.asVoid(Deferred.succeed(late, true)))
          }))
        ),
        normal.toLayer(() => Effect.void)
      )
      const options = { queues: ["w6"], concurrency: 2 } as const
      const worker = yield* Workers.start(handlers, { ...options, handlerGrace: "300 millis" })
      const ids = yield* deaf.enqueueAll([undefined, undefined], { queue: "w6" })
      yield* Workers.untilTrue(() => worker.told("JobStarted").length === 2, "both to run")
      const startedAt = monotonicMs()
      // The two hold all there is of the limit, for as long as the store takes them for running.
      const others = yield* normal.enqueueAll(Array.from({ length: 5 }), { queue: "w6" })
      yield* Workers.start(handlers, options)
      for (const id of ids) {
        yield* Workers.settled(id, "archived")
        assert.deepStrictEqual((yield* Workers.attempts(id)).map(({ outcome }) => outcome), ["timed_out"])
      }
      for (const id of others) yield* Workers.settled(id, "completed")
      Workers.within("jobs behind deaf handlers ran elsewhere", monotonicMs() - startedAt, 5000)
      assert.deepInclude(yield* worker.health, { status: "stuck", zombies: 2, running: 0 })
      assert.strictEqual(worker.told("JobStuck").length, 2)
      assert.strictEqual(worker.told("JobStarted").length, 2, "the others ran elsewhere")
      yield* Deferred.succeed(release, undefined)
      yield* Workers.eventually(worker.health, ({ zombies }) => zombies === 0)
      assert.isFalse(yield* Deferred.isDone(late))
      assert.deepStrictEqual(yield* Workers.counters(ids[0]!), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("finalizers that do not end are given up after the grace, and the handler's own answer stands", () =>
    Effect.gen(function*() {
      const task = Task.make("endless", { payload })
      const release = yield* Deferred.make<void>()
      const handler = task.toLayer(() => Effect.addFinalizer(() => Deferred.await(release)))
      const worker = yield* Workers.start(handler, { queues: ["w7"], handlerGrace: "200 millis" })
      const id = yield* task.enqueue(undefined, { queue: "w7" })
      yield* Workers.settled(id, "completed")
      assert.strictEqual((yield* worker.health).zombies, 1)
      assert.deepInclude(worker.told("JobStuck", id)[0], { reason: "finalizers" })
      yield* Deferred.succeed(release, undefined)
      yield* Workers.eventually(worker.health, ({ zombies }) => zombies === 0)
    }))

  it.effect("a promise that is rejected inside one handler crashes that job alone", () =>
    Effect.gen(function*() {
      const task = Task.make("rejects", { payload: Schema.Boolean, crashLimit: 1 })
      const handler = task.toLayer((isBad) =>
        isBad ? Effect.promise(() => Promise.reject(new Error("rejected"))) : Effect.sleep(300)
      )
      yield* Workers.start(handler, { queues: ["w8"] })
      const good = yield* task.enqueue(false, { queue: "w8" })
      const bad = yield* task.enqueue(true, { queue: "w8" })
      yield* Workers.settled(bad, "quarantined")
      yield* Workers.settled(good, "completed")
    }))

  it.effect("the policies that tasks name hold before the first job runs, and two that contradict stop the start", () =>
    Effect.gen(function*() {
      const rate = RateClass.make("w10", { limit: 2, window: "1 day" })
      const capped = Task.make("w10", { payload, rates: [rate], queue: Queue.make("w10", { weight: 6 }) })
      yield* capped.enqueueAll([undefined, undefined, undefined])
      let ran = 0
      yield* Workers.start(capped.toLayer(() => Effect.sync(() => void ran++)), { queues: ["w10"] })
      yield* Workers.untilTrue(() => ran === 2, "two jobs to run")
      const policies = yield* Policies
      const { items } = yield* policies.rateClasses()
      assert.deepInclude(items.find(({ name }) => name === "w10"), { limit: 2, burst: 2 })
      assert.strictEqual((yield* policies.queues()).items.find(({ name }) => name === "w10")?.weight, 6)
      yield* policies.setRateClass({ name: "w10", limit: 2, windowMs: 86_400_000, burst: 100 })
      assert.deepStrictEqual(yield* Workers.counts("w10"), { available: 1, completed: 2 })

      const other = Task.make("w10-other", { payload, rates: [RateClass.make("w10", { limit: 3, window: "1 day" })] })
      const handlers = Layer.merge(capped.toLayer(() => Effect.void), other.toLayer(() => Effect.void))
      const refused = yield* startFailure(Worker.layer().pipe(Layer.provide(handlers)))
      assert.deepInclude(refused, { _tag: "Invalid", field: "policies" })
    }))

  it.effect("a test's clock does not stop the worker, and reaches its handlers", () =>
    Effect.gen(function*() {
      const task = Task.make("clocked", { payload })
      let isRunning = false
      let isDone = false
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          isRunning = true
          yield* Effect.sleep("1 hour")
          isDone = true
        })
      )
      const id = yield* task.enqueue(undefined, { queue: "w9" })
      yield* Effect.gen(function*() {
        yield* Workers.start(handler, { queues: ["w9"], shutdownGrace: 0 })
        yield* TestClock.withLive(Workers.untilTrue(() => isRunning, "the handler to sleep"))
        yield* TestClock.adjust("1 hour")
        yield* TestClock.withLive(Workers.settled(id, "completed"))
      }).pipe(Effect.scoped, Effect.provide(TestClock.layer()))
      assert.isTrue(isDone)
    }))
})

/** Claims in its type to hold the handler of a task. */
const missing = <Kind extends string>(_task: { readonly kind: Kind }): Layer.Layer<Handler<Kind>> =>
  // SAFETY: a lie, to see what a worker does that was lied to.
  Layer.succeedContext(Context.empty()) as Layer.Layer<Handler<Kind>>
