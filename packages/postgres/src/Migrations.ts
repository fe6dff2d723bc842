/**
 * Brings the store's schema to the version this code needs. Migrations are append-only files, each applied once and
 * kept with its checksum; any number of processes may start at once. All pending ones commit together or not at all.
 * A schema that is newer than the code, or made by other files, is refused.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import * as Crypto from "node:crypto"
import * as Fs from "node:fs"
import { inSchema, sqlState } from "./ControlSql.ts"
import { isSchemaName, PostgresSettings, schemaNameRule } from "./Settings.ts"

/**
 * `invalid_schema_name`, `unsupported_server` (before PostgreSQL 15), `pending` (migrations are missing; only `check`
 * says so), `newer` (the schema was migrated by newer code), `changed` (an applied migration differs from this code's),
 * or `database` (the statement or the connection failed; see `cause`).
 */
export class MigrationError extends Schema.TaggedError<MigrationError>()("MigrationError", {
  reason: Schema.Literals(["invalid_schema_name", "unsupported_server", "pending", "newer", "changed", "database"]),
  message: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {}

export interface Options {
  /** Default: the `schema` of `PostgresSettings`. */
  readonly schema?: string | undefined
}

export interface Migration {
  readonly version: number
  readonly name: string
  readonly checksum: string
}

/** Applies what is missing, and answers what that was. Uses one connection of the application's client. */
export const run = Effect.fn("Migrations.run")(function*(options: Options = {}) {
  const schema = yield* schemaName(options)
  const sql = (yield* PgClient.PgClient).withoutTransforms()
  return yield* Effect.catchTag(migrate(sql, schema), "SqlError", databaseFault)
})

/** Fails unless every migration is applied. Changes nothing. */
export const check = Effect.fn("Migrations.check")(function*(options: Options = {}) {
  const schema = yield* schemaName(options)
  const sql = (yield* PgClient.PgClient).withoutTransforms()
  const pending = yield* Effect.catchTag(findPending(sql, schema), "SqlError", databaseFault)
  if (pending.length === 0) return
  const names = pending.map(({ name }) => name).join(", ")
  return yield* new MigrationError({
    reason: "pending",
    message:
      `schema "${schema}" lacks the migrations ${names}; run Migrations.run (PostgresStore does at start unless ` +
      `told "migrate: false")`
  })
})

/** `run` as part of a program's start. */
export const layer = (options: Options = {}): Layer.Layer<never, MigrationError, PgClient.PgClient> =>
  Layer.effectDiscard(run(options))

/** The migrations of this code, in order. */
export const known = (): ReadonlyArray<Migration> =>
  files().map(({ checksum, name, version }) => ({ version, name, checksum }))

const migrate = Effect.fnUntraced(function*(sql: PgClient.PgClient, schema: string) {
  if ((yield* findPending(sql, schema)).length === 0) return []
  // A newer snapshot must be taken after the lock: what rivals applied meanwhile shows only then.
  return yield* Effect.provideService(
    sql.withTransaction(applyPending(sql, schema)),
    SqlClient.BeginTransaction,
    "BEGIN ISOLATION LEVEL READ COMMITTED"
  )
})

const applyPending = Effect.fnUntraced(function*(sql: PgClient.PgClient, schema: string) {
  yield* sql`SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)`
  yield* sql`SELECT pg_advisory_xact_lock(hashtextextended(${`headgate migrations of ${schema}`}, 0))`
  // CREATE SCHEMA IF NOT EXISTS asks for the right to create one even when it is there.
  const [existing] = yield* sql`SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = ${schema}`
  if (existing === undefined) yield* sql`CREATE SCHEMA ${sql(schema)}`
  yield* sql`CREATE TABLE IF NOT EXISTS ${sql(schema)}.migration (
    version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at_ms bigint NOT NULL)`
  const pending = yield* findPending(sql, schema)
  for (const { checksum, name, text, version } of pending) {
    yield* sql.unsafe(asOneStatement(inSchema(schema, text), checksum))
    yield* sql`INSERT INTO ${sql(schema)}.migration (version, name, checksum, applied_at_ms)
      VALUES (${version}, ${name}, ${checksum}, (extract(epoch FROM statement_timestamp()) * 1000)::bigint)`
  }
  return pending.map(({ checksum, name, version }): Migration => ({ version, name, checksum }))
})

/** The protocol takes one statement at a time, so the file becomes the body of one. */
const asOneStatement = (text: string, checksum: string): string => {
  const tag = `$migration_${checksum.slice(0, 16)}$`
  return `DO ${tag} BEGIN\n${text}\nEND ${tag}`
}

const findPending = Effect.fnUntraced(function*(sql: PgClient.PgClient, schema: string) {
  const applied = yield* findApplied(sql, schema)
  const last = applied.at(-1)
  const code = files()
  for (const { checksum, name, version } of applied) {
    const file = code.find((file) => file.version === version)
    if (file === undefined) {
      return yield* new MigrationError({
        reason: "newer",
        message: `schema "${schema}" has the migration ${name}, which this version does not know: update the program`
      })
    }
    if (file.checksum !== checksum) {
      return yield* new MigrationError({
        reason: "changed",
        message: `schema "${schema}" was made by another text of ${name} than this version holds`
      })
    }
  }
  return code.filter(({ version }) => last === undefined || version > last.version)
})

const findApplied = Effect.fnUntraced(function*(sql: PgClient.PgClient, schema: string) {
  const [server] = yield* sql<{ version: string }>`SELECT current_setting('server_version_num') AS version`
  if (Number(server?.version) < 150_000) {
    return yield* new MigrationError({ reason: "unsupported_server", message: "PostgreSQL 15 or newer is needed" })
  }
  const [table] = yield* sql`SELECT 1 FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ${schema} AND c.relname = 'migration'`
  if (table === undefined) return []
  return yield* sql<Migration>`SELECT version, name, checksum FROM ${sql(schema)}.migration ORDER BY version`
})

const schemaName = Effect.fnUntraced(function*(options: Options) {
  const schema = options.schema ?? (yield* PostgresSettings).schema
  if (isSchemaName(schema)) return schema
  const message = `"${schema}" is no schema name for the store: ${schemaNameRule}`
  return yield* new MigrationError({ reason: "invalid_schema_name", message })
})

const databaseFault = (error: SqlError.SqlError): Effect.Effect<never, MigrationError> => {
  const cause: unknown = error.reason.cause
  const text = cause instanceof Error ? cause.message : error.message
  const state = sqlState(error)
  const message = state === undefined ? text : `${text} (SQLSTATE ${state})`
  return Effect.fail(new MigrationError({ reason: "database", message, cause: error }))
}

interface MigrationFile extends Migration {
  readonly text: string
}

let cache: ReadonlyArray<MigrationFile> | undefined

const files = (): ReadonlyArray<MigrationFile> => cache ??= readFiles()

const readFiles = (): ReadonlyArray<MigrationFile> => {
  const directory = new URL("../migrations/", import.meta.url)
  const names = Fs.readdirSync(directory).filter((name) => /^\d{4}_\w+\.sql$/.test(name)).sort()
  return names.map((name) => {
    // A checkout may have turned the line ends; the migration is the same.
    const text = Fs.readFileSync(new URL(name, directory), "utf8").replaceAll("\r\n", "\n")
    const checksum = Crypto.createHash("sha256").update(text).digest("hex")
    return { version: Number(name.slice(0, 4)), name: name.slice(0, -4), checksum, text }
  })
}
