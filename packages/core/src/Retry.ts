/**
 * When a failed job runs again. A policy is data; `retryDelayMs` answers a finite delay for every policy, attempt and
 * random number, so that neither overflow nor a faulty custom function can lose a job or make it spin.
 */
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"

/** One year: no delay is longer. */
export const MAX_RETRY_DELAY_MS = 31_536_000_000

/** Used when a custom function throws or gives no positive number, and the floor of `streakBackoffMs`. */
export const BAD_DELAY_MS = 1000

export interface ExponentialRetry {
  readonly type: "exponential"
  readonly baseMs: number
  readonly factor: number
  readonly capMs: number
  /** 0.2 spreads each delay over 80 to 120 % of itself. */
  readonly jitter: number
}

export interface LinearRetry {
  readonly type: "linear"
  readonly baseMs: number
  readonly stepMs: number
  readonly capMs: number
  readonly jitter: number
}

export interface FixedRetry {
  readonly type: "fixed"
  readonly delayMs: number
  readonly jitter: number
}

/** The one policy that is not plain data: it lives where the handler lives. */
export interface CustomRetry {
  readonly type: "custom"
  readonly delay: (attempt: number) => Duration.Input
}

/** The delay after the n-th failure, n from 1. All but `custom` survive JSON. */
export type RetryPolicy = ExponentialRetry | LinearRetry | FixedRetry | CustomRetry

const TYPES: ReadonlySet<unknown> = new Set<RetryPolicy["type"]>(["exponential", "linear", "fixed", "custom"])

/** By its type alone: what `Retry` makes has its settings checked. */
export const isRetryPolicy = (value: unknown): value is RetryPolicy =>
  typeof value === "object" && value !== null && "type" in value && TYPES.has(value.type)

/**
 * Constructors. A setting that is no policy (base below 1 ms, factor below 1, cap below base, jitter outside 0..1)
 * throws a `RangeError` where the task is defined. Jitter defaults to 0.2, a cap to one year.
 */
export const Retry = {
  /** base, base x factor, base x factor^2 ... up to cap. Defaults: factor 2. */
  exponential: (options: {
    readonly base: Duration.Input
    readonly factor?: number
    readonly cap?: Duration.Input
    readonly jitter?: number
  }): ExponentialRetry => {
    const baseMs = settingMs("base", options.base)
    const capMs = capSettingMs(options.cap, baseMs)
    const factor = setting("factor", options.factor ?? 2, 1, Number.MAX_VALUE)
    return { type: "exponential", baseMs, factor, capMs, jitter: jitterSetting(options.jitter) }
  },
  /** base, base + step, base + 2 x step ... up to cap. */
  linear: (options: {
    readonly base: Duration.Input
    readonly step: Duration.Input
    readonly cap?: Duration.Input
    readonly jitter?: number
  }): LinearRetry => {
    const baseMs = settingMs("base", options.base)
    const capMs = capSettingMs(options.cap, baseMs)
    return {
      type: "linear",
      baseMs,
      stepMs: settingMs("step", options.step),
      capMs,
      jitter: jitterSetting(options.jitter)
    }
  },
  /** The same delay after each failure. */
  fixed: (delay: Duration.Input, options?: { readonly jitter?: number }): FixedRetry => ({
    type: "fixed",
    delayMs: settingMs("delay", delay),
    jitter: jitterSetting(options?.jitter)
  }),
  /** Any function of the attempt; a number is milliseconds. Taken without jitter. */
  custom: (delay: (attempt: number) => Duration.Input): CustomRetry => ({ type: "custom", delay })
}

/** 1 s, 2 s, 4 s ... up to 1 h, each spread by 20 %. */
export const defaultRetry: RetryPolicy = { type: "exponential", baseMs: 1000, factor: 2, capMs: 3_600_000, jitter: 0.2 }

