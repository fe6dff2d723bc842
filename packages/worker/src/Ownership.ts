/**
 * What every durable call of an attempt does when the store refuses it or is out of reach: a refusal ends the attempt,
 * since another may own the job by now; an outage is waited out for as long as this one does.
 */
import type { LeaseRejected, StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import type { Attempt } from "./Attempt.ts"
import { atStore } from "./TimeLimits.ts"

/** Ends the attempt without settling it; never answers. */
export const loseLease = (attempt: Attempt): Effect.Effect<never> =>
  attempt.end({ _tag: "Interrupted", reason: "lease_lost" })

/** Repeats `call` while the store is out of reach and the lease lasts. */
export const whileOwned = <A>(
  attempt: Attempt,
  call: Effect.Effect<A, LeaseRejected | StoreUnavailable>
): Effect.Effect<A> => atStore(attempt, repeated(attempt, call, 0))

const repeated = <A>(
  attempt: Attempt,
  call: Effect.Effect<A, LeaseRejected | StoreUnavailable>,
  tries: number
): Effect.Effect<A> =>
  Effect.catch(call, (error) =>
    error._tag === "StoreUnavailable" && attempt.isOwned()
      ? Effect.delay(Effect.suspend(() => repeated(attempt, call, tries + 1)), backoffMs(tries))
      : loseLease(attempt))

/** 50 ms doubled up to 2 s, each 80 to 120 %. */
export const backoffMs = (tries: number): number => Math.min(50 * 2 ** tries, 2000) * (0.8 + 0.4 * Math.random())
