/**
 * Runs a body whose writes commit together with the job's own. The store's faults are told apart from the body's: the
 * body's errors pass through as they are, a refused lease ends the attempt, and an outage is waited out.
 */
import { storedError } from "@headgate/core/ErrorText"
import * as Outcome from "@headgate/core/Outcome"
import { type ForeignTransaction, LeaseRejected, StoreUnavailable } from "@headgate/core/Refusals"
import { retryDelayMs } from "@headgate/core/Retry"
import * as Effect from "effect/Effect"
import type { Attempt } from "./Attempt.ts"
import { backoffMs, loseLease } from "./Ownership.ts"

/** An error of the body or of its encoding on its way through the store. */
export class BodyFailure<E> {
  readonly error: E
  constructor(error: E) {
    this.error = error
  }
}

/**
 * Times a body may run into a transaction that the store then loses. While the lease is renewed the store is there, so
 * that the fault lies with the transaction (too long, say): the attempt fails and is retried as the task says.
 */
export const MAX_LOST_TRANSACTIONS = 3

type StoreFault = LeaseRejected | StoreUnavailable

export const transact = <A, B, E, E2, R, R2>(
  attempt: Attempt,
  body: Effect.Effect<A, E, R>,
  run: (
    body: Effect.Effect<A, BodyFailure<E>, R>
  ) => Effect.Effect<B, BodyFailure<E2> | StoreFault | ForeignTransaction, R2>
): Effect.Effect<B, E2 | ForeignTransaction, R2> => {
  let started = 0
  const counted = Effect.mapError(
    Effect.suspend(() => {
      started++
      return body
    }),
    (error) => new BodyFailure(error)
  )
  const attemptIt = (tries: number): Effect.Effect<B, E2 | ForeignTransaction, R2> =>
    Effect.catch(Effect.suspend(() => run(counted)), (fault) => {
      if (fault instanceof BodyFailure) return Effect.fail(fault.error)
      if (fault instanceof LeaseRejected) return loseLease(attempt)
      if (!(fault instanceof StoreUnavailable)) return Effect.fail(fault)
      if (!attempt.isOwned()) return loseLease(attempt)
      if (started >= MAX_LOST_TRANSACTIONS) return (console.dir(fault, {depth: 9}), giveUp(attempt, fault))
      return Effect.delay(Effect.suspend(() => attemptIt(tries + 1)), backoffMs(tries))
    })
  return attemptIt(0)
}

const giveUp = (attempt: Attempt, fault: StoreUnavailable): Effect.Effect<never> => {
  const delayMs = retryDelayMs(attempt.definition.retry, attempt.claim.attempt + 1, Math.random())
  return attempt.end({ _tag: "Chosen", outcome: Outcome.retry(delayMs, storedError(fault)) })
}
