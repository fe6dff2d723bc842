import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { type Death, DeathCallbacks, type DeathOptions, Retry, Task } from "@headgate/core"
import { TestDatabase, Time } from "@headgate/testkit"
import { Context, Deferred, Effect, Layer, Option, Result, Schema } from "effect"
import { spawn } from "node:child_process"
import { join } from "node:path"
import { Worker } from "../src/Worker.ts"
import * as KilledCaller from "./killed-caller.ts"
import * as Workers from "./Workers.ts"

class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}

/** A task whose every job fails for good, on a queue of its own. */
const fragile = (kind: string) =>
  Task.make(kind, { payload: Schema.Struct({ n: Schema.Int }), error: Broken, queue: kind, maxAttempts: 1 })

type Fragile = ReturnType<typeof fragile>
type Called = Death<{ readonly n: number }, Broken>

const breaking = (task: Fragile) => task.toLayer(({ n }) => Effect.fail(new Broken({ part: `p${n}` })))

/** A worker for the task and for its deaths. */
const startWith = <R>(
  task: Fragile,
  onDeath: (death: Called) => Effect.Effect<unknown, unknown, R>,
  options?: DeathOptions,
  worker?: Parameters<typeof Workers.start>[1]
) => Workers.start(Layer.merge(breaking(task), task.onDeath(onDeath, options)), { queues: [task.kind], ...worker })

const listed = (kind: string, state: "waiting" | "delivered" | "failed") =>
  Effect.map(DeathCallbacks.use((callbacks) => callbacks.list({ kind, state })), ({ items }) => items)

/** Waits until so many deaths of the kind stand in the state. */
const stand = (kind: string, state: "waiting" | "delivered" | "failed", count: number) =>
  Workers.eventually(listed(kind, state), (items) => items.length === count)

const died = Effect.fnUntraced(function*(task: Fragile, n = 1) {
  const id = yield* task.enqueue({ n })
  yield* Workers.settled(id, "archived")
  return id
})

