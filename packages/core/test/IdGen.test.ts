import { Context, Effect } from "effect"
import { assert, describe, it } from "vitest"
import { IdGen, makeUlid } from "../src/IdGen.ts"

const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/
const bytes = (fill: number) => () => new Uint8Array(10).fill(fill)

/** Ids made at the given clock readings. */
const at = (readings: ReadonlyArray<number>, fill: number): ReadonlyArray<string> => {
  let i = 0
  const ids = makeUlid(() => readings[i++] ?? 0, bytes(fill))
  return readings.map(() => ids.next())
}

const assertRising = (ids: ReadonlyArray<string>) => {
  for (const [i, id] of ids.entries()) {
    assert.match(id, ULID)
    if (i > 0) assert.isTrue(id > (ids[i - 1] ?? ""), `${ids[i - 1]} before ${id}`)
  }
}

describe("an id made by default", () => {
  const { next } = Context.get(Context.empty(), IdGen)

  it("is a ULID above every id made before it in the process", () => {
    assertRising(Array.from({ length: 20_000 }, next))
  })
  it("holds the time in its first ten characters", () => {
    assert.deepStrictEqual(at([0, 1, 31, 32, 1_469_918_176_385, 2 ** 48 - 1], 0).map((id) => id.slice(0, 10)), [
      "0000000000",
      "0000000001",
      "000000000Z",
      "0000000010",
      "01ARYZ6S41",
      "7ZZZZZZZZZ"
    ])
  })
  it("holds all 80 random bits in the rest", () => {
    const random = Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    const id = makeUlid(() => 5, () => random).next()
    let value = 0n
    for (const character of id.slice(10)) {
      value = value * 32n + BigInt("0123456789ABCDEFGHJKMNPQRSTVWXYZ".indexOf(character))
    }
    assert.strictEqual(value.toString(16), "102030405060708090a")
  })
  it("rises inside one millisecond and when the clock goes back", () => {
    assertRising(at([1000, 1000, 1000, 400, 0, 999, 1001, 1000], 7))
  })
  it("rises past the last random value of a millisecond", () => {
    assertRising(at([1000, 1000, 1000, 1001, 1001, 1002], 255))
  })
  it("carries over from the low half of the random part to the high half", () => {
    const halves = makeUlid(() => 1000, () => Uint8Array.from([0, 0, 0, 0, 0, 255, 255, 255, 255, 255]))
    const ids = [halves.next(), halves.next(), halves.next()]
    assertRising(ids)
    assert.strictEqual(ids[1]?.slice(10), "0000000100000000")
  })
})

describe("the id service", () => {
  it("can be replaced", () => {
    const program = Effect.map(IdGen, (ids) => ids.next())
    const id = Effect.runSync(Effect.provideService(program, IdGen, { next: () => "fixed" }))
    assert.strictEqual(id, "fixed")
  })
})
