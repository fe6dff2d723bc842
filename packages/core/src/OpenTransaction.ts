/** Whether a fiber runs inside a transaction of some SQL client: a matter of its context, whichever client it is. */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { Invalid } from "./Refusals.ts"

export const isInTransaction = ({ mapUnsafe }: Context.Context<never>): boolean => {
  for (const [key, value] of mapUnsafe) if (key.startsWith(TRANSACTION) && value !== undefined) return true
  return false
}

/** Progress that is stored at once would outlive the rollback of what was done for it. */
export const refuseOpenTransaction = (field: string): Effect.Effect<void, Invalid> =>
  Effect.flatMap(Effect.context<never>(), (context) =>
    isInTransaction(context)
      ? new Invalid({
        field,
        message:
          `a ${field} cannot be stored inside an open transaction: it would outlive a rollback; use once, or open ` +
          "the transaction inside its body"
      })
      : Effect.void)

/** The prefix of every client's transaction key, see `SqlClient.TransactionConnection`. */
const TRANSACTION = "effect/sql/SqlClient/TransactionConnection/"
