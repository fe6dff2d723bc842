/**
 * A durable sleep. The first call stores the wake time and puts the job down in one statement, which ends the attempt
 * for all of its branches; the attempt after the wake time walks past it. Promoted early, it sleeps on until the wake
 * time it has.
 */
import { wholeMillis } from "@headgate/core/Millis"
import type { StepRefusal } from "@headgate/core/Step"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { AttemptSteps } from "./AttemptSteps.ts"
import { loseLease, whileOwned } from "./Ownership.ts"

export const runSleep = Effect.fnUntraced(function*(
  steps: AttemptSteps,
  name: string,
  key: string | undefined,
  duration: Duration.Input
): Effect.fn.Return<void, StepRefusal> {
  const delayMs = yield* Effect.fromResult(wholeMillis("duration", duration))
  const { identity, record } = yield* steps.begin(name, key, "sleep")
  const { attempt, stores } = steps
  const { claimedAtMs, lease } = attempt.claim
  const wakeAtMs = record?.wakeAtMs
  if (record !== undefined && (wakeAtMs === undefined || wakeAtMs <= claimedAtMs)) return
  // Records of other branches that are on their way would be refused after the lease has ended.
  yield* stores.checkpointer.quiet(lease.jobId)
  if (!attempt.isOwned()) return yield* loseLease(attempt)
  const sleep = stores.checkpoints.sleep({
    lease,
    step: identity,
    position: record?.position ?? steps.nextPosition(),
    until: wakeAtMs === undefined ? { delayMs } : { wakeAtMs },
    open: steps.opening
  })
  const state = yield* whileOwned(attempt, sleep)
  return yield* attempt.end({ _tag: "Settled", outcome: "snooze", state })
})
