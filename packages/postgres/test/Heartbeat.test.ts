import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import { Heartbeat as HeartbeatContract, type HeartbeatOptions, monotonicMs } from "@headgate/core/Heartbeat"
import { Inspect } from "@headgate/core/Inspect"
import { Leases as LeasesContract } from "@headgate/core/Leases"
import * as Announcer from "@headgate/postgres/Announcer"
import * as ControlSql from "@headgate/postgres/ControlSql"
import * as Heartbeat from "@headgate/postgres/Heartbeat"
import * as HeartbeatThread from "@headgate/postgres/HeartbeatThread"
import * as Leases from "@headgate/postgres/Leases"
import { defaults } from "@headgate/postgres/Settings"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Effect, Fiber, Layer, Logger, Option, Queue, Redacted, Schedule } from "effect"
import { execFile } from "node:child_process"
import { fileURLToPath } from "node:url"
import { Worker } from "node:worker_threads"
import * as Jobs from "./Jobs.ts"

const leaseMs = 1000
/** Of leases that have to be kept: a busy machine may stand still for seconds. */
const steadyMs = 6000
const { fence } = Jobs.lease("any")
const options: HeartbeatOptions = {
  worker: Jobs.workerId("w1"),
  queues: ["default"],
  kinds: [{ kind: "greet", version: 2 }],
  capacity: 8,
  leaseMs,
  maxBlockedMs: 10 * leaseMs
}

/** A running job under a fresh lease, tracked. */
const begin = Effect.fnUntraced(function*(id: string, changes: Partial<HeartbeatOptions> = {}) {
  const heartbeat = yield* HeartbeatContract
  const session = yield* heartbeat.start({ ...options, ...changes })
  const sentAt = monotonicMs()
  yield* running(id, 1, changes.leaseMs)
  return { session, tracked: session.track(Jobs.lease(id), sentAt), sentAt }
})

const running = (id: string, fence = 1, forMs = leaseMs) =>
  Effect.gen(function*() {
    const pg = yield* PgClient.PgClient
    yield* Jobs.seed({ id, state: "running", fence })
    yield* pg`UPDATE headgate.job SET lease_expires_at_ms = headgate.now_ms() + ${forMs} WHERE id = ${id}`
  })

/** Milliseconds left of the lease in the store. */
const leftInStore = Effect.fnUntraced(function*(id: string) {
  const pg = yield* PgClient.PgClient
  const [row] = yield* pg<
    { left: bigint }
  >`SELECT lease_expires_at_ms - headgate.now_ms() AS left FROM headgate.job WHERE id = ${id}`
  return Number(row?.left)
})

/** Blocks this thread and everything on it, and leaves the processor to others. */
const block = (millis: number) =>
  Effect.sync(() => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, millis))

/** A sweeper on a thread of its own, which ends when it is asked what it has reclaimed. */
const sweeper = Effect.gen(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const pg = yield* PgClient.PgClient
  yield* pg`DELETE FROM headgate.job`
  const worker = new Worker(new URL("./reclaim-thread.ts", import.meta.url), {
    workerData: { url },
    execArgv: ["--disable-warning=ExperimentalWarning"]
  })
  yield* Effect.addFinalizer(() => Effect.promise(() => worker.terminate()))
  const heard: Array<unknown> = []
  worker.on("message", (message) => void heard.push(message))
  const until = (done: () => boolean) =>
    Effect.repeat(Effect.sync(done), { until: (isDone) => isDone, schedule: Schedule.spaced(10) }).pipe(
      Effect.timeout("1 minute")
    )
  yield* until(() => heard.length > 0)
  return Effect.sync(() => worker.postMessage("end")).pipe(
    Effect.andThen(until(() => Array.isArray(heard.at(-1)))),
    Effect.andThen(Effect.sync(() => heard.at(-1)))
  )
})

