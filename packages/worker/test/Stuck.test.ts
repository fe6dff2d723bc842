import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { ConcurrencyLimit, Job, Once, Output, Progress, Retry, Step, type StuckEvidence, Task } from "@headgate/core"
import { Deferred, Effect, Exit, Logger, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

/** Keeps what `onStuck` is called with. */
const collected = () => {
  const found: Array<StuckEvidence> = []
  return { found, onStuck: (evidence: StuckEvidence) => Effect.sync(() => void found.push(evidence)) }
}

/** The workers that hold duties now. */
const holders = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ holder: string }>`SELECT DISTINCT holder FROM headgate.duty
    WHERE expires_at_ms > headgate.now_ms() AND name <> 'evict' ORDER BY holder`
  return rows.map(({ holder }) => holder)
})

layer(Workers.layer, { excludeTestServices: true })("Stuck", (it) => {
  it.effect("of a handler that does not stop, onStuck and telemetry get the evidence once its grace is over", () =>
    Effect.gen(function*() {
      const task = Task.make("deaf", { payload, timeout: "4 seconds", maxAttempts: 1 })
      const gate = yield* Deferred.make<void>()
      const wait = Effect.fn("waitForGate")(function*() {
        yield* Deferred.await(gate)
      })
      const handler = task.toLayer(() => Step.run("upload", Effect.uninterruptible(wait())))
      const { found, onStuck } = collected()
      const worker = yield* Workers.start(handler, {
        queues: ["s1"],
        concurrency: 2,
        handlerGrace: "200 millis",
        onStuck
      })
      const id = yield* task.enqueue(undefined, { queue: "s1" })
      yield* Workers.settled(id, "archived")
      yield* Workers.untilTrue(() => found.length > 0, "the call")
      const [{ _tag, ...told }] = worker.told("JobStuck", id) as [{ _tag: string } & StuckEvidence]
      assert.deepStrictEqual([_tag, told], ["JobStuck", found[0]])
      const { fibers, fence, runningForMs, stuckForMs, worker: by, loopLagMs, ...facts } = found[0]!
      assert.deepStrictEqual(facts, {
        stage: "not_stopping",
        reason: "timeout",
        jobId: id,
        kind: "deaf",
        queue: "s1",
        attempt: 0,
        steps: ["upload"],
        zombies: 1,
        concurrency: 2
      })
      assert.deepStrictEqual([fence, by, stuckForMs >= 200, runningForMs >= 4200, loopLagMs >= 0], [
        1,
        worker.id,
        true,
        true,
        true
      ])
      const [{ isInterruptible, span, stack, status }] = fibers as [StuckEvidence["fibers"][number]]
      assert.deepStrictEqual([isInterruptible, status, span], [false, "suspended", "waitForGate"])
      assert.isTrue(stack.some((frame) => frame.startsWith("waitForGate at ") && frame.includes("Stuck.test.ts")))
      yield* Deferred.succeed(gate, undefined)
    }))

  it.effect("of an attempt without progress onStuck gets the evidence as it was before the interruption", () =>
    Effect.gen(function*() {
      const task = Task.make("stalled", { payload, stallTimeout: "4 seconds", maxAttempts: 1 })
      const gate = yield* Deferred.make<void>()
      const handler = task.toLayer(() =>
        Effect.gen(function*() {
          yield* Effect.sleep(150)
          yield* Progress.report({ current: 1, total: 2 })
          yield* Effect.withSpan(Effect.ensuring(Effect.never, Deferred.await(gate)), "waiting for nobody")
        })
      )
      const { found, onStuck } = collected()
      const worker = yield* Workers.start(handler, { queues: ["s2"], handlerGrace: "200 millis", onStuck })
      const id = yield* task.enqueue(undefined, { queue: "s2" })
      yield* Workers.settled(id, "archived")
      yield* Workers.untilTrue(() => found.length === 2, "two calls")
      assert.deepStrictEqual(found.map(({ reason, stage }) => [stage, reason]), [
        ["stalled", "progress_stalled"],
        ["not_stopping", "progress_stalled"]
      ])
      const [stalled, deaf] = found as [StuckEvidence, StuckEvidence]
      assert.deepStrictEqual(
        [stalled.fibers[0]?.isInterruptible, stalled.fibers[0]?.span, stalled.zombies],
        [true, "waiting for nobody", 0]
      )
      assert.isAbove(stalled.runningForMs - stalled.stuckForMs, 100, "since its last progress, not since its start")
      assert.deepStrictEqual([deaf.fibers[0]?.isInterruptible, deaf.zombies], [false, 1])
      assert.strictEqual(worker.told("JobStuck", id).length, 2)
      yield* Deferred.succeed(gate, undefined)
    }))

  it.effect("of a handler deaf to its timeout no write is stored once its retry may start, which has the only slot to itself", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`CREATE TABLE tick (fence int NOT NULL)`
      const task = Task.make("deaf-writer", {
        payload,
        success: Schema.String,
        timeout: "5 seconds",
        retry: Retry.fixed("100 millis"),
        maxAttempts: 2,
        limits: [ConcurrencyLimit.make("s7", { scope: "kind", kind: "deaf-writer", max: 1 })]
      })
      const answers: Record<string, Array<string>> = { early: [], late: [] }
      const isOver = yield* Deferred.make<void>()
      const isDone = yield* Deferred.make<void>()
      let phase = "early"
      const tried = <E, R>(what: string, effect: Effect.Effect<unknown, E, R>) =>
        Effect.map(
          Effect.exit(effect),
          (exit) => void answers[phase]?.push(`${what} ${Exit.isSuccess(exit) ? "stored" : "refused"}`)
        )
      const tick = (fence: number) => Effect.asVoid(sql`INSERT INTO tick VALUES (${fence})`)
      /** By every door, once. */
      const write = (key: string, fence: number) =>
        Effect.all([
          tried("progress", Progress.report({ current: fence, total: 2 })),
          tried("output", Output.put(Schema.Int, fence)),
          tried("step", Step.run("step", Effect.void, { key })),
          tried("once", Once.run("once", tick(fence), { key })),
          tried("completion", key === "late" ? task.completeWith(Effect.as(tick(fence), "first")) : Effect.void)
        ])
      let zombies: Effect.Effect<number> = Effect.succeed(-1)
      const zombiesAtRetry: Array<number> = []
      const handler = task.toLayer(Effect.fn(function*() {
        const { fence } = yield* Job.facts
        if (fence > 1) {
          zombiesAtRetry.push(yield* zombies)
          phase = "late"
          yield* Deferred.succeed(isOver, undefined)
          yield* Deferred.await(isDone)
          yield* Progress.report({ current: 2, total: 2 })
          yield* Output.put(Schema.Int, 2)
          yield* Once.run("once", tick(2), { key: "second" })
          return "second"
        }
        yield* write("early", fence)
        yield* Effect.uninterruptible(Effect.gen(function*() {
          yield* Deferred.await(isOver)
          yield* write("late", fence)
          yield* Deferred.succeed(isDone, undefined)
        }))
        return "first"
      }))
      const worker = yield* Workers.start(handler, { queues: ["s7"], concurrency: 2, handlerGrace: "300 millis" })
      zombies = Effect.map(worker.health, (health) => health.zombies)
      const id = yield* task.enqueue(undefined, { queue: "s7" })
      yield* Workers.settled(id, "completed")
      const doors = ["progress", "output", "step", "once", "completion"]
      assert.deepStrictEqual(answers, {
        early: doors.map((door) => `${door} stored`),
        late: doors.map((door) => `${door} refused`)
      })
      assert.deepStrictEqual(zombiesAtRetry, [1], "its handler was given up before the retry started")
      assert.deepStrictEqual((yield* Workers.attempts(id)).map(({ outcome }) => outcome), ["timed_out", "success"])
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
      const [row] = yield* sql<{ current: number; fence: bigint; output: string; result: string }>`SELECT p.current,
        p.fence, convert_from(o.bytes, 'UTF8') AS output, convert_from(j.result, 'UTF8') AS result
        FROM headgate.job j JOIN headgate.progress p ON p.job_id = j.id JOIN headgate.output o ON o.job_id = j.id
        WHERE j.id = ${id}`
      assert.deepStrictEqual({ ...row, current: Number(row?.current) }, {
        current: 2,
        fence: 2n,
        output: "2",
        result: "\"second\""
      })
      const steps = yield* sql<
        { step: string }
      >`SELECT step FROM headgate.step WHERE job_id = ${id} AND step LIKE '%late%'`
      const ticks = yield* sql<{ fence: number }>`SELECT fence FROM tick ORDER BY fence`
      assert.deepStrictEqual([steps, ticks.map(({ fence }) => fence)], [[], [1, 2]])
    }))

  it.effect("finalizers that hang, and children, are seen too", () =>
    Effect.gen(function*() {
      const task = Task.make("cleaning", { payload: Schema.Boolean, timeout: "2 seconds", maxAttempts: 1 })
      const gate = yield* Deferred.make<void>()
      const named = (name: string) => Effect.withSpan(Effect.uninterruptible(Deferred.await(gate)), name)
      const handler = task.toLayer((isInScope) =>
        isInScope
          ? Effect.addFinalizer(() => named("unlock"))
          : Effect.andThen(Effect.forkChild(named("child")), Effect.uninterruptible(Deferred.await(gate)))
      )
      const { found, onStuck } = collected()
      yield* Workers.start(handler, { queues: ["s3"], handlerGrace: "200 millis", onStuck })
      yield* task.enqueueAll([true, false], { queue: "s3" })
      yield* Workers.untilTrue(() => found.length === 2, "two calls")
      const spans = Object.fromEntries(found.map(({ fibers, reason }) => [reason, fibers.map(({ span }) => span)]))
      assert.deepStrictEqual(spans, { finalizers: ["unlock"], timeout: [undefined, "child"] })
      yield* Deferred.succeed(gate, undefined)
    }))

  it.effect("what blocked the event loop shows in the evidence", () =>
    Effect.gen(function*() {
      const task = Task.make("blocks", { payload, timeout: "150 millis", maxAttempts: 1 })
      const gate = yield* Deferred.make<void>()
      const handler = task.toLayer(() =>
        Effect.uninterruptible(Effect.andThen(Effect.sync(() => Workers.block(1800)), Deferred.await(gate)))
      )
      const { found, onStuck } = collected()
      yield* Workers.start(handler, { queues: ["s4"], handlerGrace: "200 millis", onStuck })
      yield* task.enqueue(undefined, { queue: "s4" })
      yield* Workers.untilTrue(() => found.length === 1, "the call")
      assert.isAtLeast(found[0]!.loopLagMs, 600)
      yield* Deferred.succeed(gate, undefined)
    }))

  it.effect("an onStuck that throws, fails, dies or hangs is logged and harms nothing", () =>
    Effect.gen(function*() {
      const hows = ["throws", "fails", "dies", "hangs", "is deaf"] as const
      const stuck = Task.make("stuck", { payload: Schema.Literals(hows), timeout: "1 second", maxAttempts: 1 })
      const other = Task.make("other", { payload })
      const gate = yield* Deferred.make<void>()
      const ids = new Map<string, typeof hows[number]>()
      const onStuck = ({ jobId }: StuckEvidence): Effect.Effect<void, unknown> => {
        switch (ids.get(jobId)) {
          case "throws":
            throw new Error("thrown")
          case "fails":
            return Effect.fail("failed")
          case "dies":
            return Effect.die("dead")
          case "hangs":
            return Effect.never
          default:
            return Effect.uninterruptible(Effect.never)
        }
      }
      const lines: Array<string> = []
      const logger = Logger.layer([Logger.make(({ message }) => void lines.push(String(message)))])
      const handlers = stuck.toLayer(() => Effect.uninterruptible(Deferred.await(gate)))
      const options = { concurrency: 6, handlerGrace: "200 millis", onStuck } as const
      const worker = yield* Workers.start(handlers, { queues: ["s5"], ...options }).pipe(Effect.provide(logger))
      yield* Workers.start(other.toLayer(() => Effect.void), { queues: ["s6"] })
      for (const how of hows) {
        const id = `stuck-${how.replace(" ", "-")}`
        ids.set(id, how)
        yield* stuck.enqueue(how, { queue: "s5", id })
      }
      for (const id of ids.keys()) yield* Workers.settled(id, "archived")
      const logged = () => lines.filter((line) => line.startsWith("onStuck"))
      yield* Workers.untilTrue(() => logged().length === 5, "all to be logged")
      assert.strictEqual(logged().filter((line) => line.includes("did not end within 200 ms")).length, 2)
      assert.deepInclude(yield* worker.health, { status: "degraded", zombies: 5 })
      yield* Workers.settled(yield* other.enqueue(undefined, { queue: "s6" }), "completed")
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.eventually(worker.health, ({ status }) => status === "working")
    }))
})

