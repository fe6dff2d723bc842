/**
 * A fresh database with the store's migrations and a movable clock (`Time`), for one test file or one test, dropped
 * when its scope closes. It is a copy of a template migrated once per test run, which takes some 20 ms. Outside a run
 * (`TestRun`) it is made on `DATABASE_URL`'s server, else on an embedded server of its own.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Migrations from "@headgate/postgres/Migrations"
import { defaults, PostgresSettings } from "@headgate/postgres/Settings"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Crypto from "node:crypto"
import * as EmbeddedPostgres from "./EmbeddedPostgres.ts"
import * as TestRun from "./TestRun.ts"
import * as Time from "./Time.ts"

export interface Options {
  /** The store's schema. Default "headgate". */
  readonly schema?: string | undefined
  /** Default true; false gives an empty database, for tests of the migrations themselves. */
  readonly isMigrated?: boolean | undefined
}

export class TestDatabase extends Context.Service<TestDatabase, {
  readonly url: string
  readonly name: string
  readonly schema: string
}>()("@headgate/testkit/TestDatabase") {}

/** A database for the scope. */
export const make = Effect.fn("TestDatabase.make")(function*(options: Options = {}) {
  const schema = options.schema ?? defaults.schema
  const run = TestRun.current()
  const adminUrl = run?.url ?? (yield* EmbeddedPostgres.url())
  const isMigrated = options.isMigrated ?? true
  const template = run !== undefined && isMigrated ? yield* templateFor(run, schema) : undefined
  const name = `headgate_test_${run?.id ?? process.pid}_${randomName()}`
  const url = urlOf(adminUrl, name)
  yield* Effect.acquireRelease(create(adminUrl, name, template), () => Effect.ignore(drop(adminUrl, name)))
  if (isMigrated && template === undefined) yield* migrate(url, schema)
  return TestDatabase.of({ url, name, schema })
})

/** The database, a client of it such as an application has, and the settings that name the schema. */
export const layerWith = (options: Options & { readonly client?: Omit<PgClient.PgPoolConfig, "url"> }) =>
  Layer.unwrap(Effect.map(TestDatabase, ({ schema, url }) =>
    Layer.merge(
      PgClient.layer({ maxConnections: 10, ...options.client, url: Redacted.make(url) }),
      Layer.succeed(PostgresSettings, settingsFor(schema))
    ))).pipe(Layer.provideMerge(Layer.effect(TestDatabase, make(options))))

export const layer = layerWith({})

/** The run's template for a schema; the first caller makes it while the others wait. */
const templateFor = Effect.fnUntraced(function*(run: TestRun.TestRun, schema: string) {
  const suffix = Crypto.createHash("sha256").update(schema).digest("hex").slice(0, 8)
  const template = `headgate_template_${run.id}_${suffix}`
  yield* TestRun.withAdministrator(run.url, (sql) =>
    Effect.gen(function*() {
      yield* sql`SELECT pg_advisory_lock(hashtextextended(${template}, 0))` // until the connection closes
      const found = yield* sql`SELECT 1 FROM pg_database WHERE datname = ${template}`
      if (found.length > 0) return
      const draft = `headgate_draft_${run.id}_${randomName()}`
      yield* sql`CREATE DATABASE ${sql(draft)}`
      yield* migrate(urlOf(run.url, draft), schema)
      yield* sql`ALTER DATABASE ${sql(draft)} WITH ALLOW_CONNECTIONS false`
      yield* sql`ALTER DATABASE ${sql(draft)} RENAME TO ${sql(template)}`
    }))
  return template
})

const migrate = (url: string, schema: string) =>
  Migrations.run({ schema }).pipe(
    Effect.andThen(Time.install()),
    Effect.provideService(PostgresSettings, settingsFor(schema)),
    Effect.provide(PgClient.layer({ url: Redacted.make(url), maxConnections: 2 }))
  )

const settingsFor = (schema: string): PostgresSettings => ({ ...defaults, schema })

const create = (adminUrl: string, name: string, template: string | undefined) =>
  TestRun.withAdministrator(
    adminUrl,
    (sql) =>
      template === undefined
        ? sql`CREATE DATABASE ${sql(name)}`
        : sql`CREATE DATABASE ${sql(name)} TEMPLATE ${sql(template)}`
  )

const drop = (adminUrl: string, name: string) =>
  TestRun.withAdministrator(adminUrl, (sql) => sql`DROP DATABASE IF EXISTS ${sql(name)} WITH (FORCE)`)

const randomName = () => Crypto.randomBytes(6).toString("hex")

const urlOf = (adminUrl: string, database: string): string => {
  const url = new URL(adminUrl)
  url.pathname = `/${database}`
  return url.href
}
