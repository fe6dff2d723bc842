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
import { puttingDown } from "./TimeLimits.ts"

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
  const sleep = Effect.suspend(() => {
    if (!attempt.isOwned()) return loseLease(attempt)
    const position = record?.position ?? steps.nextPosition()
    const until = wakeAtMs === undefined ? { delayMs } : { wakeAtMs }
    return whileOwned(
      attempt,
      stores.checkpoints.sleep({ lease, step: identity, position, until, open: steps.opening })
    )
  })
  // Records of other branches that are on their way would be refused after the lease has ended.
  const state = yield* puttingDown(attempt, Effect.andThen(stores.checkpointer.quiet(lease.jobId), sleep))
  return yield* attempt.end({ _tag: "Settled", outcome: "snooze", state })
})
