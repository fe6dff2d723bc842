import { Duration } from "effect"
import * as fc from "fast-check"
import { assert, describe, it } from "vitest"
import {
  crashBackoffMs,
  defaultRetry,
  MAX_RETRY_DELAY_MS,
  Retry,
  retryDelayMs,
  type RetryPolicy,
  streakBackoffMs
} from "../src/Retry.ts"
import { fieldsOf, vectors } from "./vectors.ts"

const retries = vectors<{
  readonly cases: ReadonlyArray<{
    readonly policy: unknown
    readonly attempt: number
    readonly random: number
    readonly delay_ms: number
  }>
  readonly custom: ReadonlyArray<{ readonly answer: number | string; readonly delay_ms: number }>
  readonly crash: ReadonlyArray<{ readonly n: number; readonly delay_ms: number }>
  readonly streak: ReadonlyArray<{ readonly n: number; readonly delay_ms: number }>
}>("retry")

describe("a retry delay", () => {
  for (const { attempt, delay_ms, policy, random } of retries.cases) {
    it(`agrees with every other implementation: ${JSON.stringify(policy)} ${attempt} ${random}`, () => {
      // SAFETY: the vectors hold serialised policies.
      assert.strictEqual(retryDelayMs(fieldsOf(policy) as RetryPolicy, attempt, random), delay_ms)
    })
  }

  it("is finite, whole, and between 1 ms and 1.2 times the cap for every attempt", () => {
    const policy = Retry.exponential({ base: "1 second", factor: 2, cap: "1 hour", jitter: 0.2 })
    fc.assert(fc.property(fc.integer({ min: 1, max: 1e9 }), fc.double({ min: 0, max: 1, noNaN: true }), (n, random) => {
      const delay = retryDelayMs(policy, n, random)
      assert.isTrue(Number.isInteger(delay) && delay >= 1 && delay <= 4_320_000, String(delay))
    }))
  })
  it("never decreases before jitter, and ends at the library's maximum where the user gives no cap", () => {
    const policies = [
      Retry.exponential({ base: "1 second", jitter: 0 }),
      Retry.linear({ base: 1, step: "1 day", jitter: 0 }),
      Retry.exponential({ base: 1, factor: 1.01, jitter: 0 })
    ]
    for (const policy of policies) {
      const delays = Array.from({ length: 3000 }, (_, i) => retryDelayMs(policy, i + 1, 0.5))
      assert.isTrue(delays.every((delay, i) => i === 0 || delay >= (delays[i - 1] ?? 0)))
      assert.strictEqual(delays.at(-1), MAX_RETRY_DELAY_MS)
    }
  })
  it("is never more than the library's maximum, jitter included", () => {
    assert.strictEqual(
      retryDelayMs(Retry.exponential({ base: "300 days", jitter: 1 }), 2000, 0.999),
      MAX_RETRY_DELAY_MS
    )
  })
  it("is 1 s for what is no policy", () => {
    for (const policy of [{}, { type: "weird" }, { maxAttempts: 3 }, () => 5]) {
      assert.strictEqual(retryDelayMs(policy as RetryPolicy, 1, 0.5), 1000)
    }
  })
  it("is sane for attempts and random numbers that are none", () => {
    for (const attempt of [0, -1, Number.NaN]) assert.strictEqual(retryDelayMs(defaultRetry, attempt, 0.5), 1000)
    for (const random of [-1, 2, Number.NaN]) {
      const delay = retryDelayMs(defaultRetry, 1, random)
      assert.isTrue(delay >= 800 && delay <= 1200, String(delay))
    }
  })
  it("is a second for a stored policy that is damaged", () => {
    const damaged: RetryPolicy = { type: "exponential", baseMs: Number.NaN, factor: 2, capMs: 5, jitter: 0 }
    assert.strictEqual(retryDelayMs(damaged, 1, 0.5), 1000)
  })
  it("is the same for a policy that went through JSON", () => {
    const revived: RetryPolicy = JSON.parse(JSON.stringify(defaultRetry))
    assert.strictEqual(retryDelayMs(revived, 5, 0.25), retryDelayMs(defaultRetry, 5, 0.25))
  })
})

describe("a custom retry function", () => {
  for (const { answer, delay_ms } of retries.custom) {
    it(`that answers ${answer} waits ${delay_ms} ms`, () => {
      assert.strictEqual(retryDelayMs(Retry.custom(() => Number(answer)), 1, 0.5), delay_ms)
    })
  }
  it("that throws waits a second", () => {
    const policy = Retry.custom(() => {
      throw new Error("bug")
    })
    assert.strictEqual(retryDelayMs(policy, 1, 0.5), 1000)
  })
  it("may answer any duration and is told the attempt", () => {
    assert.strictEqual(retryDelayMs(Retry.custom((attempt) => Duration.minutes(attempt)), 3, 0.5), 180_000)
    assert.strictEqual(retryDelayMs(Retry.custom(() => "2 seconds"), 3, 0.5), 2000)
    assert.strictEqual(retryDelayMs(Retry.custom(() => Duration.infinity), 3, 0.5), MAX_RETRY_DELAY_MS)
    assert.strictEqual(retryDelayMs(Retry.custom(() => Duration.millis(Number.NaN)), 3, 0.5), 1000)
  })
})

describe("a policy that is none", () => {
  const faulty: ReadonlyArray<[string, () => RetryPolicy]> = [
    ["base is 0", () => Retry.exponential({ base: 0 })],
    ["base is 0", () => Retry.exponential({ base: "100 micros" })],
    ["factor is 0.5", () => Retry.exponential({ base: 1, factor: 0.5 })],
    ["factor is NaN", () => Retry.exponential({ base: 1, factor: Number.NaN })],
    ["jitter is 1.5", () => Retry.exponential({ base: 1, jitter: 1.5 })],
    ["cap is 1", () => Retry.exponential({ base: 2, cap: 1 })],
    ["step is 0", () => Retry.linear({ base: 1, step: 0 })],
    ["delay is 0", () => Retry.fixed("0 millis")],
    ["delay is -", () => Retry.fixed(Duration.seconds(-1))]
  ]
  for (const [message, define] of faulty) {
    it(`throws where it is defined: ${message}`, () => {
      assert.throws(define, message)
    })
  }
})

describe("backoffs of the library's own", () => {
  it("grow with each crash to ten minutes", () => {
    for (const { delay_ms, n } of retries.crash) assert.strictEqual(crashBackoffMs(n), delay_ms, `crash ${n}`)
    assert.strictEqual(crashBackoffMs(Number.NaN), 1000)
  })
  it("grow with each attempt that was no failure to five minutes, and never fall below a second", () => {
    for (const { delay_ms, n } of retries.streak) assert.strictEqual(streakBackoffMs(n), delay_ms, `streak ${n}`)
    for (const n of [0, -3, Number.NaN]) assert.strictEqual(streakBackoffMs(n), 1000)
  })
})