layer(Workers.layer, { excludeTestServices: true })("DeathCallbacks", (it) => {
  it.effect("a death handler is called once the archive is durable, with the reason, the error and the payload", () =>
    Effect.gen(function*() {
      const task = fragile("told")
      const seen = yield* Deferred.make<{ death: Called; state: string; n: number }>()
      yield* startWith(task, (death) =>
        Effect.gen(function*() {
          const { n } = yield* death.payload
          const state = yield* Workers.stateOf(death.jobId)
          yield* Deferred.succeed(seen, { death, state, n })
        }))
      const id = yield* task.enqueue({ n: 7 }, { tags: ["blue"] })
      const { death, n, state } = yield* Effect.timeout(Deferred.await(seen), "25 seconds")
      assert.deepStrictEqual([state, n, death.failure], ["archived", 7, new Broken({ part: "p7" })])
      assert.deepInclude(death, { jobId: id, kind: "told", reason: "exhausted", attempt: 1, call: 1, tags: ["blue"] })
      assert.deepInclude(death.error, { tag: "Broken" })
      yield* stand("told", "delivered", 1)
    }))

  it.effect("two workers call each handler once, whichever of them ran the job", () =>
    Effect.gen(function*() {
      const task = fragile("shared")
      const keys: Array<string> = []
      const note = (death: Called) => Effect.delay(Effect.sync(() => void keys.push(death.key)), 20)
      const options = { concurrency: 3 }
      yield* startWith(task, note, options, { pollInterval: "50 millis" })
      yield* startWith(task, note, options, { pollInterval: "50 millis" })
      yield* task.enqueueAll(Array.from({ length: 40 }, (_, n) => ({ n })))
      yield* stand("shared", "delivered", 40)
      assert.deepStrictEqual([keys.length, new Set(keys).size], [40, 40])
    }))

  it.effect("what a handler enqueues under the key of the death is enqueued once, however often it is called", () =>
    Effect.gen(function*() {
      const task = fragile("enqueues")
      const after = Task.make("after", { payload: Schema.Void, queue: "nobody" })
      let calls = 0
      yield* startWith(
        task,
        (death) =>
          Effect.andThen(
            after.enqueue(undefined, { id: death.key }),
            Effect.suspend(() => ++calls < 3 ? Effect.fail("once more") : Effect.void)
          ),
        { retry: Retry.fixed("1 millis") },
        { pollInterval: "20 millis" }
      )
      yield* died(task)
      yield* stand("enqueues", "delivered", 1)
      assert.deepStrictEqual([calls, yield* Workers.counts("nobody")], [3, { available: 1 }])
    }))

  it.effect("a handler that fails is called again after its delay, and keeps no other kind waiting", () =>
    Effect.gen(function*() {
      const failing = fragile("failing")
      const other = fragile("other")
      const calls: Array<number> = []
      yield* Workers.start(
        Layer.mergeAll(
          breaking(failing),
          breaking(other),
          failing.onDeath(({ call }) =>
            Effect.suspend(() => {
              calls.push(call)
              // Thrown, failed, dead: all the same.
              if (call === 1) throw new Error("thrown")
              return call === 2 ? Effect.fail("failed") : call === 3 ? Effect.die("dead") : Effect.void
            }), { retry: Retry.fixed("1 minute"), concurrency: 1 }),
          other.onDeath(() => Effect.void)
        ),
        { queues: ["failing", "other"], pollInterval: "20 millis" }
      )
      yield* died(failing)
      yield* Workers.eventually(listed("failing", "waiting"), ([item]) => item?.fault?.message === "thrown")
      yield* died(other)
      yield* stand("other", "delivered", 1)
      assert.deepStrictEqual(calls, [1])
      for (const n of [2, 3, 4]) {
        yield* Time.advance("73 seconds")
        yield* Workers.untilTrue(() => calls.length === n, `call ${n}`)
        yield* Workers.eventually(
          listed("failing", "waiting"),
          (items) => items.every(({ worker }) => worker === undefined)
        )
      }
      assert.deepStrictEqual(calls, [1, 2, 3, 4])
      yield* stand("failing", "delivered", 1)
    }))

  it.effect("a handler that fails too often is given up, which is told, and an operator has it called again", () =>
    Effect.gen(function*() {
      const task = fragile("hopeless")
      let isMended = false
      const worker = yield* startWith(
        task,
        () => Effect.suspend(() => isMended ? Effect.void : Effect.fail(new Broken({ part: "handler" }))),
        { retry: Retry.fixed("1 millis"), maxCalls: 3 },
        { pollInterval: "20 millis" }
      )
      const id = yield* died(task)
      yield* stand("hopeless", "failed", 1)
      yield* Workers.untilTrue(() => worker.told("DeathHandlerGaveUp", id).length === 1, "the end to be told")
      const [item] = yield* listed("hopeless", "failed")
      assert.deepInclude(item, { calls: 3, state: "failed" })
      assert.deepInclude(item!.fault, { tag: "Broken" })
      isMended = true
      yield* DeathCallbacks.use((callbacks) => callbacks.retry({ key: item!.key }))
      yield* stand("hopeless", "delivered", 1)
    }))

  it.effect("a handler that is too slow is interrupted and called again", () =>
    Effect.gen(function*() {
      const task = fragile("slow")
      let interrupted = 0
      yield* startWith(task, ({ call }) =>
        call > 1 ? Effect.void : Effect.onInterrupt(Effect.never, () =>
          Effect.sync(() => void interrupted++)), {
        timeout: "1 second",
        retry: Retry.fixed("1 minute")
      }, { pollInterval: "20 millis" })
      yield* died(task)
      yield* Workers.eventually(listed("slow", "waiting"), ([item]) =>
        item?.fault?.tag === "CallTimeout")
      assert.strictEqual(interrupted, 1)
      yield* Time.advance("73 seconds")
      yield* stand("slow", "delivered", 1)
    }))

  it.effect("a call that outlives its claim changes nothing of the one that another worker makes under the same key", () =>
    Effect.gen(function*() {
      const task = fragile("overdue")
      const first = yield* Deferred.make<string>()
      const go = yield* Deferred.make<void>()
      const keys: Array<string> = []
      const slow = yield* startWith(
        task,
        (death) =>
          Deferred.succeed(first, death.key).pipe(
            Effect.andThen(Deferred.await(go)),
            Effect.andThen(Effect.fail("late"))
          )
      )
      yield* died(task)
      const key = yield* Effect.timeout(Deferred.await(first), "25 seconds")
      yield* Time.advance("46 seconds")
      const second = yield* Deferred.make<void>()
      yield* startWith(
        task,
        (death) => Effect.andThen(Effect.sync(() => void keys.push(death.key)), Deferred.await(second))
      )
      yield* Workers.untilTrue(() => keys.length === 1, "the second call")
      yield* Deferred.succeed(go, undefined)
      yield* slow.stop
      const [item] = yield* listed("overdue", "waiting")
      assert.deepStrictEqual([item?.calls, item?.fault?.tag], [2, "CallLost"])
      yield* Deferred.succeed(second, undefined)
      yield* stand("overdue", "delivered", 1)
      assert.deepStrictEqual(keys, [key])
      assert.deepInclude((yield* listed("overdue", "delivered"))[0], { calls: 2, fault: undefined })
    }))

  it.effect("a handler that does not stop keeps the slot of its own kind only, and its death is called again", () =>
    Effect.gen(function*() {
      const task = fragile("deaf")
      const other = fragile("heard")
      const go = yield* Deferred.make<void>()
      let calls = 0
      yield* Workers.start(
        Layer.mergeAll(
          breaking(task),
          breaking(other),
          task.onDeath(() => Effect.uninterruptible(Effect.andThen(Effect.sync(() => ++calls), Deferred.await(go))), {
            timeout: "1 second",
            retry: Retry.fixed("1 millis"),
            concurrency: 1
          }),
          other.onDeath(() => Effect.void)
        ),
        { queues: ["deaf", "heard"], pollInterval: "20 millis" }
      )
      yield* died(task)
      yield* Workers.eventually(listed("deaf", "waiting"), ([item]) => item?.fault?.tag === "CallTimeout")
      yield* died(other)
      yield* stand("heard", "delivered", 1)
      assert.strictEqual(calls, 1)
      yield* Deferred.succeed(go, undefined)
      yield* stand("deaf", "delivered", 1)
    }))

  it.effect("a drain waits for a call, and hands back uncounted what does not end within the grace", () =>
    Effect.gen(function*() {
      const task = fragile("drained")
      const first = yield* Deferred.make<void>()
      const patient = yield* startWith(
        task,
        () => Effect.andThen(Deferred.succeed(first, undefined), Effect.sleep(300)),
        {},
        { shutdownGrace: "30 seconds", pollInterval: "20 millis" }
      )
      yield* died(task)
      yield* Effect.timeout(Deferred.await(first), "25 seconds")
      yield* patient.stop
      yield* stand("drained", "delivered", 1)
      const second = yield* Deferred.make<void>()
      const hasty = yield* startWith(
        task,
        () => Effect.andThen(Deferred.succeed(second, undefined), Effect.never),
        {},
        { shutdownGrace: "50 millis", pollInterval: "20 millis" }
      )
      yield* died(task)
      yield* Effect.timeout(Deferred.await(second), "25 seconds")
      yield* hasty.stop
      assert.deepInclude((yield* listed("drained", "waiting"))[0], { calls: 0, worker: undefined, fault: undefined })
      yield* startWith(task, () => Effect.void)
      yield* stand("drained", "delivered", 2)
    }))

  it.effect("an outage of the store while a handler runs costs no call", () =>
    Effect.gen(function*() {
      const task = fragile("outage")
      const called = yield* Deferred.make<void>()
      const go = yield* Deferred.make<void>()
      const { proxy, use } = yield* Workers.throughProxy()
      const worker = yield* use(startWith(
        task,
        () => Effect.andThen(Deferred.succeed(called, undefined), Deferred.await(go)),
        {},
        { pollInterval: "20 millis" }
      ))
      yield* died(task)
      yield* Effect.timeout(Deferred.await(called), "25 seconds")
      yield* proxy.cut
      yield* Deferred.succeed(go, undefined)
      const hasNoticed = () =>
        worker.events.some((event) => event._tag === "StoreUnreachable" && event.operation === "DeathCallbacks.settle")
      yield* Workers.untilTrue(hasNoticed, "the outage to be met", 20_000)
      yield* proxy.heal
      yield* stand("outage", "delivered", 1)
      assert.deepInclude((yield* listed("outage", "delivered"))[0], { calls: 1, fault: undefined })
    }))

  it.effect("a worker that is told to take no work calls nothing until it resumes", () =>
    Effect.gen(function*() {
      const task = fragile("quiet")
      let calls = 0
      const handlers = Layer.merge(breaking(task), task.onDeath(() => Effect.sync(() => ++calls)))
      const live = Worker.layer({ tasks: [task], pollInterval: "20 millis" }).pipe(Layer.provide(handlers))
      const worker = Context.get(yield* Layer.build(live), Worker)
      yield* worker.quiet
      yield* Workers.start(breaking(task), { queues: ["quiet"] })
      yield* died(task)
      yield* Effect.sleep(200)
      assert.strictEqual(calls, 0)
      yield* worker.resume
      yield* stand("quiet", "delivered", 1)
    }))

  it.effect("a job under an alias of its task is called for, and a payload that does not decode fails where it is read", () =>
    Effect.gen(function*() {
      const old = Task.make("old-name", { payload: Schema.String, queue: "renamed" })
      const task = Task.make("new-name", {
        payload: Schema.Struct({ n: Schema.Int }),
        aliases: ["old-name"],
        queue: "renamed",
        maxAttempts: 1
      })
      const seen = yield* Deferred.make<readonly [string, boolean]>()
      yield* Workers.start(
        Layer.merge(
          task.toLayer(() => Effect.void),
          task.onDeath((death) =>
            Effect.flatMap(
              Effect.result(death.payload),
              (payload) => Deferred.succeed(seen, [death.kind, Result.isFailure(payload)])
            )
          )
        ),
        { queues: ["renamed"], pollInterval: "20 millis" }
      )
      yield* old.enqueue("no struct", { delay: "1 hour", queueTimeout: "1 second" })
      yield* Time.advance("2 hours")
      assert.deepStrictEqual(yield* Effect.timeout(Deferred.await(seen), "25 seconds"), ["old-name", true])
    }))

  it.effect("a worker for some tasks leaves the deaths of others to others", () =>
    Effect.gen(function*() {
      const mine = fragile("mine")
      const theirs = fragile("theirs")
      const handlers = Layer.mergeAll(
        breaking(mine),
        breaking(theirs),
        mine.onDeath(() => Effect.void),
        theirs.onDeath(() => Effect.void)
      )
      yield* Layer.build(Worker.layer({ tasks: [mine], pollInterval: "20 millis" }).pipe(Layer.provide(handlers)))
      yield* DeathCallbacks.use((callbacks) => callbacks.declare(["theirs"]))
      yield* Workers.start(breaking(theirs), { queues: ["theirs"] })
      yield* died(theirs)
      yield* died(mine)
      yield* stand("mine", "delivered", 1)
      assert.lengthOf(yield* listed("theirs", "waiting"), 1)
    }))

  for (
    const [title, killed, expected] of [
      ["between the archive and the call", "before", [1]],
      ["in the middle of the call", "within", [1, 2]]
    ] as const
  ) {
    it.effect(`a process killed ${title} leaves the call to another, under the same key`, () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const sql = yield* PgClient.PgClient
        yield* sql`CREATE TABLE IF NOT EXISTS called (key text, call int, reason text, pid int)`
        yield* sql`DELETE FROM called`
        const script = join(import.meta.dirname, "killed-caller.ts")
        const id = yield* KilledCaller.Mortal.enqueue({ name: killed })
        const child = yield* Effect.acquireRelease(
          Effect.sync(() => spawn(process.execPath, [...process.execArgv, script, url, killed], { stdio: "inherit" })),
          (child) => Effect.sync(() => child.kill("SIGKILL"))
        )
        const calls = sql<
          { key: string; call: number; reason: string; pid: number }
        >`SELECT * FROM called ORDER BY call`
        yield* Workers.settled(id, "archived")
        if (killed === "within") yield* Workers.eventually(calls, (rows) => rows.length === 1, 20_000)
        child.kill("SIGKILL")
        yield* Workers.until(
          Effect.sync(() => child.signalCode === null ? Option.none() : Option.some(true)),
          "the child to die"
        )
        if (killed === "within") yield* Time.advance("46 seconds")
        yield* Workers.start(
          Layer.merge(KilledCaller.handler, KilledCaller.Mortal.onDeath(KilledCaller.say)),
          { pollInterval: "50 millis" }
        )
        const rows = yield* Workers.eventually(calls, (rows) => rows.some(({ pid }) => pid === process.pid))
        assert.deepStrictEqual(rows.map(({ call }) => call), [...expected])
        assert.lengthOf(new Set(rows.map(({ key }) => key)), 1)
        assert.isTrue(rows.every(({ key, reason }) => key.startsWith(`${id}:`) && reason === "skipped"))
      }))
  }
})
