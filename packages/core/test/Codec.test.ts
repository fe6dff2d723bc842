import { DateTime, Effect, Option, Result, Schema, SchemaGetter } from "effect"
import * as fc from "fast-check"
import { assert, describe, it } from "vitest"
import { Codec } from "../src/Codec.ts"

const utf8 = (text: string) => new TextEncoder().encode(text)
const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes)
const roundTrip = <A>(codec: Codec<A>, value: A): A =>
  Result.getOrThrow(codec.decode(Result.getOrThrow(codec.encode(value))))
const fault = <A, E>(result: Result.Result<A, E>): E => Result.getOrThrow(Result.flip(result))

const STRINGS = [
  "a\u0000b",
  "\ud83d",
  "\ude00",
  "ok 😀",
  "\\u0000",
  "\u2028",
  "",
  "\ufeff",
  "__proto__",
  "\ude00\ud83d"
]

describe("the JSON codec", () => {
  for (const string of STRINGS) {
    it(`gives ${JSON.stringify(string)} back as it was, as value and key, three levels deep`, () => {
      const Level1 = Schema.Record(Schema.String, Schema.Array(Schema.String))
      const codec = Codec.json(Schema.Record(Schema.String, Schema.Record(Schema.String, Level1)))
      const level1 = Object.fromEntries([[string, [string]]])
      const value = Object.fromEntries([[string, Object.fromEntries([[string, level1]])]])
      assert.deepStrictEqual(roundTrip(codec, value), value)
    })
  }
  it("gives any string back as it was", () => {
    const codec = Codec.json(Schema.String)
    const unit = fc.integer({ min: 0, max: 0xffff }).map((code) => String.fromCharCode(code))
    fc.assert(fc.property(fc.string({ unit }), (string) => assert.strictEqual(roundTrip(codec, string), string)))
  })
  it("is plain JSON, readable by anyone", () => {
    const codec = Codec.json(Schema.Struct({ shop: Schema.String, n: Schema.Int }))
    assert.strictEqual(text(Result.getOrThrow(codec.encode({ shop: "é", n: 1 }))), `{"shop":"é","n":1}`)
  })
  it("takes schemas whose values are not JSON", () => {
    const codec = Codec.json(Schema.Struct({
      n: Schema.BigInt,
      at: Schema.Date,
      utc: Schema.DateTimeUtc,
      raw: Schema.Uint8Array,
      maybe: Schema.Option(Schema.String),
      seen: Schema.ReadonlyMap(Schema.String, Schema.Number)
    }))
    const value = {
      n: 2n ** 70n,
      at: new Date(5),
      utc: DateTime.makeUnsafe(7),
      raw: Uint8Array.from([0, 255]),
      maybe: Option.some("x"),
      seen: new Map([["k", Number.NaN]])
    }
    assert.deepStrictEqual(roundTrip(codec, value), value)
  })
  it("writes nothing for void, and reads it from nothing or null", () => {
    for (const codec of [Codec.json(Schema.Void), Codec.json(Schema.Undefined)]) {
      assert.strictEqual(Result.getOrThrow(codec.encode(undefined)).length, 0)
      assert.isUndefined(Result.getOrThrow(codec.decode(new Uint8Array(0))))
      assert.isUndefined(Result.getOrThrow(codec.decode(utf8("null"))))
    }
  })
})

