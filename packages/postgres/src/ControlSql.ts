/**
 * The store's own way to its database: a few connections that handlers never get, so that renewals and settlements do
 * not queue behind user code. Statements name the schema `headgate.`; the configured name is put in once, at start.
 * Faults of the database become `StoreUnavailable`; a fault of the statement itself is a defect.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Invalid, StoreUnavailable } from "@headgate/core/Refusals"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Reactivity from "effect/reactivity/Reactivity"
import type * as Scope from "effect/Scope"
import * as SqlError from "effect/sql/SqlError"
import * as ReadOnly from "./ReadOnly.ts"
import { PostgresSettings } from "./Settings.ts"

/** Runs one prepared statement. Rows come back with their SQL column names. */
export type Statement<Row> = (params: ReadonlyArray<unknown>) => Effect.Effect<ReadonlyArray<Row>, StoreUnavailable>

export class ControlSql extends Context.Service<ControlSql, {
  readonly client: PgClient.PgClient
  readonly schema: string
  /**
   * `operation` names the call in errors, as `Leases.renew`. A deadlock or a serialization failure is tried again a few
   * times, unless a transaction of the control client is open.
   */
  readonly statement: <Row extends object>(operation: string, sql: string) => Statement<Row>
  /**
   * The same on one connection, apart from the others where there are several: the plans of a claim cost a connection
   * more than many claims do.
   */
  readonly claim: <Row extends object>(operation: string, sql: string) => Statement<Row>
  /** As `toUnavailable`, for statements that are not made by `statement`; leaves a server that has become read-only. */
  readonly unavailable: (operation: string) => (error: SqlError.SqlError) => Effect.Effect<never, StoreUnavailable>
}>()("@headgate/postgres/ControlSql") {}

/**
 * A client of `connections` connections to the application's database, under the store's own session settings. Names
 * and values are never transformed, whatever the application's client does. Closes with the scope.
 */
export const connect = (
  application: PgClient.PgClientConfig,
  settings: PostgresSettings,
  connections: number = settings.controlConnections
): Effect.Effect<PgClient.PgClient, SqlError.SqlError, Scope.Scope> => {
  const {
    startupOptions,
    startupParameters,
    transformJson: _transformJson,
    transformQueryNames: _transformQueryNames,
    transformResultNames: _transformResultNames,
    types: _types,
    ...server
  } = application
  const start = settings.transactionPooling ? { prepare: false } : {
    startupParameters: { ...startupParameters, ...session },
    ...(startupOptions === undefined ? {} : { startupOptions })
  }
  return Effect.provide(
    PgClient.make({
      ...server,
      ...start,
      applicationName: "headgate",
      multiplex: false,
      minConnections: 0,
      maxConnections: connections
    }),
    Reactivity.layer
  )
}

/**
 * Plans are made once and must fit any later size of the tables, so they go by index even while these are empty. Behind a
 * pooler in transaction mode, which hands on none of these, functions that depend on one set it for themselves.
 */
const session = {
  default_transaction_isolation: "read committed",
  plan_cache_mode: "force_generic_plan",
  enable_seqscan: "off",
  enable_bitmapscan: "off",
  jit: "off",
  // Every relation is qualified; a function or operator of the user's must not stand in for a built-in one either.
  search_path: "pg_catalog",
  // A statement that waits for a row takes one of few connections with it.
  lock_timeout: "2s",
  // Limits that a role sets for the application's statements; the store has its own for these few.
  statement_timeout: "0",
  idle_session_timeout: "0",
  idle_in_transaction_session_timeout: "10s"
}

/** Puts the configured schema into a statement or a migration. */
export const inSchema = (schema: string, sql: string): string => sql.replaceAll(/\bheadgate\./g, `"${schema}".`)

/** SQLSTATEs that say something about the server, its set-up or its condition, and nothing about the statement. */
const passing = /^(08|0A000|25006|25P03|25P04|26000|28|3D000|3F000|40|42501|42P01|42P05|53|55|57|58|XX)/

/** A deadlock's victim, or a transaction that lost to a concurrent one. */
const conflict = /^(40001|40P01)$/

const attempts = 5

export const sqlState = (error: SqlError.SqlError): string | undefined => {
  const cause: unknown = error.reason.cause
  // A socket's error has a code too, and EPIPE is as long; a SQLSTATE has a digit.
  return typeof cause === "object" && cause !== null && "code" in cause && typeof cause.code === "string" &&
      /^(?=.*\d)[0-9A-Z]{5}$/.test(cause.code)
    ? cause.code
    : undefined
}

/** A passing fault as a typed failure; anything else is a bug in the statement and dies. */
export const toUnavailable =
  (operation: string) => (error: SqlError.SqlError): Effect.Effect<never, StoreUnavailable> =>
    isPassing(error)
      ? Effect.fail(new StoreUnavailable({ operation, message: describe(error), cause: error }))
      : Effect.die(error)

/** The statement gave up waiting for a row that another transaction holds; nothing of it was applied. */
export const isLockTimeout = ({ cause }: StoreUnavailable): boolean =>
  SqlError.isSqlError(cause) && sqlState(cause) === "55P03"

