import { PgClient } from "@effect/sql-pg"
import { assert, it, layer } from "@effect/vitest"
import * as TestDatabase from "@headgate/testkit/TestDatabase"
import { Effect, Exit, Redacted, Scope } from "effect"

const on = (url: string) => Effect.provide(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))

const exists = (url: string, name: string) =>
  PgClient.PgClient.use((sql) => sql`SELECT 1 FROM pg_database WHERE datname = ${name}`).pipe(
    Effect.map((rows) => rows.length === 1),
    on(url)
  )

layer(TestDatabase.layer, { excludeTestServices: true })("TestDatabase.layer", (it) => {
  it.effect("the client is connected to the database, which has the store's schema", () =>
    Effect.gen(function*() {
      const { name } = yield* TestDatabase.TestDatabase
      const sql = yield* PgClient.PgClient
      const rows =
        yield* sql`SELECT current_database()::text AS name, to_regprocedure('headgate.now_ms()') IS NOT NULL AS store`
      assert.deepStrictEqual(rows, [{ name, store: true }])
    }))
})

it.live("two databases share nothing", () =>
  Effect.gen(function*() {
    const [first, second] = yield* Effect.all([TestDatabase.make(), TestDatabase.make()], { concurrency: 2 })
    yield* PgClient.PgClient.use((sql) => sql`CREATE TABLE mine (id int)`).pipe(on(first.url))
    const found = yield* PgClient.PgClient.use((sql) => sql`SELECT to_regclass('mine')::text AS it`).pipe(
      on(second.url)
    )
    assert.deepStrictEqual(found, [{ it: null }])
  }))

it.live("the database goes when its scope closes, even with sessions open in it", () =>
  Effect.gen(function*() {
    const kept = yield* TestDatabase.make({ isMigrated: false })
    const scope = yield* Scope.make()
    const database = yield* Scope.provide(TestDatabase.make(), scope)
    yield* PgClient.PgClient.use((sql) =>
      Effect.gen(function*() {
        yield* sql`SELECT 1`
        assert.isTrue(yield* exists(kept.url, database.name))
        yield* Scope.close(scope, Exit.void)
      })
    ).pipe(on(database.url))
    assert.isFalse(yield* exists(kept.url, database.name))
  }))

it.live("the store may live in another schema", () =>
  Effect.gen(function*() {
    const { url } = yield* TestDatabase.make({ schema: "other" })
    const sql = PgClient.PgClient.use((sql) =>
      sql`SELECT to_regnamespace('other') IS NOT NULL AS other, to_regnamespace('headgate') IS NOT NULL AS headgate`
    )
    assert.deepStrictEqual(yield* on(url)(sql), [{ other: true, headgate: false }])
  }))
