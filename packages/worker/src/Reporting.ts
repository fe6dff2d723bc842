/**
 * What a running attempt says about itself. Progress is status: an outage drops it. Output is data: it is stored, or the
 * attempt has lost its job.
 */
import type { Codec } from "@headgate/core/Codec"
import { validateOpaque } from "@headgate/core/Output"
import { type ProgressUpdate, validateProgress } from "@headgate/core/Progress"
import * as Effect from "effect/Effect"
import type { Attempt } from "./Attempt.ts"
import { loseLease, whileOwned } from "./Ownership.ts"
import type { StepStores } from "./StepStores.ts"
import { atStore } from "./TimeLimits.ts"

export const report = Effect.fnUntraced(function*(attempt: Attempt, stores: StepStores, update: ProgressUpdate) {
  const valid = yield* Effect.fromResult(validateProgress(update))
  const { lease } = attempt.claim
  yield* Effect.catch(atStore(attempt, stores.progress.report(lease, valid)), (error) =>
    error._tag === "LeaseRejected"
      ? loseLease(attempt)
      : Effect.logDebug(`progress of job ${lease.jobId} was dropped: ${error.message}`))
})

export const put = Effect.fnUntraced(function*<A>(
  attempt: Attempt,
  stores: StepStores,
  codec: Codec<A>,
  value: A,
  version: number
) {
  const bytes = yield* Effect.fromResult(codec.encode(value))
  const output = yield* Effect.fromResult(validateOpaque("output", { version, bytes }))
  yield* whileOwned(attempt, stores.output.put(attempt.claim.lease, output))
})