/**
 * Whole milliseconds in 1..1 year until the attempt after `attempt` failures. `random` in [0, 1) drives the jitter; before
 * it the delays of every policy but `custom` never decrease. A custom function that throws or answers NaN, a negative
 * number or less than half a millisecond gives 1 s, as what is no policy does; one that answers too much gives one year.
 */
export const retryDelayMs = (policy: RetryPolicy, attempt: number, random: number): number => {
  const nth = attempt >= 1 ? attempt : 1
  switch (policy.type) {
    case "exponential": {
      // Past the range of numbers the power is Infinity, which the cap brings back.
      const delay = Math.min(policy.baseMs * Math.pow(policy.factor, nth - 1), policy.capMs)
      return bounded(jittered(delay, policy.jitter, random))
    }
    case "linear":
      return bounded(jittered(Math.min(policy.baseMs + policy.stepMs * (nth - 1), policy.capMs), policy.jitter, random))
    case "fixed":
      return bounded(jittered(policy.delayMs, policy.jitter, random))
    case "custom":
      return bounded(customMs(policy, nth))
    default:
      return BAD_DELAY_MS
  }
}

/** Delay after the n-th crash: 1 s, 5 s, 30 s, 2 min, then 10 min each. */
export const crashBackoffMs = (crashAttempt: number): number => {
  const index = Math.min(Math.max(1, Math.floor(crashAttempt) || 1), CRASH_BACKOFF_MS.length) - 1
  return CRASH_BACKOFF_MS[index] ?? BAD_DELAY_MS
}

/** Delay after the n-th attempt in a row that was no failure or was rate limited: 1 s, doubled each time, at most 5 min. */
export const streakBackoffMs = (streak: number): number =>
  Math.min(BAD_DELAY_MS * Math.pow(2, (streak >= 1 ? Math.floor(streak) : 1) - 1), MAX_STREAK_BACKOFF_MS)

const CRASH_BACKOFF_MS = [1000, 5000, 30_000, 120_000, 600_000]
const MAX_STREAK_BACKOFF_MS = 300_000

const customMs = (policy: CustomRetry, attempt: number): number => {
  try {
    return Option.match(Duration.fromInput(policy.delay(attempt)), {
      onNone: () => Number.NaN,
      onSome: Duration.toMillis
    })
  } catch {
    return Number.NaN
  }
}

// Rounded down, so that no delay passes (1 + jitter) x cap.
const jittered = (delayMs: number, jitter: number, random: number): number => {
  const spread = Math.min(Math.max(jitter, 0), 1) * (2 * Math.min(Math.max(random, 0), 1) - 1)
  return Math.max(1, Math.floor(delayMs * (1 + (Number.isNaN(spread) ? 0 : spread))))
}

const bounded = (delayMs: number): number =>
  delayMs >= 0.5 ? Math.max(1, Math.min(Math.round(delayMs), MAX_RETRY_DELAY_MS)) : BAD_DELAY_MS

const settingMs = (name: string, input: Duration.Input): number => {
  const duration = Option.getOrElse(Duration.fromInput(input), () => Duration.zero)
  const ms = Math.round(Duration.toMillis(duration))
  return setting(name, Math.min(ms, MAX_RETRY_DELAY_MS), 1, MAX_RETRY_DELAY_MS, " ms")
}

const capSettingMs = (cap: Duration.Input | undefined, baseMs: number): number => {
  const capMs = cap === undefined ? MAX_RETRY_DELAY_MS : settingMs("cap", cap)
  return setting("cap", capMs, baseMs, MAX_RETRY_DELAY_MS, " ms")
}

const jitterSetting = (jitter: number | undefined): number => setting("jitter", jitter ?? 0.2, 0, 1)

const setting = (name: string, value: number, min: number, max: number, unit = ""): number => {
  if (value >= min && value <= max) return value
  throw new RangeError(`Retry: ${name} is ${value}${unit}; it must be at least ${min}${unit} and at most ${max}${unit}`)
}
