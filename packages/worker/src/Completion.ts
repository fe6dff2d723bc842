/**
 * `Job.completeWith`: the application's writes, the result and the job's success as one transaction. The job has ended
 * when it answers. What the handler does afterwards changes nothing any more: a failure is not recorded, and a step that
 * it starts then ends the attempt.
 */
import type { CodecError } from "@headgate/core/Codec"
import type { OutcomeResult } from "@headgate/core/Outcome"
import { MAX_OUTPUT_BYTES, refuseBytes } from "@headgate/core/Output"
import type { Invalid } from "@headgate/core/Refusals"
import { Transactional } from "@headgate/core/Transactional"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Attempt, Ending } from "./Attempt.ts"
import { loseLease } from "./Ownership.ts"
import { transact } from "./Transacting.ts"

/** An attempt whose ending may be set without interrupting it. */
interface Completable extends Attempt {
  ending: Ending | undefined
}

export const completeWith = <A, E, R>(attempt: Completable, body: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    if (!attempt.isOwned()) return loseLease(attempt)
    const { lease, retentionMs } = attempt.claim
    const encode = (value: A) => encodeResult(attempt, value)
    const committed = Effect.flatMap(
      Transactional,
      ({ complete }) =>
        transact(attempt, body, (body) =>
          complete<A, E | CodecError | Invalid, R>(lease, body, encode, () =>
            attempt.charges))
    )
    return Effect.tap(committed, () =>
      Effect.sync(() => {
        attempt.ending ??= { _tag: "Settled", outcome: "success", state: retentionMs === 0 ? "deleted" : "completed" }
      }))
  })

/** As for a result that the handler returns: nothing is stored for one that takes no bytes, or that nobody can ask for. */
const encodeResult = (
  { claim, definition }: Attempt,
  value: unknown
): Effect.Effect<OutcomeResult | undefined, CodecError | Invalid> => {
  if (value === undefined) return Effect.undefined
  const encoded = definition.success.encode(value)
  if (Result.isFailure(encoded)) return Effect.fail(encoded.failure)
  const refusal = refuseBytes("result", encoded.success, MAX_OUTPUT_BYTES)
  if (refusal !== undefined) return Effect.fail(refusal)
  const isKept = encoded.success.length > 0 && claim.retentionMs > 0
  return Effect.succeed(isKept ? { version: definition.version, bytes: encoded.success } : undefined)
}