const build = Effect.fnUntraced(function*(config: Partial<PgClient.PgPoolConfig>) {
  const { url } = yield* TestDatabase.TestDatabase
  const store = Heartbeat.layer.pipe(
    Layer.provideMerge(Leases.layer),
    Layer.provideMerge(Announcer.layer),
    Layer.provideMerge(ControlSql.layer),
    Layer.provide(PgClient.layer({ url: Redacted.make(url), maxConnections: 2, ...config }))
  )
  return yield* Layer.buildWithMemoMap(store, Layer.makeMemoMapUnsafe(), yield* Effect.scope)
})

const eventually = <A, E, R>(read: Effect.Effect<A, E, R>, isRight: (value: A) => boolean) =>
  Effect.timeout(Effect.repeat(read, { until: isRight, schedule: Schedule.spaced(20) }), "1 minute")

const listed = Effect.gen(function*() {
  const workers = yield* Inspect.use((inspect) => inspect.workers)
  return workers.find(({ id }) => id === "w1")
})

layer(Heartbeat.layer.pipe(Layer.provideMerge(Jobs.layer)), { excludeTestServices: true })("Heartbeat", (it) => {
  it.effect("a lease whose row somebody else holds is not believed longer than the store has it", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const { session, tracked } = yield* begin("held")
      const [inStore, believed] = yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`SELECT 1 FROM headgate.job WHERE id = 'held' FOR UPDATE`
        yield* Effect.sleep(leaseMs)
        return [yield* leftInStore("held"), tracked.validUntil() - monotonicMs()] as const
      }))
      assert.isAtMost(believed, inStore)
      assert.strictEqual(yield* Queue.size(session.lost), 0)
    }).pipe(Effect.scoped))

  it.effect("a loop that is blocked for three leases, from the turn it got the job in, loses nothing", () =>
    Effect.gen(function*() {
      const swept = yield* sweeper
      const { session, tracked } = yield* begin("blocked", { leaseMs: steadyMs, maxBlockedMs: 10 * steadyMs })
      yield* block(3 * steadyMs)
      // It may be held up just now, with all of its process.
      yield* eventually(Effect.sync(() => tracked.validUntil() - monotonicMs()), (left) => left > 0)
      yield* eventually(leftInStore("blocked"), (left) => left > 0)
      assert.deepStrictEqual(yield* swept, [])
      assert.strictEqual(yield* Queue.size(session.lost), 0)
    }).pipe(Effect.scoped))

  it.effect("a lease that was extended outlasts a loop that is blocked beyond its tolerance", () =>
    Effect.gen(function*() {
      const swept = yield* sweeper
      const { tracked } = yield* begin("extended", { maxBlockedMs: 0 })
      const sentAt = monotonicMs()
      yield* LeasesContract.use((leases) => leases.renew([Jobs.lease("extended")], 60 * leaseMs))
      tracked.extended(sentAt, 60 * leaseMs)
      tracked.extended(sentAt)
      yield* block(3 * leaseMs)
      assert.isAtLeast(tracked.validUntil(), sentAt + 60 * leaseMs)
      // Beats renew by one lease from now on, and leave what is longer.
      yield* Effect.sleep(leaseMs)
      assert.isAbove(yield* leftInStore("extended"), 30 * leaseMs)
      assert.deepStrictEqual(yield* swept, [])
    }).pipe(Effect.scoped))

  it.effect("without tolerance for blocking, a blocked loop loses its lease when it runs out, and is told", () =>
    Effect.gen(function*() {
      const swept = yield* sweeper
      const { session, tracked } = yield* begin("unblocked", { leaseMs: steadyMs, maxBlockedMs: 0 })
      const until = tracked.validUntil()
      yield* eventually(Effect.sync(tracked.validUntil), (now) => now > until)
      yield* block(2 * steadyMs)
      assert.isBelow(tracked.validUntil(), monotonicMs())
      assert.deepStrictEqual(yield* swept, ["unblocked"])
      const lost = yield* Effect.timeout(Queue.take(session.lost), "1 minute")
      assert.deepStrictEqual(lost, { jobId: Jobs.jobId("unblocked"), fence, reason: "lease_lost" })
    }).pipe(Effect.scoped))

  it.effect("a loop that is blocked beyond its tolerance loses its lease, and is told", () =>
    Effect.gen(function*() {
      const swept = yield* sweeper
      const { session, tracked } = yield* begin("wedged", { leaseMs: steadyMs, maxBlockedMs: steadyMs })
      const blockedAt = monotonicMs()
      yield* block(3 * steadyMs)
      assert.isBelow(tracked.validUntil(), monotonicMs())
      assert.isAbove(tracked.validUntil() - blockedAt, 1.25 * steadyMs, "renewed as long as it was tolerated")
      assert.deepStrictEqual(yield* swept, ["wedged"])
      const lost = yield* Effect.timeout(Queue.take(session.lost), "1 minute")
      assert.deepStrictEqual(lost, { jobId: Jobs.jobId("wedged"), fence, reason: "lease_lost" })
    }).pipe(Effect.scoped))

  it.effect("a job that an operator cancels is reported within one beat, once", () =>
    Effect.gen(function*() {
      const { session } = yield* begin("cancelled")
      yield* Effect.sleep(leaseMs / 2)
      yield* Control.use((control) => control.cancel(Jobs.jobId("cancelled")))
      const cancelledAt = monotonicMs()
      const lost = yield* Effect.timeout(Queue.take(session.lost), "1 minute")
      const took = Math.round(monotonicMs() - cancelledAt)
      console.log(`a cancel was told: ${took} ms, of at most ${leaseMs / 4 + 200} ms on a quiet machine`)
      assert.deepStrictEqual(lost, { jobId: Jobs.jobId("cancelled"), fence, reason: "operator_cancel" })
      assert.isTrue(Option.isNone(yield* Effect.timeoutOption(Queue.take(session.lost), leaseMs)))
    }).pipe(Effect.scoped))

  it.effect("a job that ended is neither renewed nor reported lost", () =>
    Effect.gen(function*() {
      const { session, tracked } = yield* begin("ended")
      yield* Effect.sleep(leaseMs / 2)
      tracked.end()
      const until = tracked.validUntil()
      yield* Control.use((control) => control.cancel(Jobs.jobId("ended")))
      assert.isTrue(Option.isNone(yield* Effect.timeoutOption(Queue.take(session.lost), leaseMs)))
      assert.strictEqual(tracked.validUntil(), until)
    }).pipe(Effect.scoped))

  it.effect("a job that ends while its loss is being reported has nothing left to lose", () =>
    Effect.gen(function*() {
      const { session, tracked } = yield* begin("reported")
      yield* Effect.sleep(leaseMs / 2)
      yield* Control.use((control) => control.cancel(Jobs.jobId("reported")))
      yield* block(leaseMs / 2)
      tracked.end()
      assert.isTrue(Option.isNone(yield* Effect.timeoutOption(Queue.take(session.lost), leaseMs / 2)))
    }).pipe(Effect.scoped))

  it.effect("a job that came back to the same worker is renewed under its new lease, and its old one is lost", () =>
    Effect.gen(function*() {
      const heartbeat = yield* HeartbeatContract
      const session = yield* heartbeat.start(options)
      yield* running("back", 2)
      const old = session.track(Jobs.lease("back", 1), monotonicMs())
      const current = session.track(Jobs.lease("back", 2), monotonicMs())
      assert.deepStrictEqual(yield* Effect.timeout(Queue.take(session.lost), "1 minute"), {
        jobId: Jobs.jobId("back"),
        fence,
        reason: "lease_lost"
      })
      yield* Effect.sleep(leaseMs)
      yield* eventually(Effect.sync(() => current.validUntil() > monotonicMs()), (isHeld) => isHeld)
      assert.isBelow(old.validUntil(), monotonicMs())
      assert.strictEqual(yield* Queue.size(session.lost), 0)
    }).pipe(Effect.scoped))

  it.effect("a lease counts from when its renewal was sent; an accepted checkpoint extends it as well", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const context = yield* build({ url: Redacted.make(proxy.url) })
      const long = { leaseMs: 3000 }
      const { sentAt, tracked } = yield* begin("sent", long).pipe(Effect.provideContext(context))
      assert.strictEqual(tracked.validUntil(), sentAt + long.leaseMs)
      tracked.extended(sentAt + 100)
      tracked.extended(sentAt + 50)
      assert.strictEqual(tracked.validUntil(), sentAt + 100 + long.leaseMs)
      yield* proxy.delay(300)
      yield* Effect.sleep(1500)
      let most = Number.NEGATIVE_INFINITY
      for (let renewals = 0; renewals < 2;) {
        const before = tracked.validUntil()
        yield* Effect.sleep(10)
        const until = tracked.validUntil()
        if (until > before) renewals++
        most = Math.max(most, until - monotonicMs())
      }
      assert.isBelow(most, long.leaseMs - 550)
    }).pipe(Effect.scoped))

  it.effect("a database that is away for less than a lease is told once, and costs no lease", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const context = yield* build({ url: Redacted.make(proxy.url) })
      const { session, tracked } = yield* begin("away", { leaseMs: 2 * steadyMs }).pipe(Effect.provideContext(context))
      const told: Array<string | undefined> = []
      const tells = (isWanted: boolean) =>
        Effect.repeat(Effect.map(Queue.take(session.beats!), (fault) => told.push(fault?._tag)), {
          until: () => (told.at(-1) === "StoreUnavailable") === isWanted
        }).pipe(Effect.timeout("1 minute"))
      yield* tells(false)
      yield* proxy.cut
      yield* tells(true)
      yield* Effect.sleep(900)
      yield* proxy.heal
      yield* tells(false)
      yield* eventually(Effect.sync(() => tracked.validUntil() - monotonicMs()), (left) => left > 0)
      yield* eventually(leftInStore("away"), (left) => left > 0)
      assert.strictEqual(yield* Queue.size(session.lost), 0)
      assert.deepStrictEqual(told.filter((tag, at) => at > 0 && tag === told[at - 1]), [], "told again")
    }).pipe(Effect.scoped))

  it.effect("a connection that goes silent is overtaken by another one before the lease runs out", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const context = yield* build({ url: Redacted.make(proxy.url) })
      const { tracked } = yield* begin("silent", { leaseMs: 2 * steadyMs }).pipe(Effect.provideContext(context))
      const first = tracked.validUntil()
      yield* eventually(Effect.sync(tracked.validUntil), (until) => until > first)
      yield* proxy.blackhole
      yield* Effect.sleep(0.35 * 2 * steadyMs)
      const last = tracked.validUntil()
      yield* proxy.heal
      yield* eventually(Effect.sync(tracked.validUntil), (until) => until > last)
      assert.isBelow(monotonicMs(), last)
    }).pipe(Effect.scoped))

  it.effect("while the database answers, the thread has one connection", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const [since] = yield* pg<{ at: string }>`SELECT clock_timestamp()::text AS at`
      // Those of earlier tests may still be on their way out.
      const connections = Effect.map(
        pg<{ n: number }>`SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = 'headgate'
          AND datname = current_database() AND backend_start > ${since!.at}::text::timestamptz`,
        ([row]) => row?.n ?? 0
      )
      const context = yield* build({})
      const { tracked } = yield* begin("counted").pipe(Effect.provideContext(context))
      // A slow thread is stood in for on the other connection.
      yield* eventually(connections, (now) => now === 2)
      const until = tracked.validUntil()
      yield* eventually(Effect.sync(tracked.validUntil), (now) => now > until + leaseMs)
      // Beside it that of the store which the session was started on.
      assert.strictEqual(yield* connections, 2)
    }).pipe(Effect.scoped))

  it.effect("a store that is out of reach at the start is a typed failure", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const context = yield* build({ url: Redacted.make(proxy.url) })
      yield* proxy.cut
      const heartbeat = HeartbeatContract.use((service) => service.start(options))
      const refused = yield* Effect.flip(Effect.provideContext(heartbeat, context))
      assert.strictEqual(refused._tag, "StoreUnavailable")
    }).pipe(Effect.scoped))

  it.effect("a worker is in the registry, with what it runs, as long as its session", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      yield* Effect.scoped(Effect.gen(function*() {
        const { tracked } = yield* begin("listed")
        assert.deepInclude(yield* listed, {
          queues: options.queues,
          kinds: options.kinds,
          capacity: 8,
          running: 0,
          isLive: true
        })
        yield* eventually(listed, (worker) => worker?.running === 1)
        yield* pg`DELETE FROM headgate.worker`
        tracked.end()
        yield* eventually(listed, (worker) => worker?.running === 0 && worker.isLive)
      }))
      assert.isUndefined(yield* listed)
    }))

  it.effect("a thread that dies is replaced, and leases are renewed meanwhile", () =>
    Effect.gen(function*() {
      const threads: Array<Worker> = []
      const onWorker = (worker: Worker) => void threads.push(worker)
      process.on("worker", onWorker)
      const { session, tracked } = yield* begin("dies", { leaseMs: 2000 })
      session.track(Jobs.lease("nobody"), monotonicMs())
      yield* eventually(Queue.size(session.lost), (lost) => lost === 1)
      yield* Effect.promise(async () => threads[0]?.terminate())
      yield* eventually(Effect.sync(() => threads.length), (started) => started === 2)
      process.off("worker", onWorker)
      const until = tracked.validUntil()
      yield* eventually(Effect.sync(tracked.validUntil), (now) => now > until + 1000)
      assert.strictEqual(yield* Queue.size(session.lost), 1)
    }).pipe(Effect.scoped))

  it.effect("leases are renewed in the loop while a thread is slow to its first beat, and no longer", () =>
    Effect.gen(function*() {
      const memory = new SharedArrayBuffer(4)
      // Its second life beats after a while only.
      new Int32Array(memory)[0] = 1
      const data = { config: {}, settings: defaults, options, memory }
      const standIn = { starts: 0, ends: 0 }
      const meanwhile = Effect.onInterrupt(
        Effect.andThen(Effect.sync(() => standIn.starts++), Effect.never),
        () => Effect.sync(() => standIn.ends++)
      )
      const beats: Array<number> = []
      const onReport = () => void beats.push(standIn.starts)
      const entry = new URL("./late-thread.ts", import.meta.url)
      const running = yield* Effect.forkScoped(HeartbeatThread.run(data, onReport, meanwhile, entry, 50))
      yield* eventually(Effect.sync(() => standIn.ends), (ends) => ends === 1)
      assert.deepStrictEqual([standIn.starts, beats], [1, [1]])
      yield* Fiber.interrupt(running)
    }).pipe(Effect.scoped))

  it.effect("from a thread's death to the next one's first beat, and no longer, leases are renewed in the loop", () =>
    Effect.gen(function*() {
      const standIn = { starts: 0, ends: 0 }
      const meanwhile = Effect.ensuring(
        Effect.andThen(Effect.sync(() => standIn.starts++), Effect.never),
        Effect.sync(() => standIn.ends++)
      )
      const data = { config: {}, settings: defaults, options, memory: new SharedArrayBuffer(4) }
      const beats: Array<number> = []
      const onReport = () => void beats.push(standIn.starts)
      const running = yield* Effect.forkScoped(
        HeartbeatThread.run(data, onReport, meanwhile, new URL("./late-thread.ts", import.meta.url))
      )
      yield* eventually(Effect.sync(() => standIn.ends), (ends) => ends === 1)
      assert.deepStrictEqual([standIn.starts, beats], [1, [0, 1]])
      yield* Fiber.interrupt(running)
    }).pipe(Effect.scoped))

  it.effect("a thread that dies three times before a beat is given up, beats in between count anew", () =>
    Effect.gen(function*() {
      const run = Effect.fnUntraced(function*(lives: number) {
        const memory = new SharedArrayBuffer(4)
        const data = { config: {}, settings: defaults, options: { ...options, capacity: lives }, memory }
        const cause = yield* HeartbeatThread.run(
          data,
          () => {},
          Effect.never,
          new URL("./dying-thread.ts", import.meta.url)
        )
        return [cause.message, new Int32Array(memory)[0]]
      })
      assert.deepStrictEqual(yield* run(0), ["death 2", 3])
      assert.deepStrictEqual(yield* run(2), ["death 4", 5])
    }))

  it.effect("a configuration that no thread can be given is served in the loop, with a warning", () =>
    Effect.gen(function*() {
      const threads: Array<Worker> = []
      const onWorker = (worker: Worker) => void threads.push(worker)
      process.on("worker", onWorker)
      const messages: Array<string> = []
      const log = Logger.layer([Logger.make(({ message }) => void messages.push(String(message)))])
      const context = yield* build({ password: Effect.succeed(Redacted.make("")) })
      const { tracked } = yield* begin("in loop").pipe(Effect.provideContext(context), Effect.provide(log))
      const until = tracked.validUntil()
      yield* eventually(Effect.sync(tracked.validUntil), (now) => now > until + leaseMs)
      process.off("worker", onWorker)
      assert.strictEqual(threads.length, 0)
      assert.include(messages.join("\n"), "renewed in the event loop")
    }).pipe(Effect.scoped))

  it.effect("passwords, certificates and durations reach the thread as plain data; functions do not", () =>
    Effect.sync(() => {
      const url = Redacted.make("postgres://u@h/d")
      const password = Redacted.make("secret")
      assert.deepStrictEqual(HeartbeatThread.portableConfig({ url, password, connectTimeout: "2 seconds" }), {
        url: "postgres://u@h/d",
        password: "secret",
        connectTimeout: 2000
      })
      assert.isDefined(HeartbeatThread.portableConfig({ ssl: { ca: Buffer.from("x") } }))
      assert.isUndefined(HeartbeatThread.portableConfig({ ssl: { checkServerIdentity: () => undefined } }))
      assert.isUndefined(HeartbeatThread.portableConfig({ password: Effect.succeed(password) }))
    }))

  it.effect("closing a session ends its thread at once, and nothing of it holds the process", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const program = `
        import { Effect, Fiber, Layer, Redacted } from "effect"
        import * as PgClient from "@effect/sql-pg/PgClient"
        import * as Heartbeat from "@headgate/postgres/Heartbeat"
        import * as Leases from "@headgate/postgres/Leases"
        import * as Announcer from "@headgate/postgres/Announcer"
        import * as ControlSql from "@headgate/postgres/ControlSql"
        import { Heartbeat as Contract } from "@headgate/core/Heartbeat"
        const store = Heartbeat.layer.pipe(Layer.provideMerge(Leases.layer), Layer.provideMerge(Announcer.layer),
          Layer.provideMerge(ControlSql.layer), Layer.provide(PgClient.layer({ url: Redacted.make(process.argv[1]) })))
        const program = Effect.gen(function*() {
          yield* Contract.use((heartbeat) => heartbeat.start(JSON.parse(process.argv[2])))
          yield* Effect.sleep(1200)
          yield* Effect.sync(() => { end = performance.now() })
        })
        let end = 0
        await Effect.runPromise(Effect.scoped(program).pipe(Effect.provide(store)))
        process.on("exit", () => console.log(Math.round(performance.now() - end)))
      `
      const output = yield* Effect.callback<string, Error>((resume) => {
        const args = [
          "--conditions=headgate-source",
          "--input-type=module",
          "-e",
          program,
          url,
          JSON.stringify(options)
        ]
        const cwd = fileURLToPath(new URL("..", import.meta.url))
        execFile(
          process.execPath,
          args,
          { cwd, timeout: 60_000 },
          (error, stdout) => resume(error === null ? Effect.succeed(stdout) : Effect.fail(error))
        )
      })
      // It would beat, or hold the process, for ever.
      console.log(`a session had ended: ${output.trim()} ms, of at most 500 ms on a quiet machine`)
      assert.isUndefined(yield* listed)
    }))
})
