/**
 * A rate class is a fleet-wide budget shared by all jobs that name it, of whatever kind: a token bucket kept by the
 * store and refilled evenly on its clock. A value, defined once, named in the `rates` of tasks and applied when a worker
 * starts; what an operator sets later wins until the code changes.
 */
import type * as Duration from "effect/Duration"
import * as Result from "effect/Result"
import { refuseName } from "./Kind.ts"
import { refuseInteger, wholeMillis } from "./Millis.ts"
import type { Invalid } from "./Refusals.ts"

/** Of `limit` and of `burst`. */
export const MAX_RATE = 1_000_000_000

/** One day. */
export const MAX_RATE_WINDOW_MS = 86_400_000

/** The stored form. */
export interface RateClassConfig {
  readonly name: string
  /** Tokens in a window, refilled evenly: 1 to 1,000,000,000. */
  readonly limit: number
  /** 1 to 86,400,000. */
  readonly windowMs: number
  /** The most tokens a bucket saves up: 1 to 1,000,000,000. A heavier job is admitted by a full bucket, which then owes. */
  readonly burst: number
  /** A paused class admits none of its jobs. */
  readonly paused: boolean
}

export interface RateClass<in Payload = unknown> extends RateClassConfig {
  readonly _tag: "RateClass"
  /** Which bucket of the class a job is charged to; without it all jobs share the one of the empty key. */
  readonly key: ((payload: Payload) => string) | undefined
  /** The tokens a job costs, 1 to 1,000,000; without it 1. */
  readonly weight: ((payload: Payload) => number) | undefined
  /** This class, with a bucket for each key of one task's payloads. Name the payload's type: it is not inferred here. */
  readonly by: <P extends Payload>(key: (payload: P) => string) => RateClass<P>
  /** This class, with the cost of one task's payloads. Name the payload's type: it is not inferred here. */
  readonly weigh: <P extends Payload>(weight: (payload: P) => number) => RateClass<P>
}

export interface RateClassOptions<in Payload = unknown> {
  /** Tokens in a window: 1 to 1,000,000,000. */
  readonly limit: number
  /** 1 ms to 1 day. */
  readonly window: Duration.Input
  /** Default: the limit. */
  readonly burst?: number | undefined
  /** Default false. */
  readonly paused?: boolean | undefined
  readonly key?: ((payload: Payload) => string) | undefined
  readonly weight?: ((payload: Payload) => number) | undefined
}

const make = <Payload = unknown>(name: string, options: RateClassOptions<Payload>): RateClass<Payload> => {
  const { burst = options.limit, key, limit, paused = false, weight } = options
  const config = { name, limit, windowMs: Result.getOrThrow(wholeMillis("window", options.window)), burst, paused }
  const refusal = refuseRateClass(config)
  if (refusal !== undefined) throw refusal
  return withFunctions(config, key, weight)
}

/** A definition that breaks a rule throws an `Invalid` where it is made. */
export const RateClass = { make }

/** The refusal of the first field that breaks a rule, if one does. */
export const refuseRateClass = ({ burst, limit, name, windowMs }: RateClassConfig): Invalid | undefined =>
  refuseName("name", name) ??
    refuseInteger("limit", limit, 1, MAX_RATE) ??
    refuseInteger("window", windowMs, 1, MAX_RATE_WINDOW_MS, " ms") ??
    refuseInteger("burst", burst, 1, MAX_RATE)

const withFunctions = <Payload>(
  config: RateClassConfig,
  key: ((payload: Payload) => string) | undefined,
  weight: ((payload: Payload) => number) | undefined
): RateClass<Payload> => ({
  ...config,
  _tag: "RateClass",
  key,
  weight,
  by: (key) => withFunctions(config, key, weight),
  weigh: (weight) => withFunctions(config, key, weight)
})
