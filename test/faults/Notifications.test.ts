import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { EmbeddedPostgres, TcpProxy, TestDatabase } from "@headgate/testkit"
import { Effect, Fiber, Option } from "effect"
import { deaf, enqueueTen, listener, Ping, startedWithin, warmUp } from "./fixtures/Pings.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

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
    }).pipe(Effect.scoped), 240_000)

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
    }).pipe(Effect.scoped), 240_000)

  it.effect("that cannot come shows in the worker's health until it can, and jobs start by polling meanwhile", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const sql = yield* PgClient.PgClient
      const site = yield* Site.open(url)
      const { handler, starts } = listener()
      const worker = yield* site.work(handler, { pollInterval: "500 millis" })
      yield* warmUp(site, starts)
      const isLike = (wanted: string) =>
        Watch.until(
          Effect.map(worker.health, ({ failing, status }) =>
            `${status} ${
                failing.filter((operation) => operation === "Wakeups").join()
              }`.trim() === wanted
              ? Option.some(wanted)
              : Option.none()),
          `the worker to be ${wanted}`
        )
      // Those that are connected stay so.
      const admit = (isAllowed: boolean) =>
        sql`UPDATE pg_database SET datallowconn = ${isAllowed} WHERE datname = current_database()`
      yield* Effect.gen(function*() {
        yield* admit(false)
        yield* sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE application_name = 'headgate listener' AND datname = current_database()`
        yield* isLike("degraded Wakeups")
        yield* startedWithin(500 + 1000, starts, yield* enqueueTen(site, "unheard"))
      }).pipe(Effect.ensuring(Effect.orDie(admit(true))))
      yield* isLike("working")
      const told = [...worker.told("StoreUnreachable"), ...worker.told("StoreReachable")]
        .map((event) => "operation" in event && `${event._tag} ${event.operation}`)
      assert.includeMembers(told, ["StoreUnreachable Wakeups", "StoreReachable Wakeups"])
    }).pipe(Effect.scoped))

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