export const isConflict = (error: SqlError.SqlError): boolean => conflict.test(sqlState(error) ?? "")

/**
 * A rollback that fails, because its connection is gone, is a defect of `withTransaction` and hides why it was rolled
 * back. This makes it the typed fault that it is; an interruption stays one.
 */
export const rollbackFaults = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E | SqlError.SqlError, R> =>
  Effect.catchCause(effect, (cause): Effect.Effect<never, E | SqlError.SqlError> => {
    const fault = cause.reasons.find((reason) => Cause.isDieReason(reason) && SqlError.isSqlError(reason.defect))
    if (fault === undefined || !Cause.isDieReason(fault)) return Effect.failCause(cause)
    const interruptions = cause.reasons.filter(Cause.isInterruptReason)
    if (interruptions.length > 0) return Effect.failCause(Cause.fromReasons(interruptions))
    return SqlError.isSqlError(fault.defect) ? Effect.fail(fault.defect) : Effect.failCause(cause)
  })

/** Without a SQLSTATE the fault lies on the way to the server, unless the client could not encode a value. */
const isPassing = (error: SqlError.SqlError): boolean => {
  const state = sqlState(error)
  if (state !== undefined) return passing.test(state)
  const cause: unknown = error.reason.cause
  return !(typeof cause === "object" && cause !== null && "_tag" in cause && cause._tag === "PgTypesCodecError")
}

/** What the server or the network said. */
export const describe = (error: SqlError.SqlError): string => {
  const cause: unknown = error.reason.cause
  return cause instanceof Error && cause.message !== "" ? cause.message : error.message
}

/**
 * A connection can die in silence. A statement without an answer is given up, as one whose answer was lost, also where
 * its caller may not be interrupted; the client closes a connection on which it cannot be cancelled either.
 */
const answered = <A>(query: Effect.Effect<A, SqlError.SqlError>): Effect.Effect<A, SqlError.SqlError> =>
  Effect.flatMap(Effect.context<never>(), (context) =>
    Effect.callback<A, SqlError.SqlError>((resume) => {
      const fiber = Effect.runForkWith(context)(query)
      const timer = setTimeout(() => {
        resume(Effect.fail(silence))
        fiber.interruptUnsafe()
      }, longestSilenceMillis)
      fiber.addObserver((exit) => {
        clearTimeout(timer)
        resume(exit)
      })
      return Fiber.interrupt(fiber)
    }))

const longestSilenceMillis = 8000

const silence = new SqlError.SqlError({
  reason: new SqlError.ConnectionError({
    cause: undefined,
    message: "the connection does not answer",
    operation: "query"
  })
})

const make = Effect.gen(function*() {
  const application = yield* PgClient.PgClient
  const settings = yield* PostgresSettings
  const others = settings.controlConnections - 1
  const client = yield* connect(application.config, settings, Math.max(1, others))
  const claimant = others === 0 ? client : yield* connect(application.config, settings, 1)
  if (settings.transactionPooling) yield* refuseIsolation(client)
  const isReadOnly = yield* ReadOnly.watch([client, claimant, application])
  const unavailable = (operation: string) => {
    const fail = toUnavailable(operation)
    return (error: SqlError.SqlError) => {
      if (sqlState(error) === ReadOnly.READ_ONLY) isReadOnly()
      return fail(error)
    }
  }
  const isAlone = Effect.map(
    Effect.context<never>(),
    (context) => Context.getOrUndefined(context, client.transactionService) === undefined
  )
  const statementOn =
    (connections: PgClient.PgClient) => <Row extends object>(operation: string, sql: string): Statement<Row> => {
      const text = inSchema(settings.schema, sql)
      const fail = unavailable(operation)
      const run = (params: ReadonlyArray<unknown>) => answered(connections.unsafe<Row>(text, params))
      const again = (
        params: ReadonlyArray<unknown>,
        left: number
      ) =>
      (error: SqlError.SqlError): Effect.Effect<ReadonlyArray<Row>, StoreUnavailable> =>
        left === 0 || !isConflict(error)
          ? fail(error)
          : Effect.flatMap(
            isAlone,
            (isAlone) => isAlone ? Effect.catch(run(params), again(params, left - 1)) : fail(error)
          )
      return (params) => Effect.withTracerEnabled(Effect.catch(run(params), again(params, attempts - 1)), false)
    }
  const statement = statementOn(client)
  return ControlSql.of({ client, schema: settings.schema, statement, claim: statementOn(claimant), unavailable })
})

/** The gate's functions have to see what was committed while they waited for a lock. */
const refuseIsolation = Effect.fnUntraced(function*(client: PgClient.PgClient) {
  const [server] = yield* client.unsafe<{ level: string }>(
    "select pg_catalog.current_setting('default_transaction_isolation') as level"
  )
  if (server === undefined || server.level === "read committed") return
  return yield* new Invalid({
    field: "default_transaction_isolation",
    message:
      `the store needs default_transaction_isolation "read committed" and its role has "${server.level}", which it ` +
      "cannot change through a pooler in transaction mode: alter the role or the database"
  })
})

export const layer: Layer.Layer<ControlSql, SqlError.SqlError | Invalid, PgClient.PgClient> = Layer.effect(
  ControlSql,
  make
)
