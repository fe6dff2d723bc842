/** What a job costs against a rate class. */
import * as Result from "effect/Result"
import { refuseInteger } from "./Millis.ts"
import type { Invalid } from "./Refusals.ts"

export const MAX_WEIGHT = 1_000_000

/** The weight a store charges: 0 is an unset field on the wire and means 1. */
export const effectiveWeight = (weight: number): number => weight === 0 ? 1 : weight

/** A weight given on purpose is a whole number in 1..1,000,000: a free job would pass the gate unmeasured. */
export const validateWeight = (weight: number, field = "weight"): Result.Result<number, Invalid> => {
  const refusal = refuseInteger(field, weight, 1, MAX_WEIGHT)
  return refusal === undefined ? Result.succeed(weight) : Result.fail(refusal)
}
