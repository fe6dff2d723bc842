import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Job, Task } from "@headgate/core"
import { EmbeddedPostgres, TcpProxy, TestDatabase } from "@headgate/testkit"
import { Effect, Exit, Fiber, Option, Schedule, Schema, Scope } from "effect"
import * as SilentProxy from "./fixtures/SilentProxy.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const Ping = Task.make("ping", { payload: Schema.Void, queue: "pings" })

/** When each job's handler started. */
const listener = () => {
  const starts = new Map<string, number>()
  const handler = Ping.toLayer(() =>
    Effect.map(Job.facts, ({ id }) => {
      if (!starts.has(id)) starts.set(id, performance.now())
    })
  )
  return { starts, handler }
}

/** A first look after half a minute: a job which nobody was told of would wait longer than any test does. */
const deaf = { pollInterval: "10 minutes" as const, lease: "10 seconds" as const }

/** Ten jobs, 20 ms apart, repeated until they are stored; answers when each was. */
const enqueueTen = (site: Site.Site, name: string) =>
  Effect.forEach(Array.from({ length: 10 }, (_, n) => `${name} ${n}`), (id) =>
    Ping.enqueue(undefined, { id }).pipe(
      Effect.retry({ while: ({ _tag }) => _tag === "StoreUnavailable", schedule: Schedule.spaced(50) }),
      site.use,
      Effect.map(() => ({ id, at: performance.now() })),
      Effect.delay(20)
    ))

type Enqueued = ReadonlyArray<{ readonly id: string; readonly at: number }>

/** Each job started so soon after it was stored, or after the fault was over, whichever came later. */
const startedWithin = Effect.fnUntraced(function*(
  millis: number,
  starts: ReadonlyMap<string, number>,
  jobs: Enqueued,
  faultOverAt = 0
) {
  yield* Watch.untilTrue(() => jobs.every(({ id }) => starts.has(id)), "all jobs to start", 28_000)
  for (const { at, id } of jobs) assert.isBelow((starts.get(id) ?? 0) - Math.max(at, faultOverAt), millis, id)
})

/** The worker has run a job, and now waits for word. */
const warmUp = Effect.fnUntraced(function*(site: Site.Site, starts: ReadonlyMap<string, number>) {
  const id = yield* site.use(Ping.enqueue(undefined))
  yield* Watch.untilTrue(() => starts.has(id), "the first job to start")
  yield* Effect.sleep(300)
})

layer(TestDatabase.layer, { excludeTestServices: true })("Word of new work", (it) => {
  it.effect("comes within two seconds after the listening connection was ended by the server", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const sql = yield* PgClient.PgClient
      const site = yield* Site.open(url)
      const { handler, starts } = listener()
      yield* site.work(handler, deaf)
      yield* warmUp(site, starts)
      for (const round of ["first", "second"]) {
        yield* sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE application_name = 'headgate listener' AND datname = current_database()`
        // In one go, while nobody listens: no later announcement covers for these.
        const ids = yield* site.use(Ping.enqueueAll(Array.from({ length: 10 }, () => undefined)))
        const enqueuedAt = performance.now()
        yield* startedWithin(2000, starts, ids.map((id) => ({ id, at: enqueuedAt })))
        const after = yield* enqueueTen(site, `${round} later`)
        yield* startedWithin(2000, starts, after)
      }
    }).pipe(Effect.scoped))

  it.effect("comes within 15 seconds after a network that swallowed everything is back", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const producer = yield* Site.open(url)
      const site = yield* Site.open(proxy.url)
      const { handler, starts } = listener()
      yield* site.work(handler, deaf)
      yield* warmUp(producer, starts)
      yield* proxy.blackhole
      const during = yield* enqueueTen(producer, "hole")
      yield* Effect.sleep("4 seconds")
      yield* proxy.heal
      const healedAt = performance.now()
      yield* startedWithin(15_000, starts, during, healedAt)
      const after = yield* enqueueTen(producer, "healed")
      yield* startedWithin(2000, starts, after)
    }).pipe(Effect.scoped), 45_000)

  it.effect(
    "comes within 15 seconds after all connections of the worker went silent for good, and its end comes as soon",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const proxy = yield* SilentProxy.make(url)
        const producer = yield* Site.open(url)
        const scope = yield* Scope.make()
        const end = yield* Effect.cached(Effect.forkDetach(Scope.close(scope, Exit.void)))
        yield* Effect.gen(function*() {
          const site = yield* Scope.provide(Site.open(proxy.url), scope)
          const { handler, starts } = listener()
          const worker = yield* Scope.provide(site.work(handler, deaf), scope)
          yield* warmUp(producer, starts)
          yield* proxy.silence
          const silentAt = performance.now()
          const during = yield* enqueueTen(producer, "silent")
          yield* startedWithin(15_000, starts, during, silentAt)
          const after = yield* enqueueTen(producer, "known")
          yield* startedWithin(2000, starts, after)
          yield* Watch.until(
            Effect.map(worker.health, ({ status }) => status === "ok" ? Option.some(status) : Option.none()),
            "the worker to be well"
          )
          yield* proxy.silence
          const ended = yield* Effect.timeoutOption(Effect.flatMap(end, Fiber.await), "15 seconds")
          assert.isTrue(Option.isSome(ended), "the program ends")
        }).pipe(Effect.ensuring(end))
      }).pipe(Effect.scoped),
    70_000
  )

  it.effect("comes within two seconds after a database that was down for six", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.start({ isDurable: true })
      const site = yield* Site.open(server.url, { settings: { migrate: true } })
      const { handler, starts } = listener()
      const worker = yield* site.work(handler, deaf)
      yield* warmUp(site, starts)
      yield* server.stop("fast")
      const waiting = yield* Effect.forkChild(enqueueTen(site, "down"), { startImmediately: true })
      yield* Effect.sleep("6 seconds")
      const { failing, status } = yield* worker.health
      assert.strictEqual(status, "degraded")
      assert.isAbove(failing.length, 0)
      yield* server.start
      const upAt = performance.now()
      const during = yield* Fiber.join(waiting)
      yield* startedWithin(2000, starts, during, upAt)
      const after = yield* enqueueTen(site, "up")
      yield* startedWithin(2000, starts, after)
    }).pipe(Effect.scoped), 60_000)

  for (const settings of [{ listen: false }, { transactionPooling: true }]) {
    it.effect(`is not needed: with ${JSON.stringify(settings)} jobs start within the poll interval`, () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const site = yield* Site.open(url, { settings })
        const { handler, starts } = listener()
        yield* site.work(handler, { pollInterval: "1 second" })
        yield* warmUp(site, starts)
        yield* Effect.sleep("2 seconds")
        const jobs = yield* enqueueTen(site, JSON.stringify(settings))
        yield* startedWithin(1000 + 300, starts, jobs)
      }).pipe(Effect.scoped))
  }
})
