import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import * as Migrations from "@headgate/postgres/Migrations"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Redacted } from "effect"

const versions = (migrations: ReadonlyArray<Migrations.Migration>) => migrations.map(({ version }) => version)
const all = Migrations.known().map(({ version }) => version)

layer(TestDatabase.layerWith({ isMigrated: false }), { excludeTestServices: true })("Migrations", (it) => {
  it.effect("ten processes that start at once apply each migration once", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const process = Migrations.run({ schema: "ten" }).pipe(
        Effect.provide(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))
      )
      const applied = yield* Effect.all(Array.from({ length: 10 }, () => process), { concurrency: 10 })
      assert.deepStrictEqual(applied.flatMap(versions), all)
      const sql = yield* PgClient.PgClient
      const rows = yield* sql<Migrations.Migration>`SELECT version, name, checksum FROM ten.migration ORDER BY version`
      assert.deepStrictEqual(rows, Migrations.known())
    }))

  it.effect("a second run changes nothing, and needs no right to create", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const { name, url } = yield* TestDatabase.TestDatabase
      // Roles belong to the whole server.
      const reader = `reader_${name}`
      const role = sql(reader)
      yield* Migrations.run({ schema: "again" })
      yield* sql`CREATE ROLE ${role} LOGIN`
      yield* sql`GRANT USAGE ON SCHEMA again TO ${role}`
      yield* sql`GRANT SELECT ON again.migration TO ${role}`
      const address = new URL(url)
      address.username = reader
      const applied = yield* Effect.provide(
        Migrations.run({ schema: "again" }),
        PgClient.layer({ url: Redacted.make(address.href), maxConnections: 1 })
      )
      assert.deepStrictEqual(applied, [])
      yield* sql`DROP OWNED BY ${role}`
      yield* sql`DROP ROLE ${role}`
    }))

  it.effect("an empty schema is refused by a program that may not migrate", () =>
    Effect.gen(function*() {
      const refused = yield* Effect.flip(Migrations.check({ schema: "empty" }))
      assert.strictEqual(refused.reason, "pending")
      yield* Migrations.run({ schema: "empty" })
      yield* Migrations.check({ schema: "empty" })
    }))

  it.effect("a schema newer than the code is refused", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Migrations.run({ schema: "newer" })
      yield* sql`INSERT INTO newer.migration VALUES (9999, '9999_future', 'x', 0)`
      for (const start of [Migrations.run({ schema: "newer" }), Migrations.check({ schema: "newer" })]) {
        const refused = yield* Effect.flip(start)
        assert.strictEqual(refused._tag === "MigrationError" && refused.reason, "newer")
      }
    }))

  it.effect("a migration whose text was changed after it was applied is refused", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Migrations.run({ schema: "changed" })
      yield* sql`UPDATE changed.migration SET checksum = 'x' WHERE version = 2`
      const refused = yield* Effect.flip(Migrations.run({ schema: "changed" }))
      assert.strictEqual(refused.reason, "changed")
    }))

  it.effect("a failing migration leaves no trace", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`CREATE SCHEMA trace`
      yield* sql`CREATE TABLE trace.step (in_the_way int)`
      const refused = yield* Effect.flip(Migrations.run({ schema: "trace" }))
      assert.strictEqual(refused.reason, "database")
      const tables =
        yield* sql`SELECT relname FROM pg_class WHERE relnamespace = 'trace'::regnamespace AND relkind = 'r'`
      assert.deepStrictEqual(tables, [{ relname: "step" }])
    }))

  it.effect("the schema's name is put in everywhere: nothing is made outside it, whatever the search path", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`CREATE SCHEMA decoy`
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SET LOCAL search_path = decoy`
        yield* Migrations.run({ schema: "a_b9" })
      }))
      const strays = yield* sql`SELECT relname FROM pg_class WHERE relnamespace = 'decoy'::regnamespace
        UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'decoy'::regnamespace
          OR (pronamespace = 'a_b9'::regnamespace AND prosrc LIKE '%headgate.%')`
      assert.deepStrictEqual(strays, [])
    }))

  it.effect("a name that is no plain lower case identifier is refused before anything is sent", () =>
    Effect.gen(function*() {
      for (const schema of ["", "Jobs", "a b", "a\"; drop table x", "pg_jobs", "1a", "a".repeat(41), "ä"]) {
        const refused = yield* Effect.flip(Migrations.run({ schema }))
        assert.strictEqual(refused.reason, "invalid_schema_name", schema)
      }
    }))
})
