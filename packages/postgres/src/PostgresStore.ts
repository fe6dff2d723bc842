/**
 * The whole store over the application's own `PgClient`: every contract of `@headgate/core` in one layer. Its control
 * connections are made from that client's configuration, beside its pool.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import type { Store } from "@headgate/core/Store"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as SqlError from "effect/sql/SqlError"
import * as Announcer from "./Announcer.ts"
import * as Checkpoints from "./Checkpoints.ts"
import * as Control from "./Control.ts"
import * as ControlSql from "./ControlSql.ts"
import * as Duties from "./Duties.ts"
import * as Gate from "./Gate.ts"
import * as Heartbeat from "./Heartbeat.ts"
import * as Inspect from "./Inspect.ts"
import * as Leases from "./Leases.ts"
import * as Migrations from "./Migrations.ts"
import * as Producer from "./Producer.ts"
import * as Reports from "./Reports.ts"
import { PostgresSettings } from "./Settings.ts"
import * as Transactional from "./Transactional.ts"
import * as Wakeups from "./Wakeups.ts"

export interface Options extends Partial<PostgresSettings> {
  /**
   * Bring the schema up to date at start: any number of processes may do so at once. With false the start fails unless
   * it is, and `Migrations.run` is for a deployment step of your own. Default true.
   */
  readonly migrate?: boolean | undefined
}

export type StartFailure = Migrations.MigrationError | SqlError.SqlError

/** With the settings given, and those of `PostgresSettings` for the rest. */
export const layerWith = (options: Options): Layer.Layer<Store, StartFailure, PgClient.PgClient> =>
  Layer.unwrap(Effect.map(PostgresSettings, (defaults) => {
    const { migrate = true, ...settings } = options
    return capabilities.pipe(
      Layer.provide(start(migrate)),
      Layer.provide(Layer.succeed(PostgresSettings, { ...defaults, ...settings }))
    )
  }))

/** The settings of `PostgresSettings`; brings the schema up to date at start. */
export const layer: Layer.Layer<Store, StartFailure, PgClient.PgClient> = layerWith({})

const leases = Leases.layer

const capabilities = Layer.mergeAll(
  Gate.layer,
  leases,
  Checkpoints.layer,
  Heartbeat.layer.pipe(Layer.provide(leases)),
  Wakeups.layer,
  Duties.layer,
  Reports.layer,
  Producer.layer,
  Transactional.layer,
  Control.layer,
  Inspect.layer
).pipe(Layer.provide(Announcer.layer), Layer.provideMerge(ControlSql.layer))

/** The schema is checked before any control connection is made: those prepare statements on it. */
const start = (migrate: boolean) =>
  Layer.effectDiscard(migrate ? Effect.asVoid(Migrations.run()) : Migrations.check())