layer(Workers.layer, { excludeTestServices: true })(
  "A worker whose slots are all taken by handlers that do not stop",
  (it) => {
    it.effect("hands over what waits there and its duties, claims nothing, and is back at work when a slot comes free", () =>
      Effect.gen(function*() {
        const deaf = Task.make("deaf", { payload, timeout: "1 second", maxAttempts: 1 })
        const gate = yield* Deferred.make<void>()
        const options = { queues: ["h1"], concurrency: 1, pollInterval: "50 millis", lease: "1 minute" } as const
        const deafHandler = deaf.toLayer(() => Effect.uninterruptible(Deferred.await(gate)))
        const stuck = yield* Workers.start(deafHandler, { ...options, prefetch: 3, handlerGrace: "6 seconds" })
        yield* Workers.eventually(holders, (who) => who.length === 1 && who[0] === stuck.id)
        const id = yield* deaf.enqueue(undefined, { queue: "h1" })
        yield* Workers.begins(id)
        const waiting = yield* deaf.enqueueAll([undefined, undefined, undefined], { queue: "h1" })
        yield* Workers.eventually(stuck.health, ({ buffered }) => buffered === 3)
        yield* Workers.eventually(stuck.health, ({ status }) => status === "stuck")
        yield* Workers.eventually(Workers.counts("h1"), ({ available }) => available === 3)
        const next = yield* Workers.start(deaf.toLayer(() => Effect.void), { ...options, id: "next" })
        for (const id of waiting) {
          yield* Workers.settled(id, "completed")
          // Once here and once there: handed back, they were not claimed here again.
          assert.strictEqual((yield* Workers.job(id)).fence, 2)
        }
        yield* Workers.eventually(holders, (who) => who.length === 1 && who[0] === next.id)
        assert.deepInclude(yield* stuck.health, { status: "stuck", buffered: 0, running: 0 })
        yield* next.stop
        const late = yield* deaf.enqueue(undefined, { queue: "h1", timeout: "1 minute" })
        assert.strictEqual(yield* Workers.stateOf(late), "available")
        yield* Deferred.succeed(gate, undefined)
        yield* Workers.settled(late, "completed")
        yield* Workers.eventually(holders, (who) => who.length === 1 && who[0] === stuck.id)
        assert.deepInclude(yield* stuck.health, { status: "working", zombies: 0 })
      }))
  }
)
