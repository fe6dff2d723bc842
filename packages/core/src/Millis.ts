/**
 * Durations at the boundary. Inside the library a duration is Effect's `Duration`; what crosses to a store, the API or
 * a row is whole milliseconds, at least 1 and at most 100 years.
 */
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { Invalid } from "./Refusals.ts"

/** 100 years of 365.25 days. */
export const MAX_DURATION_MS = 3_155_760_000_000

/** The last millisecond of the year 9999, the latest absolute time accepted. */
export const MAX_TIME_MS = 253_402_300_799_999

/** Rounds to whole milliseconds. What rounds below `minMs` (default 1) is refused with the minimum named. */
export const wholeMillis = (field: string, input: Duration.Input, minMs = 1): Result.Result<number, Invalid> => {
  // `Duration` takes NaN for zero.
  const duration = typeof input === "number" && Number.isNaN(input) ? Option.none() : Duration.fromInput(input)
  if (Option.isNone(duration)) return Result.fail(new Invalid({ field, message: `${field} is not a duration` }))
  const ms = Math.round(Duration.toMillis(duration.value))
  const refusal = refuseMillis(field, ms, minMs)
  return refusal === undefined ? Result.succeed(ms) : Result.fail(refusal)
}

/** The same for a duration whose zero is a choice of its own: what only rounds to zero is refused. */
export const zeroOrMillis = (field: string, input: Duration.Input): Result.Result<number, Invalid> => {
  const ms = wholeMillis(field, input, 0)
  return Result.isSuccess(ms) && ms.success === 0 && !Duration.isZero(Duration.fromInputUnsafe(input))
    ? wholeMillis(field, input)
    : ms
}

/** The refusal of a number that is not a whole count of milliseconds in `minMs`..100 years, if it is not. */
export const refuseMillis = (field: string, value: number, minMs: number): Invalid | undefined =>
  refuseInteger(field, value, minMs, MAX_DURATION_MS, " ms")

/** The refusal of a number that is not a whole number in `min`..`max`, if it is not. */
export const refuseInteger = (
  field: string,
  value: number,
  min: number,
  max: number,
  unit = ""
): Invalid | undefined => {
  if (Number.isInteger(value) && value >= min && value <= max) return undefined
  // The check also meets callers without types: what is not a number has no place in `actual`.
  if (typeof value !== "number" || Number.isNaN(value)) {
    return new Invalid({ field, message: `${field} must be a whole number` })
  }
  if (value < min) {
    return new Invalid({ field, message: `${field} is below the minimum of ${min}${unit}`, limit: min, actual: value })
  }
  if (value > max) {
    return new Invalid({ field, message: `${field} is above the maximum of ${max}${unit}`, limit: max, actual: value })
  }
  return new Invalid({ field, message: `${field} must be a whole number`, actual: value })
}
