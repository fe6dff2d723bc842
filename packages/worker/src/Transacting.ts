/**
 * Runs a body whose writes commit together with the job's own. The store's faults are told apart from the body's: the
 * body's errors pass through as they are, a refused lease ends the attempt, and an outage is waited out.
 */
import { storedError } from "@headgate/core/ErrorText"
import * as Outcome from "@headgate/core/Outcome"
import { type ForeignTransaction, LeaseRejected, StoreUnavailable } from "@headgate/core/Refusals"
import { retryDelayMs, streakBackoffMs } from "@headgate/core/Retry"
import { BodyFailure } from "@headgate/core/Transactional"
import * as Effect from "effect/Effect"
import { isSqlError } from "effect/sql/SqlError"
import type { Attempt } from "./Attempt.ts"
import { isTooLong } from "./DatabaseFault.ts"
import { backoffMs, loseLease } from "./Ownership.ts"
import { atStore, inHandler } from "./TimeLimits.ts"

/** Times an attempt may run a body in a transaction that the store then loses. After the last the job waits for another. */
export const MAX_LOST_TRANSACTIONS = 3

type StoreFault = LeaseRejected | StoreUnavailable

export const transact = <A, B, E, E2, R, R2>(
  attempt: Attempt,
  body: Effect.Effect<A, E, R>,
  run: (
    body: Effect.Effect<A, E, R>
  ) => Effect.Effect<B, BodyFailure<E2> | StoreFault | ForeignTransaction, R2>
): Effect.Effect<B, E | E2 | ForeignTransaction, R2> => {
  let started = 0
  let answer: { readonly error: E } | undefined
  const begun = Effect.suspend(() => {
    started++
    answer = undefined
    return inHandler(attempt, body)
  })
  // A query's fault may be the end of the connection, which is the store's; any other failure is the body's answer.
  const counted = Effect.tapError(begun, (error) =>
    Effect.sync(() => {
      if (!isSqlError(error)) answer = { error }
    }))
  const attemptIt = (tries: number): Effect.Effect<B, E | E2 | ForeignTransaction, R2> =>
    Effect.catch(Effect.suspend(() => run(counted)), (fault) => {
      if (fault instanceof BodyFailure) return Effect.fail(fault.error)
      if (fault instanceof LeaseRejected) return loseLease(attempt)
      if (!(fault instanceof StoreUnavailable)) return Effect.fail(fault)
      if (!attempt.isOwned()) return loseLease(attempt)
      // The body had failed before its rollback did: it is not repeated for that.
      if (answer !== undefined) return Effect.fail(answer.error)
      if (started >= MAX_LOST_TRANSACTIONS) return giveUp(attempt, fault)
      return Effect.delay(Effect.suspend(() => attemptIt(tries + 1)), backoffMs(tries))
    })
  return atStore(attempt, attemptIt(0))
}

/** Nothing is charged for the store's faults; where the body took too long, or ended its transaction, the attempt failed. */
const giveUp = ({ claim, definition, end }: Attempt, fault: StoreUnavailable): Effect.Effect<never> => {
  const error = storedError(fault)
  // Without a fault of the database it is the body that ends its own transaction.
  const isItsOwn = !isSqlError(fault.cause) || isTooLong(fault.cause)
  const outcome = isItsOwn
    ? Outcome.retry(retryDelayMs(definition.retry, claim.attempt + 1, Math.random()), error)
    : Outcome.notAFailure(streakBackoffMs(claim.streak + 1), error)
  return end({ _tag: "Chosen", outcome })
}
