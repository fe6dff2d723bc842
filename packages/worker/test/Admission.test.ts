import { assert, layer } from "@effect/vitest"
import { ConcurrencyLimit, Gate, Task } from "@headgate/core"
import { Heartbeat } from "@headgate/core/Heartbeat"
import { Time } from "@headgate/testkit"
import { Deferred, Effect, Layer, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

layer(Workers.layer, { excludeTestServices: true })("Admission", (it) => {
  it.effect("a worker claims no more jobs than it has free slots, and the next as one ends", () =>
    Effect.gen(function*() {
      const task = Task.make("slots", { payload })
      const gates: Array<Deferred.Deferred<void>> = []
      const handler = task.toLayer(() =>
        Effect.flatMap(Deferred.make<void>(), (gate) => (gates.push(gate), Deferred.await(gate)))
      )
      yield* task.enqueueAll(Array.from({ length: 10 }), { queue: "a1" })
      yield* Workers.start(handler, { queues: ["a1"], concurrency: 3, prefetch: 0 })
      yield* Workers.untilTrue(() => gates.length === 3, "three handlers")
      assert.deepStrictEqual(yield* Workers.counts("a1"), { available: 7, running: 3 })
      yield* Deferred.succeed(gates[0]!, undefined)
      yield* Workers.untilTrue(() => gates.length === 4, "a fourth handler")
      // The next claim and the settlement are on their way at the same time.
      const counts = yield* Workers.eventually(Workers.counts("a1"), ({ completed }) => completed === 1)
      assert.deepStrictEqual(counts, { available: 6, completed: 1, running: 3 })
      for (const gate of gates) yield* Deferred.succeed(gate, undefined)
    }))

  it.effect("claims ahead of their slot keep their leases, and each of them starts once", () =>
    Effect.gen(function*() {
      const task = Task.make("ahead", { payload: Schema.Int })
      let starts = 0
      const handler = task.toLayer(() => Effect.andThen(Effect.sync(() => void starts++), Effect.sleep(900)))
      const ids = yield* task.enqueueAll(Array.from({ length: 8 }, (_, n) => n), { queue: "a2" })
      const options = { queues: ["a2"], concurrency: 1, prefetch: 10, lease: "5 seconds" } as const
      yield* Workers.start(handler, options)
      yield* Workers.untilTrue(() => starts > 0, "the first start")
      yield* Workers.start(handler, options)
      for (const id of ids) {
        yield* Workers.settled(id, "completed")
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
      }
      assert.strictEqual(starts, 8)
    }))

  it.effect("while claims wait here, one call of the gate serves several", () =>
    Effect.gen(function*() {
      const task = Task.make("several", { payload })
      const handler = task.toLayer(() => Effect.sleep(60))
      const gate = yield* Gate
      const brought: Array<number> = []
      const watched = Gate.of({
        ...gate,
        admit: (request) =>
          Effect.tap(gate.admit(request), ({ claims }) => Effect.sync(() => brought.push(claims.length)))
      })
      const ids = yield* task.enqueueAll(Array.from({ length: 9 }), { queue: "a14" })
      yield* Workers.start(handler, { queues: ["a14"], concurrency: 1, prefetch: 2 }).pipe(
        Effect.provideService(Gate, watched)
      )
      for (const id of ids) yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(brought.filter((claims) => claims > 0), [3, 2, 2, 2])
    }))

  it.effect("a worker that is to claim thousands ahead does so, a thousand in a call", () =>
    Effect.gen(function*() {
      const task = Task.make("thousands", { payload })
      const worker = yield* Workers.start(task.toLayer(() => Effect.never), {
        queues: ["a15"],
        concurrency: 1,
        prefetch: 2000,
        shutdownGrace: 0
      })
      yield* task.enqueueAll(Array.from({ length: 1500 }), { queue: "a15" })
      yield* Workers.eventually(worker.health, ({ buffered }) => buffered === 1499)
    }))

  it.effect("no claim waits for its slot longer than one lease while another worker is idle", () =>
    Effect.gen(function*() {
      const task = Task.make("waiting", { payload: Schema.Boolean })
      const handler = task.toLayer((isLong) => isLong ? Effect.never : Effect.void)
      const busy = yield* Workers.start(handler, {
        queues: ["a3"],
        concurrency: 1,
        prefetch: 5,
        lease: "5 seconds",
        shutdownGrace: 0
      })
      const long = yield* task.enqueue(true, { queue: "a3" })
      yield* Workers.begins(long)
      const [id] = yield* task.enqueueAll([false], { queue: "a3" })
      yield* Workers.until(
        Effect.map(busy.health, ({ buffered }) => buffered === 1 ? Option.some(true) : Option.none()),
        "the claim to be buffered"
      )
      yield* Workers.start(handler, { queues: ["a3"] })
      yield* Workers.settled(id!, "completed")
      assert.deepStrictEqual(yield* Workers.counters(id!), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("short jobs are claimed ahead of their slots, and handed back soon when the slots stay taken", () =>
    Effect.gen(function*() {
      const task = Task.make("pace", { payload: Schema.Boolean })
      const handler = task.toLayer((isLong) => isLong ? Effect.never : Effect.void)
      const options = { queues: ["a12"], concurrency: 2, lease: "1 minute", duties: false, shutdownGrace: 0 } as const
      yield* task.enqueueAll(Array.from({ length: 2000 }, () => false), { queue: "a12", priority: 1 })
      yield* task.enqueueAll([true, true], { queue: "a12" })
      const late = yield* task.enqueueAll(Array.from({ length: 200 }, () => false), { queue: "a12" })
      const first = yield* Workers.start(handler, options)
      const most = yield* Workers.eventually(first.health, ({ buffered, running }) => buffered > 0 && running === 2)
      assert.isAbove(most.buffered, 0)
      yield* Workers.start(handler, options)
      for (const id of late) yield* Workers.settled(id, "completed")
    }))

  it.effect("a claim that passes its deadline while it waits for its slot does not start", () =>
    Effect.gen(function*() {
      const task = Task.make("overdue", { payload: Schema.Boolean })
      let starts = 0
      const isLate = yield* Deferred.make<void>()
      const handler = task.toLayer((isFirst) =>
        Effect.andThen(Effect.sync(() => void starts++), isFirst ? Deferred.await(isLate) : Effect.void)
      )
      const worker = yield* Workers.start(handler, { queues: ["a8"], concurrency: 1, prefetch: 5, duties: false })
      yield* task.enqueue(true, { queue: "a8" })
      yield* Workers.untilTrue(() => starts === 1, "the first start")
      const id = yield* task.enqueue(false, { queue: "a8", deadline: "4 seconds" })
      yield* Workers.eventually(worker.health, ({ buffered }) => buffered === 1)
      yield* Effect.sleep(4500)
      yield* Deferred.succeed(isLate, undefined)
      yield* Workers.settled(id, "archived")
      assert.deepStrictEqual([starts, (yield* Workers.job(id)).reason], [1, "deadline"])
    }))

  it.effect("a claim whose lease runs out here before it starts is handed back uncharged", () =>
    Effect.gen(function*() {
      const task = Task.make("lapsed", { payload: Schema.Boolean })
      const handler = task.toLayer((isLong) => isLong ? Effect.never : Effect.void)
      const heartbeat = yield* Heartbeat
      /** Believes in the lease of the n-th claim for so long only. */
      const believing = (nth: number, ms: number) => {
        let claims = 0
        return Heartbeat.of({
          start: (options) =>
            Effect.map(heartbeat.start(options), (session) => ({
              ...session,
              track: (lease, sentAt) => {
                const tracked = session.track(lease, sentAt)
                return ++claims === nth ? { ...tracked, validUntil: () => sentAt + ms } : tracked
              }
            }))
        })
      }
      const options = { concurrency: 1, prefetch: 5, lease: "10 seconds", duties: false, shutdownGrace: 0 } as const
      const received = yield* task.enqueue(false, { queue: "a9" })
      yield* Workers.start(handler, { ...options, queues: ["a9"] }).pipe(
        Effect.provideService(Heartbeat, believing(1, 0))
      )
      yield* Workers.settled(received, "completed")
      yield* task.enqueue(true, { queue: "a10", priority: 1 })
      const buffered = yield* task.enqueue(false, { queue: "a10" })
      const worker = yield* Workers.start(handler, { ...options, queues: ["a10"] }).pipe(
        Effect.provideService(Heartbeat, believing(2, 200))
      )
      yield* Workers.eventually(Workers.job(buffered), ({ fence }) => fence === 2)
      for (const id of [received, buffered]) {
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
        assert.strictEqual((yield* Workers.attempts(id))[0]?.outcome, "released")
      }
      assert.strictEqual(worker.told("LeaseLost").length, 0)
    }))

  it.effect("a job that the gate archives as too late is told, also by a worker without duties", () =>
    Effect.gen(function*() {
      const task = Task.make("too-late", { payload })
      const id = yield* task.enqueue(undefined, { queue: "a11", deadline: "10 minutes" })
      yield* Time.advance("11 minutes")
      const worker = yield* Workers.start(task.toLayer(() => Effect.void), { queues: ["a11"], duties: false })
      yield* Workers.untilTrue(
        () => worker.events.some((event) => event._tag === "JobsExpired" && event.jobIds.includes(id)),
        "the deadline to be told"
      )
      assert.strictEqual(yield* Workers.stateOf(id), "archived")
    }))

  it.effect("an announced job starts at once, however long the poll interval", () =>
    Effect.gen(function*() {
      const task = Task.make("announced", { payload })
      const started = yield* Deferred.make<void>()
      const handler = task.toLayer(() => Deferred.succeed(started, undefined).pipe(Effect.asVoid))
      yield* Workers.start(handler, { queues: ["a4"], pollInterval: "1 hour" })
      yield* Effect.sleep(500)
      yield* task.enqueue(undefined, { queue: "a4" })
      yield* Effect.timeout(Deferred.await(started), "1 minute")
    }))

  it.effect("a kind the worker does not know waits untouched for one that does, and holds up nothing", () =>
    Effect.gen(function*() {
      const known = Task.make("known", { payload })
      const unknown = Task.make("unknown", { payload })
      const strangers = yield* unknown.enqueueAll(Array.from({ length: 50 }), { queue: "a5" })
      const id = yield* known.enqueue(undefined, { queue: "a5" })
      yield* Workers.start(known.toLayer(() => Effect.void), { queues: ["a5"] })
      yield* Workers.settled(id, "completed")
      for (const stranger of strangers.slice(0, 3)) {
        assert.deepStrictEqual(yield* Workers.counters(stranger), { attempt: 0, crashAttempt: 0 })
      }
      assert.strictEqual((yield* Workers.counts("a5"))["available"], 50)
      const both = Layer.merge(known.toLayer(() => Effect.void), unknown.toLayer(() => Effect.void))
      yield* Workers.start(both, { queues: ["a5"] })
      for (const stranger of strangers) yield* Workers.settled(stranger, "completed")
    }))

  it.effect("what a call claimed whose answer was lost is handed back, uncharged", () =>
    Effect.gen(function*() {
      const task = Task.make("unanswered", { payload })
      const { proxy, use } = yield* Workers.throughProxy()
      const worker = yield* use(Workers.start(task.toLayer(() => Effect.void), { queues: ["a6"], duties: false }))
      const { fired } = yield* proxy.dropOn({ sql: /headgate"?\.admit\w*\(/, moment: "after" })
      yield* fired
      const first = yield* proxy.dropOn({ sql: /headgate"?\.admit\w*\(/, moment: "after" })
      const id = yield* task.enqueue(undefined, { queue: "a6" })
      yield* first.fired
      yield* Workers.settled(id, "completed")
      const { crashAttempt, fence } = yield* Workers.job(id)
      assert.deepStrictEqual([crashAttempt, fence >= 1], [0, true])
      assert.isAtLeast(worker.told("StoreUnreachable").length, 1)
    }))

  it.effect("what a completion or a sleep frees under a ceiling is given away at once", () =>
    Effect.gen(function*() {
      const one = ConcurrencyLimit.make("a8-one", { scope: "queue", queue: "a8", max: 1 })
      const task = Task.make("freed", { payload: Schema.Boolean, steps: ["nap"], limits: [one], queue: "a8" })
      const handler = task.toLayer(Effect.fn(function*(isSleepy) {
        if (isSleepy) yield* task.sleep("nap", "10 minutes")
        yield* task.completeWith(Effect.void)
      }))
      yield* Workers.start(handler, { queues: ["a8"], pollInterval: "10 minutes" })
      const ids = yield* task.enqueueAll([false, true, false, true])
      for (const [n, id] of ids.entries()) yield* Workers.settled(id, n % 2 === 0 ? "completed" : "scheduled")
    }))

  it.effect("an outage is told once, and the worker claims again when it is over", () =>
    Effect.gen(function*() {
      const task = Task.make("outage", { payload })
      const { proxy, use } = yield* Workers.throughProxy()
      const options = { queues: ["a7"], duties: false, lease: "2 seconds" } as const
      const worker = yield* use(Workers.start(task.toLayer(() => Effect.void), options))
      yield* proxy.cut
      yield* Workers.untilTrue(() => worker.told("StoreUnreachable").length > 0, "the outage to be noticed")
      assert.strictEqual((yield* worker.health).status, "degraded")
      yield* Workers.untilTrue(() => worker.told("StoreUnreachable").length === 3, "all calls to notice")
      yield* Effect.sleep(1000)
      const told = worker.told("StoreUnreachable").map((event) => "operation" in event && event.operation)
      assert.deepStrictEqual(told.toSorted(), ["Gate.admit", "Heartbeat", "Wakeups"])
      yield* proxy.heal
      const id = yield* task.enqueue(undefined, { queue: "a7" })
      yield* Workers.settled(id, "completed")
      yield* Workers.eventually(worker.health, ({ status }) => status === "working")
    }))
})

layer(Workers.pollingLayer, { excludeTestServices: true })("Admission without announcements", (it) => {
  it.effect("a job starts within the poll interval", () =>
    Effect.gen(function*() {
      const task = Task.make("polled", { payload })
      const started = yield* Deferred.make<void>()
      const handler = task.toLayer(() => Deferred.succeed(started, undefined).pipe(Effect.asVoid))
      yield* Workers.start(handler, { pollInterval: "300 millis" })
      yield* Effect.sleep(1000)
      yield* task.enqueue(undefined)
      yield* Effect.timeout(Deferred.await(started), "1 minute")
    }))
})
