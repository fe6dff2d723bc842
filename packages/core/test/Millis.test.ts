import { Duration, Result } from "effect"
import { assert, describe, it } from "vitest"
import { MAX_DURATION_MS, wholeMillis, zeroOrMillis } from "../src/Millis.ts"

const ms = (input: Duration.Input, min?: number) => Result.getOrUndefined(wholeMillis("timeout", input, min))

describe("a duration at the boundary", () => {
  it("is rounded to whole milliseconds", () => {
    assert.deepStrictEqual([ms("1.4 millis"), ms("600 micros"), ms("2 minutes"), ms(1n)], [1, 1, 120_000, undefined])
  })
  it("that rounds to 0 is refused with the minimum named", () => {
    const refusal = Result.getOrThrow(Result.flip(wholeMillis("timeout", "400 micros")))
    assert.deepStrictEqual([refusal.field, refusal.limit, refusal.actual], ["timeout", 1, 0])
    assert.match(refusal.message, /minimum of 1 ms/)
  })
  it("may be 0 where that has a meaning, but never negative", () => {
    assert.strictEqual(ms(Duration.zero, 0), 0)
    assert.isUndefined(ms(Duration.seconds(-1), 0))
  })
  it("whose zero is a choice may be zero, but not a remainder that rounds to it, and not NaN", () => {
    const choice = (input: Duration.Input) => Result.getOrUndefined(zeroOrMillis("retention", input))
    assert.deepStrictEqual([choice(0), choice("3 millis")], [0, 3])
    for (const input of ["400 micros", Number.NaN, -1] as const) assert.isUndefined(choice(input), String(input))
  })
  it("that is NaN is refused, also where zero is allowed", () => {
    assert.isUndefined(ms(Number.NaN, 0))
  })
  it("is at most 100 years", () => {
    assert.strictEqual(ms(MAX_DURATION_MS), MAX_DURATION_MS)
    for (const input of [MAX_DURATION_MS + 1, Duration.infinity]) assert.isUndefined(ms(input))
  })
})
