/** Which transaction the calling fiber is in. */
import type * as PgClient from "@effect/sql-pg/PgClient"
import { isInTransaction } from "@headgate/core/OpenTransaction"
import { ForeignTransaction } from "@headgate/core/Refusals"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"

/** `own`: of the application's client; `foreign`: of another client, or of the store's own connections. */
export type Ambient = "none" | "own" | "foreign"

export const ambient = (application: PgClient.PgClient): Effect.Effect<Ambient> =>
  Effect.map(Effect.context<never>(), (context) => ambientOf(context, application))

export const ambientOf = (context: Context.Context<never>, application: PgClient.PgClient): Ambient => {
  if (context.mapUnsafe.get(application.transactionService.key) !== undefined) return "own"
  return isInTransaction(context) ? "foreign" : "none"
}

export const foreignTransaction = (operation: string, around: "own" | "foreign" = "foreign"): ForeignTransaction =>
  new ForeignTransaction({
    operation,
    message: around === "own"
      ? `${operation} was called inside an open transaction: it commits one of its own, which cannot be a part of another`
      : `${operation} was called inside an open transaction of another SQL client than the one the store was given`
  })
