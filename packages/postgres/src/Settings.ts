/** How the store uses its database. Provide another value to change it; every part of the store reads this one. */
import * as Context from "effect/Context"

export interface PostgresSettings {
  /** Schema that holds everything of the store: 1 to 40 bytes `[a-z_][a-z0-9_]*`, not `pg_*`. Default `headgate`. */
  readonly schema: string
  /** Connections of the control path (admit, renew, settle, duties), apart from the application's pool: 1 or more. Default 4. */
  readonly controlConnections: number
  /** Hear new work by LISTEN, on one connection of its own. Off, workers poll. Default true. */
  readonly listen: boolean
  /**
   * The database is reached through a pooler in transaction mode: no named statements, no start-up parameters, no
   * LISTEN. The application's client needs `prepare: false` then, and the role transactions that are read committed.
   * Default false.
   */
  readonly transactionPooling: boolean
}

export const defaults: PostgresSettings = {
  schema: "headgate",
  controlConnections: 4,
  listen: true,
  transactionPooling: false
}

export const PostgresSettings = Context.Reference<PostgresSettings>("@headgate/postgres/Settings", {
  defaultValue: () => defaults
})

/** Whether the store can live in a schema of this name: it goes into statements as it is. */
export const isSchemaName = (name: string): boolean => /^(?!pg_)[a-z_][a-z0-9_]{0,39}$/.test(name)

export const schemaNameRule = "1 to 40 lower case letters, digits and underscores, not starting with a digit or \"pg_\""