describe("bytes that do not decode", () => {
  const codec = Codec.json(Schema.Struct({ orders: Schema.Array(Schema.Struct({ "a b": Schema.Int })) }), {
    kind: "orders:import"
  })

  it("are a fault that names kind, direction and path", () => {
    const { direction, kind, path } = fault(codec.decode(utf8(`{"orders":[{"a b":1},{"a b":"x"}]}`)))
    assert.deepStrictEqual({ direction, kind, path }, {
      direction: "decode",
      kind: "orders:import",
      path: `orders[1]["a b"]`
    })
  })
  it("are a fault for what is no JSON, no UTF-8, cut short or nothing", () => {
    for (const bytes of [utf8("{"), utf8("secret"), utf8("1 2"), new Uint8Array(0)]) {
      assert.match(fault(codec.decode(bytes)).message, /JSON/)
    }
    const string = Codec.json(Schema.String)
    assert.match(fault(string.decode(Uint8Array.from([0x22, 0xff, 0x22]))).message, /UTF-8/)
  })
  it("are a fault when nested beyond any stack", () => {
    const deep = utf8("[".repeat(500_000) + "]".repeat(500_000))
    assert.strictEqual(fault(Codec.json(Schema.String).decode(deep))._tag, "CodecError")
    interface Nest extends ReadonlyArray<Nest> {}
    const Nest: Schema.Codec<Nest> = Schema.Array(Schema.suspend((): Schema.Codec<Nest> => Nest))
    assert.strictEqual(fault(Codec.json(Nest).decode(deep))._tag, "CodecError")
  })
  it("are a fault that quotes nothing of them", () => {
    const whole = JSON.stringify(fault(codec.decode(utf8("hunter2"))))
    const part = JSON.stringify(fault(codec.decode(utf8(`{"orders":"hunter2"}`))))
    assert.notInclude(whole + part, "hunter2")
  })
  it("are a fault with a bounded, storable path", () => {
    const records = Codec.json(Schema.Record(Schema.String, Schema.Int))
    const { path = "" } = fault(records.decode(utf8(JSON.stringify({ ["\ud83d\u0000" + "k".repeat(100_000)]: "x" }))))
    assert.isTrue(path.length > 0 && path.length <= 512)
    assert.notMatch(path, /[\u0000\ud800-\udfff]/u)
  })
})

describe("a value that does not encode", () => {
  it("is a fault that names the path", () => {
    const codec = Codec.json(Schema.Struct({ a: Schema.Struct({ n: Schema.Int }) }))
    const { direction, path } = fault(codec.encode({ a: { n: 1.5 } }))
    assert.deepStrictEqual([direction, path], ["encode", "a.n"])
  })
  it("is a fault for a cycle, a throwing getter and a function", () => {
    const cycle: Record<string, unknown> = {}
    cycle["self"] = cycle
    const throwing = {
      get a(): string {
        throw new Error("no")
      }
    }
    const codec = Codec.json(Schema.Unknown)
    for (const value of [cycle, throwing, () => 1, undefined, Symbol("s")]) {
      assert.strictEqual(fault(codec.encode(value)).direction, "encode")
    }
  })
})

describe("a schema with transformations of its own", () => {
  it("that throw gives a fault, not a throw", () => {
    const bad = Schema.String.pipe(Schema.decodeTo(Schema.String, {
      decode: SchemaGetter.transform<string, string>(() => {
        throw new Error("broken transformation")
      }),
      encode: SchemaGetter.transform((value: string) => value)
    }))
    assert.strictEqual(fault(Codec.json(bad).decode(utf8(`"x"`)))._tag, "CodecError")
  })
  it("that wait gives a fault, not a hang", () => {
    const slow = Schema.String.pipe(Schema.decodeTo(Schema.String, {
      decode: SchemaGetter.transformEffect<string, string>((value) => Effect.delay(Effect.succeed(value), 1)),
      encode: SchemaGetter.transform((value: string) => value)
    }))
    assert.strictEqual(fault(Codec.json(slow).decode(utf8(`"x"`)))._tag, "CodecError")
  })
})

describe("a codec of the user's own", () => {
  it("may throw, which is a fault with its message", () => {
    const codec = Codec.make<string>({
      encode: () => {
        throw new Error("no encoder today")
      },
      decode: () => {
        throw undefined
      }
    }, { kind: "mail" })
    assert.strictEqual(fault(codec.encode("x")).message, "no encoder today")
    assert.strictEqual(fault(codec.decode(new Uint8Array(0))).kind, "mail")
  })
})
