/**
 * What a running attempt says about itself. Progress is status: an outage drops it. Output is data: it is stored, or the
 * attempt has lost its job.
 */
import type { Codec } from "@headgate/core/Codec"
import type { Output, Progress } from "@headgate/core/Job"
import { validateOpaque } from "@headgate/core/Output"
import { type ProgressUpdate, validateProgress } from "@headgate/core/Progress"
import * as Effect from "effect/Effect"
import type { Attempt } from "./Attempt.ts"
import { loseLease, whileOwned } from "./Ownership.ts"
import type { StepStores } from "./StepStores.ts"

// Made for every attempt, and few handlers ask: the generators are made once.
export const progressOf = (attempt: Attempt, stores: StepStores): Progress["Service"] => ({
  report: (update) => report(attempt, stores, update)
})

export const outputOf = (attempt: Attempt, stores: StepStores): Output["Service"] => ({
  put: (codec, value, version) => put(attempt, stores, codec, value, version)
})

const report = Effect.fnUntraced(function*(attempt: Attempt, stores: StepStores, update: ProgressUpdate) {
  const valid = yield* Effect.fromResult(validateProgress(update))
  const { lease } = attempt.claim
  yield* Effect.catch(stores.progress.report(lease, valid), (error) =>
    error._tag === "LeaseRejected"
      ? loseLease(attempt)
      : Effect.logDebug(`progress of job ${lease.jobId} was dropped: ${error.message}`))
})

const put = Effect.fnUntraced(function*<A>(
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
