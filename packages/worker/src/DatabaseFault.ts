/** Whose fault it is that a query, or a transaction of the application's client, failed. */
import type { SqlError } from "effect/sql/SqlError"

/** The connection was lost or refused for want of room, or the server shuts down, starts, or takes no writes. */
export const isUnreachable = (error: SqlError): boolean =>
  error.reason._tag === "ConnectionError" || /^(08|25006|53300|57P0)/.test(sqlState(error))

/** The server ended it for the time it took: idle in its transaction, the transaction as a whole, or one statement. */
export const isTooLong = (error: SqlError): boolean => /^(25P03|25P04|57014)$/.test(sqlState(error))

const sqlState = ({ reason: { cause } }: SqlError): string =>
  typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : ""
