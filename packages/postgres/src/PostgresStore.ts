/**
 * The whole store over the application's own `PgClient`: every contract of `@headgate/core` in one layer. Its control
 * connections are made from that client's configuration, beside its pool.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { refuseInteger } from "@headgate/core/Millis"
import { Invalid } from "@headgate/core/Refusals"
import type { Store } from "@headgate/core/Store"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type * as SqlError from "effect/sql/SqlError"
import * as Announcer from "./Announcer.ts"
import * as Checkpoints from "./Checkpoints.ts"
import * as Control from "./Control.ts"
import * as ControlSql from "./ControlSql.ts"
import * as DeathCallbacks from "./DeathCallbacks.ts"
import * as Duties from "./Duties.ts"
import * as Explain from "./Explain.ts"
import * as Gate from "./Gate.ts"
import * as Heartbeat from "./Heartbeat.ts"
import * as Inspect from "./Inspect.ts"
import * as Leases from "./Leases.ts"
import * as Migrations from "./Migrations.ts"
import * as Pauses from "./Pauses.ts"
import * as Policies from "./Policies.ts"
import * as Producer from "./Producer.ts"
import * as Quarantine from "./Quarantine.ts"
import * as Redrive from "./Redrive.ts"
import * as Reports from "./Reports.ts"
import { PostgresSettings } from "./Settings.ts"
import * as Transactional from "./Transactional.ts"
import * as Wakeups from "./Wakeups.ts"
import * as WorkerControl from "./WorkerControl.ts"

export interface Options extends Partial<PostgresSettings> {
  /**
   * Bring the schema up to date at start: any number of processes may do so at once. With false the start fails unless
   * it is, and `Migrations.run` is for a deployment step of your own. Default true.
   */
  readonly migrate?: boolean | undefined
}

/** The control connections reach another database than the application's client: a pooler or host list in between. */
export class OtherDatabase extends Schema.TaggedError<OtherDatabase>()("OtherDatabase", { message: Schema.String }) {}

export type StartFailure = Migrations.MigrationError | OtherDatabase | Invalid | SqlError.SqlError

/** With the settings given, and those of `PostgresSettings` for the rest. */
export const layerWith = (options: Options): Layer.Layer<Store, StartFailure, PgClient.PgClient> =>
  Layer.unwrap(Effect.map(PostgresSettings, (defaults) => {
    const { migrate = true, ...settings } = options
    // Fresh, since layers are shared by reference: a program may hold stores of two schemas or databases.
    const all = { ...defaults, ...settings }
    const refusal = refuseSettings(all)
    return Layer.fresh(capabilities).pipe(
      Layer.provide(start(migrate)),
      Layer.provide(Layer.effectDiscard(refusal === undefined ? Effect.void : Effect.fail(refusal))),
      Layer.provide(Layer.succeed(PostgresSettings, all))
    )
  }))

/** The settings of `PostgresSettings`; brings the schema up to date at start. */
export const layer: Layer.Layer<Store, StartFailure, PgClient.PgClient> = layerWith({})

const leases = Leases.layer

const isSameDatabase = Effect.gen(function*() {
  const application = yield* PgClient.PgClient
  const { client, schema } = yield* ControlSql.ControlSql
  const identity = (sql: PgClient.PgClient) =>
    Effect.map(
      sql.unsafe<{ identity: string }>(
        "select current_database() || ' ' || to_regclass($1)::oid::text as identity",
        [`"${schema}".migration`]
      ),
      ([row]) => row?.identity
    )
  const [own, control] = yield* Effect.all([identity(application.withoutTransforms()), identity(client)])
  if (own === control) return
  const message = `the application's connections reach the database ${own}, the store's own reach ${control}`
  return yield* new OtherDatabase({ message })
})

/** Texts of any language are stored: errors, tags, keys. */
const isUnicode = Effect.gen(function*() {
  const { client } = yield* ControlSql.ControlSql
  const [server] = yield* client.unsafe<{ encoding: string }>("select current_setting('server_encoding') as encoding")
  if (server?.encoding === "UTF8") return
  const message = `the database has the encoding ${server?.encoding}; the store needs UTF8`
  return yield* new Invalid({ field: "server_encoding", message })
})

/** What the pools may open together must fit the server, or some part waits for a connection that never comes. */
const warnOfBudget = Effect.gen(function*() {
  const { config }: { readonly config: PgClient.PgPoolConfig } = yield* PgClient.PgClient
  const { controlConnections, listen, transactionPooling } = yield* PostgresSettings
  // A pooler has limits of its own.
  if (transactionPooling) return
  const { client } = yield* ControlSql.ControlSql
  const [server] = yield* client.unsafe<{ most: number; reserved: number }>(
    `select current_setting('max_connections')::int as most,
      current_setting('superuser_reserved_connections')::int
        + coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int as reserved`
  )
  if (server === undefined) return
  const pool = config.maxConnections ?? defaultPool
  const own = pool + controlConnections
  const beside = listen ? 2 : 1
  if (own + beside <= server.most - server.reserved) return
  yield* Effect.logWarning(
    `The server allows ${server.most} connections, ${server.reserved} of them reserved. This process may open ${own}: ` +
      `the application's pool of ${pool} and controlConnections of ${controlConnections}; each worker opens ${beside} more`
  )
})

/** Of `PgClient`. */
const defaultPool = 10

const refuseSettings = ({ controlConnections }: PostgresSettings): Invalid | undefined =>
  refuseInteger("controlConnections", controlConnections, 1, MAX_CONNECTIONS)

const MAX_CONNECTIONS = 1000

const capabilities = Layer.mergeAll(
  Layer.effectDiscard(Effect.all([isSameDatabase, isUnicode, warnOfBudget])),
  Gate.layer,
  leases,
  Checkpoints.layer,
  Heartbeat.layer.pipe(Layer.provide(leases)),
  Wakeups.layer,
  Duties.layer,
  DeathCallbacks.layer,
  Explain.layer,
  Reports.layer,
  Producer.layer,
  Transactional.layer,
  Control.layer,
  Quarantine.layer,
  Redrive.layer,
  Policies.layer,
  Pauses.layer,
  Inspect.layer,
  WorkerControl.layer
).pipe(Layer.provide(Announcer.layer), Layer.provide(ControlSql.layer))

/** The schema is checked before any control connection is made: those prepare statements on it. */
const start = (migrate: boolean) => Layer.effectDiscard(migrate ? Effect.asVoid(Migrations.run()) : Migrations.check())
