import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Inspect, Job, Task, type WorkerCommand, WorkerControl, WorkerId } from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Deferred, Effect, Fiber, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

/** Outlasts a stall of a busy machine. */
const LEASE_MS = 6000
const BEAT_MS = LEASE_MS / 4
const lease = LEASE_MS

const tell = (worker: { readonly id: string }, command: WorkerCommand) =>
  WorkerControl.use((control) => control.tell(WorkerId.make(worker.id), command, "ada"))

const listed = (worker: { readonly id: string }) =>
  Effect.map(Inspect.use(({ workers }) => workers), (all) => all.find(({ id }) => id === worker.id))

const duties = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ name: string; holder: string }>`SELECT name, holder FROM headgate.duty ORDER BY name`
})

const hasStatus = (worker: { readonly health: Effect.Effect<{ readonly status: string }> }, status: string) =>
  Workers.eventually(worker.health, (health) => health.status === status)

/** Handlers that end when `open` does. */
const gated = Effect.fnUntraced(function*(kind: string) {
  const task = Task.make(kind, { payload })
  const open = yield* Deferred.make<void>()
  return { task, open: Deferred.succeed(open, undefined), handler: task.toLayer(() => Deferred.await(open)) }
})

layer(Workers.layer, { excludeTestServices: true })("A worker that is told", (it) => {
  it.effect("quiet takes no more work and hands back what had not started; what runs goes on, until it is to resume", () =>
    Effect.gen(function*() {
      const { handler, open, task } = yield* gated("quiet")
      const worker = yield* Workers.start(handler, { queues: ["s1"], lease, concurrency: 1, prefetch: 3 })
      const [running, ...buffered] = yield* task.enqueueAll(Array.from({ length: 3 }), { queue: "s1" })
      yield* Workers.eventually(worker.health, (health) => health.running === 1 && health.buffered === 2)
      yield* tell(worker, "quiet")
      const toldAt = monotonicMs()
      yield* hasStatus(worker, "quiet")
      Workers.within("a worker was quiet", monotonicMs() - toldAt, 2 * BEAT_MS + 300)
      for (const id of buffered) yield* Workers.settled(id, "available")
      yield* Workers.eventually(listed(worker), (row) => row?.command?.isApplied === true)
      assert.deepInclude(yield* listed(worker), { status: "quiet", isLive: true, running: 1 })
      assert.deepInclude(worker.told("WorkerTold")[0], { worker: worker.id, command: "quiet", actor: "ada" })
      const fences = Effect.forEach(buffered, (id) => Effect.map(Workers.job(id), ({ fence }) => fence))
      const handedBackAt = yield* fences
      // Longer than a lease and many polls.
      yield* Effect.sleep(LEASE_MS + 500)
      assert.deepStrictEqual(yield* Workers.counts("s1"), { available: 2, running: 1 })
      assert.deepStrictEqual(yield* fences, handedBackAt)
      yield* open
      yield* Workers.settled(running!, "completed")
      assert.deepStrictEqual(yield* Workers.counters(running!), { attempt: 0, crashAttempt: 0 })
      yield* Effect.sleep(600)
      assert.deepStrictEqual(yield* Workers.counts("s1"), { available: 2, completed: 1 })
      yield* tell(worker, "resume")
      for (const id of buffered) yield* Workers.settled(id, "completed")
      yield* hasStatus(worker, "working")
    }))

  it.effect("quiet by its own program is seen by operators, who can have it resume", () =>
    Effect.gen(function*() {
      const task = Task.make("own", { payload })
      const worker = yield* Workers.start(task.toLayer(() => Effect.void), { queues: ["s2"], lease })
      yield* worker.worker.quiet
      yield* hasStatus(worker, "quiet")
      yield* Workers.eventually(listed(worker), (row) => row?.status === "quiet")
      const id = yield* task.enqueue(undefined, { queue: "s2" })
      yield* Effect.sleep(600)
      assert.strictEqual(yield* Workers.stateOf(id), "available")
      yield* tell(worker, "resume")
      yield* Workers.settled(id, "completed")
      yield* worker.worker.quiet
      yield* worker.worker.resume
      yield* Workers.settled(yield* task.enqueue(undefined, { queue: "s2" }), "completed")
    }))

  it.effect("hands back what a call of the gate brings that was under way when it became quiet", () =>
    Effect.gen(function*() {
      const task = Task.make("late", { payload })
      const sql = yield* PgClient.PgClient
      let ran = 0
      const worker = yield* Workers.start(task.toLayer(() => Effect.sync(() => void ran++)), { queues: ["s3"] })
      yield* worker.worker.quiet
      const id = yield* task.enqueue(undefined, { queue: "s3" })
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`LOCK TABLE headgate.job IN SHARE MODE`
        yield* worker.worker.resume
        const waits = sql<{ n: number }>`SELECT count(*)::int AS n FROM pg_locks
          WHERE NOT granted AND relation = 'headgate.job'::regclass`
        yield* Workers.eventually(waits, ([row]) => row!.n > 0)
        yield* worker.worker.quiet
      }))
      yield* Workers.eventually(Workers.job(id), ({ fence, state }) => fence === 1 && state === "available")
      assert.strictEqual(ran, 0)
    }))

  it.effect("to resign gives its duties to another, and takes none back before it is to resume", () =>
    Effect.gen(function*() {
      const handler = Task.make("idle", { payload }).toLayer(() => Effect.void)
      const first = yield* Workers.start(handler, { queues: ["s4"], lease, id: "first" })
      yield* Workers.eventually(duties, (rows) => rows.length >= 7 && rows.every(({ holder }) => holder === "first"))
      const second = yield* Workers.start(handler, { queues: ["s4"], lease, id: "second" })
      yield* tell(first, "resign")
      const areGivenUp = (rows: ReadonlyArray<{ readonly holder: string }>) =>
        rows.every(({ holder }) => holder === "second") && rows.length >= 4
      yield* Workers.eventually(duties, areGivenUp)
      yield* Workers.eventually(listed(first), (row) => row?.isResigned === true && row.status === "working")
      // Nobody else is there to do them.
      yield* second.stop
      yield* Effect.sleep(1500)
      assert.deepStrictEqual(yield* duties, [])
      yield* tell(first, "resume")
      yield* Workers.eventually(duties, (rows) => rows.some(({ holder }) => holder === "first"))
    }))

  it.effect("to restart lets its handlers take their time, and has ended then", () =>
    Effect.gen(function*() {
      const { handler, open, task } = yield* gated("restart")
      const worker = yield* Workers.start(handler, { queues: ["s5"], lease, shutdownGrace: "100 millis" })
      const id = yield* task.enqueue(undefined, { queue: "s5" })
      yield* Workers.begins(id)
      const ended = yield* Effect.forkChild(worker.worker.ended)
      yield* tell(worker, "restart")
      yield* hasStatus(worker, "draining")
      yield* Workers.eventually(listed(worker), (row) => row?.status === "draining" && row.command?.isApplied === true)
      const late = yield* task.enqueue(undefined, { queue: "s5" })
      // Longer than its lease, and many times its grace.
      yield* Effect.sleep(LEASE_MS + 500)
      assert.deepStrictEqual(yield* Effect.forEach([id, late], Workers.stateOf), ["running", "available"])
      assert.isUndefined(ended.pollUnsafe())
      yield* open
      yield* Workers.settled(id, "completed")
      assert.strictEqual(yield* Workers.joined(ended), "restart")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("to terminate drains within its grace, also where it drains already without bound", () =>
    Effect.gen(function*() {
      const task = Task.make("terminate", { payload })
      const reason = yield* Deferred.make<string | undefined>()
      const handler = task.toLayer(() =>
        Effect.onInterrupt(
          Effect.never,
          () => Effect.flatMap(Job.interruption, (why) => Deferred.succeed(reason, Option.getOrUndefined(why)))
        )
      )
      const worker = yield* Workers.start(handler, { queues: ["s6"], lease, shutdownGrace: "700 millis" })
      const id = yield* task.enqueue(undefined, { queue: "s6" })
      yield* Workers.begins(id)
      yield* tell(worker, "restart")
      yield* hasStatus(worker, "draining")
      yield* tell(worker, "terminate")
      const toldAt = monotonicMs()
      yield* Effect.timeout(worker.worker.ended, "1 minute")
      Workers.within("a worker told to terminate had ended", monotonicMs() - toldAt, BEAT_MS + 700 + 800)
      assert.deepStrictEqual([yield* Deferred.await(reason), yield* Workers.stateOf(id)], ["shutdown", "available"])
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
    }))

  it.effect("the end of its scope bounds a drain without bound", () =>
    Effect.gen(function*() {
      const task = Task.make("bounded", { payload })
      const worker = yield* Workers.start(task.toLayer(() => Effect.never), {
        queues: ["s7"],
        lease,
        shutdownGrace: "200 millis"
      })
      const id = yield* task.enqueue(undefined, { queue: "s7" })
      yield* Workers.begins(id)
      yield* tell(worker, "restart")
      yield* hasStatus(worker, "draining")
      const stoppedAt = monotonicMs()
      yield* worker.stop
      Workers.within("a worker had drained", monotonicMs() - stoppedAt, 1200)
      assert.strictEqual(yield* Workers.stateOf(id), "available")
    }))

  it.effect("is draining as soon as its scope begins to close, whatever closes before it", () =>
    Effect.gen(function*() {
      const { handler, open, task } = yield* gated("at-once")
      const worker = yield* Workers.start(handler, { queues: ["s8"], lease, shutdownGrace: "30 seconds" })
      yield* Workers.begins(yield* task.enqueue(undefined, { queue: "s8" }))
      const stopping = yield* Effect.forkChild(worker.stop, { startImmediately: true })
      assert.strictEqual((yield* worker.health).status, "draining")
      yield* open
      yield* Fiber.join(stopping)
    }))
})
