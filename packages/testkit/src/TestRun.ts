/**
 * One Postgres server for a whole test run. The runner's process begins it, once; the test processes find it through
 * the environment they inherit. `VitestSetup` does so for vitest.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Reactivity from "effect/reactivity/Reactivity"
import * as Redacted from "effect/Redacted"
import * as Crypto from "node:crypto"
import * as EmbeddedPostgres from "./EmbeddedPostgres.ts"

/** Where `TestDatabase` makes its databases, and the mark their names carry. */
export interface TestRun {
  readonly url: string
  readonly id: string
}

const urlVariable = "HEADGATE_TEST_RUN_URL"
const idVariable = "HEADGATE_TEST_RUN_ID"

/** Starts the server, or takes `DATABASE_URL`'s, for the scope. At its end the databases of the run are dropped. */
export const begin = Effect.fn("TestRun.begin")(function*() {
  const settings = { max_connections: "300", autovacuum_naptime: "5min" }
  const run: TestRun = { url: yield* EmbeddedPostgres.url({ settings }), id: Crypto.randomBytes(4).toString("hex") }
  yield* Effect.acquireRelease(publish(run), () => Effect.andThen(withdraw, Effect.ignore(dropDatabases(run))))
  return run
})

/** The run this process is part of. */
export const current = (): TestRun | undefined => {
  const url = process.env[urlVariable]
  const id = process.env[idVariable]
  return url && id ? { url, id } : undefined
}

/** Runs statements on a connection of its own to the server's administrative database. */
export const withAdministrator = <A, E, R>(url: string, use: (sql: PgClient.PgClient) => Effect.Effect<A, E, R>) =>
  Effect.scoped(
    PgClient.makeClient({ url: Redacted.make(url), applicationName: "headgate testkit", prepare: false }).pipe(
      Effect.provide(Reactivity.layer),
      Effect.flatMap(use)
    )
  )

const publish = (run: TestRun) =>
  Effect.sync(() => {
    process.env[urlVariable] = run.url
    process.env[idVariable] = run.id
  })

const withdraw = Effect.sync(() => {
  delete process.env[urlVariable]
  delete process.env[idVariable]
})

/** What tests that were killed left behind, and the templates. Pointless on a server that ends with the run. */
const dropDatabases = (run: TestRun) =>
  process.env["DATABASE_URL"] !== run.url ? Effect.void : withAdministrator(run.url, (sql) =>
    Effect.gen(function*() {
      const like = `headgate\\_%\\_${run.id}\\_%`
      const rows = yield* sql<
        { name: string }
      >`SELECT datname::text AS name FROM pg_database WHERE datname LIKE ${like}`
      for (const { name } of rows) yield* sql`DROP DATABASE IF EXISTS ${sql(name)} WITH (FORCE)`
    }))
