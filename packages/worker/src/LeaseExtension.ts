/** `Job.extendLease`: a lease for longer than the worker renews it, in the store first and then as this process believes. */
import { monotonicMs } from "@headgate/core/Heartbeat"
import { type Leases, MAX_LEASE_EXTENSION_MS } from "@headgate/core/Leases"
import { refuseInteger, wholeMillis } from "@headgate/core/Millis"
import type { Invalid } from "@headgate/core/Refusals"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Attempt } from "./Attempt.ts"
import { backoffMs, loseLease, whileOwned } from "./Ownership.ts"

export const extendLease = Effect.fnUntraced(function*(
  attempt: Attempt,
  leases: Leases["Service"],
  duration: Duration.Input
): Effect.fn.Return<void, Invalid> {
  const ms = yield* Effect.fromResult(extensionMs(duration))
  for (let tries = 0;; tries++) {
    if (!attempt.isOwned()) return yield* loseLease(attempt)
    const { busy, lost: [lost], sentAt } = yield* whileOwned(attempt, renewal(attempt, leases, ms))
    if (lost !== undefined) return yield* attempt.end({ _tag: "Interrupted", reason: lost.reason })
    if (busy.length === 0) return attempt.tracked.extended(sentAt, ms)
    // Another statement holds the row for a moment.
    yield* Effect.sleep(backoffMs(tries))
  }
})

/** 1 ms to a day. */
export const extensionMs = (duration: Duration.Input): Result.Result<number, Invalid> =>
  Result.flatMap(wholeMillis(FIELD, duration), (ms) => {
    const refusal = refuseInteger(FIELD, ms, 1, MAX_LEASE_EXTENSION_MS, " ms")
    return refusal === undefined ? Result.succeed(ms) : Result.fail(refusal)
  })

const renewal = ({ claim: { lease } }: Attempt, leases: Leases["Service"], ms: number) =>
  Effect.suspend(() => {
    const sentAt = monotonicMs()
    return Effect.map(leases.renew([lease], ms), (renewal) => ({ ...renewal, sentAt }))
  })

const FIELD = "extendLease duration"
