import { PgClient } from "@effect/sql-pg"
import { assert, layer } from "@effect/vitest"
import * as TcpProxy from "@headgate/testkit/TcpProxy"
import * as TestDatabase from "@headgate/testkit/TestDatabase"
import { Duration, Effect, Fiber, Redacted, Stream } from "effect"
import { Reactivity } from "effect/reactivity"

/** A client behind a proxy, beside the direct one of the layer. */
const behindProxy = Effect.fnUntraced(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const proxy = yield* TcpProxy.make(url)
  const far = yield* PgClient.make({ url: Redacted.make(proxy.url), maxConnections: 1, connectTimeout: "30 seconds" })
    .pipe(
      Effect.provide(Reactivity.layer)
    )
  const near = yield* PgClient.PgClient
  return { proxy, far, near }
})

layer(TestDatabase.layerWith({ isMigrated: false }), { excludeTestServices: true })("TcpProxy", (it) => {
  it.effect("passes statements through", () =>
    Effect.gen(function*() {
      const { far, proxy } = yield* behindProxy()
      assert.deepStrictEqual(yield* far`SELECT ${"x"}::text AS it`, [{ it: "x" }])
      assert.strictEqual(yield* proxy.connections, 1)
      assert.strictEqual((yield* far`SELECT repeat('y', 3000000) AS big`)[0]?.["big"], "y".repeat(3_000_000))
    }))

  it.effect("redirected, new connections go to the new address, and those there are stay", () =>
    Effect.gen(function*() {
      const { far, proxy } = yield* behindProxy()
      const { url } = yield* TestDatabase.TestDatabase
      const database = far<{ name: string }>`SELECT current_database() AS name`
      const first = yield* database
      yield* proxy.redirect("postgres://127.0.0.1:1/nowhere")
      assert.deepStrictEqual(yield* database, first)
      yield* proxy.cut
      yield* proxy.heal
      assert.strictEqual((yield* Effect.exit(database))._tag, "Failure")
      yield* proxy.redirect(url)
      assert.deepStrictEqual(yield* database, first)
    }))

  it.effect("a cut fails what runs and what comes, until it heals", () =>
    Effect.gen(function*() {
      const { far, proxy } = yield* behindProxy()
      const running = yield* Effect.forkChild(Effect.exit(far`SELECT pg_sleep(20)`), { startImmediately: true })
      while ((yield* proxy.connections) === 0) yield* Effect.sleep(5)
      yield* proxy.cut
      assert.strictEqual((yield* Fiber.join(running))._tag, "Failure")
      assert.strictEqual((yield* Effect.exit(far`SELECT 1`))._tag, "Failure")
      yield* proxy.heal
      assert.deepStrictEqual(yield* far`SELECT 1 AS it`, [{ it: 1 }])
    }))

  it.effect("a black hole neither answers nor fails, and what vanished in it stays lost", () =>
    Effect.gen(function*() {
      const { far, near, proxy } = yield* behindProxy()
      yield* near`CREATE TABLE IF NOT EXISTS holes (id int)`
      yield* far`SELECT 1`
      yield* proxy.blackhole
      const lost = yield* Effect.forkChild(Effect.exit(far`INSERT INTO holes VALUES (1)`), { startImmediately: true })
      yield* Effect.sleep(300)
      assert.strictEqual(lost.pollUnsafe(), undefined)
      yield* proxy.heal
      assert.strictEqual((yield* Fiber.join(lost))._tag, "Failure")
      assert.deepStrictEqual(yield* near`SELECT * FROM holes`, [])
      assert.deepStrictEqual(yield* far`SELECT 2 AS it`, [{ it: 2 }])
    }))

  it.effect("a delay holds back each way", () =>
    Effect.gen(function*() {
      const { far, proxy } = yield* behindProxy()
      yield* far`SELECT 1`
      yield* proxy.delay(100)
      const [elapsed] = yield* Effect.timed(far`SELECT 1`)
      assert.isAtLeast(Duration.toMillis(elapsed), 195)
    }))

  for (const prepare of [true, false]) {
    it.effect(`a connection lost after the commit leaves the work done and the client without an answer (prepare: ${prepare})`, () =>
      Effect.gen(function*() {
        const { far, near, proxy } = yield* behindProxy()
        yield* near`CREATE TABLE IF NOT EXISTS works (id int)`
        yield* near`TRUNCATE works`
        const work = (id: number) => far.withTransaction(far`INSERT INTO works VALUES (${id})`)
        yield* work(1)
        const { fired } = yield* proxy.dropOn({ sql: /^commit/i, moment: "after" })
        assert.strictEqual((yield* Effect.exit(work(2)))._tag, "Failure")
        yield* fired
        yield* work(3)
        assert.deepStrictEqual(yield* near`SELECT id FROM works ORDER BY id`, [{ id: 1 }, { id: 2 }, { id: 3 }])
      }))
  }

  it.effect("nothing of the lost answer reaches the client, however long it is", () =>
    Effect.gen(function*() {
      const { far, proxy } = yield* behindProxy()
      yield* proxy.dropOn({ sql: /generate_series/, moment: "after" })
      let seen = 0
      const rows = far`SELECT repeat('z', 100) AS z FROM generate_series(1, 100000)`.stream
      const exit = yield* Effect.exit(Stream.runForEach(rows, () => Effect.sync(() => seen++)))
      assert.strictEqual(exit._tag, "Failure")
      assert.strictEqual(seen, 0)
    }))

  it.effect("a connection lost before the commit leaves nothing", () =>
    Effect.gen(function*() {
      const { far, near, proxy } = yield* behindProxy()
      yield* near`CREATE TABLE IF NOT EXISTS nothing_done (id int)`
      const { fired } = yield* proxy.dropOn({ sql: /^commit/i, moment: "before" })
      const exit = yield* Effect.exit(far.withTransaction(far`INSERT INTO nothing_done VALUES (1)`))
      assert.strictEqual(exit._tag, "Failure")
      yield* fired
      assert.deepStrictEqual(yield* near`SELECT id FROM nothing_done`, [])
    }))
})
