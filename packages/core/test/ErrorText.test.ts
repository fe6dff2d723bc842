import { Data, Redacted, Schema } from "effect"
import { SqlError, UnknownError } from "effect/sql/SqlError"
import { assert, describe, it } from "vitest"
import {
  MAX_ERROR_MESSAGE_BYTES,
  MAX_ERROR_TEXT_BYTES,
  shownText,
  type StoredError,
  storedError
} from "../src/ErrorText.ts"

const bytes = (text: string) => Buffer.byteLength(text, "utf8")

const assertStorable = (error: StoredError) => {
  for (const text of [error.tag, error.message, error.text]) assert.notMatch(text, /[\u0000\ud800-\udfff]/u)
  assert.isAtMost(bytes(error.tag), 128)
  assert.isAtMost(bytes(error.message), MAX_ERROR_MESSAGE_BYTES)
  assert.isAtMost(bytes(error.text), MAX_ERROR_TEXT_BYTES)
}

const hostile = (): unknown =>
  new Proxy({}, {
    get: () => {
      throw new Error("trap")
    },
    ownKeys: () => {
      throw new Error("trap")
    },
    getPrototypeOf: () => {
      throw new Error("trap")
    }
  })

describe("a failed query", () => {
  it("says what the database said", () => {
    const cause = new Error("relation \"nope\" does not exist")
    const failed = new SqlError({ reason: new UnknownError({ cause, message: "Query failed", operation: "execute" }) })
    const { message, tag, text } = storedError(failed)
    assert.deepStrictEqual([tag, message], ["SqlError", "relation \"nope\" does not exist"])
    assert.include(text, "Query failed")
  })
})

describe("a usual error", () => {
  it("is stored with name, message, stack and causes", () => {
    const { message, tag, text } = storedError(new TypeError("outer", { cause: new RangeError("inner") }))
    assert.deepStrictEqual([tag, message], ["TypeError", "outer"])
    assert.match(text, /^TypeError: outer\n {4}at .*ErrorText\.test\.ts[\s\S]*\nCaused by: RangeError: inner\n {4}at /)
  })
  it("is tagged by its _tag, and shows its fields where it has no message", () => {
    class ShopClosed
      extends Schema.TaggedError<ShopClosed>()("ShopClosed", { shop: Schema.String, code: Schema.Int })
    {}
    class Busy extends Data.TaggedError("Busy")<{ readonly message: string }> {}
    const closed = storedError(new ShopClosed({ shop: "s1", code: 4 }))
    assert.deepStrictEqual([closed.tag, closed.message], ["ShopClosed", `{ shop: "s1", code: 4 }`])
    const busy = storedError(new Busy({ message: "later" }))
    assert.deepStrictEqual([busy.tag, busy.message], ["Busy", "later"])
    const plain = storedError({ _tag: "Plain", at: new Date(0), deep: { a: [1, { b: { c: 1 } }] } })
    assert.deepStrictEqual(
      [plain.tag, plain.message],
      ["Plain", "{ at: 1970-01-01T00:00:00.000Z, deep: { a: [1, [...]] } }"]
    )
  })
  it("without a message keeps the frame that raised it", () => {
    class Boom extends Schema.TaggedError<Boom>()("Boom", { shop: Schema.String }) {}
    assert.match(storedError(new Boom({ shop: "s1" })).text, /^Boom: \{ shop: "s1" \}\n {4}at .*ErrorText\.test\.ts/)
  })
  it("of more frames than are kept keeps the program's own before those of Effect", () => {
    const error = new Error("deep")
    const inner = "\n    at FiberImpl.runLoop (file:///app/node_modules/effect/dist/internal/effect.js:476:97)".repeat(
      300
    )
    error.stack = `Error: deep\n    at first (main.ts:1:1)${inner}\n    at last (main.ts:2:2)`
    const { text } = storedError(error)
    assert.strictEqual(text, "Error: deep\n    at first (main.ts:1:1)\n    at last (main.ts:2:2)")
  })
  it("keeps its frames when the message looks like frames", () => {
    const error = new Error("one\n    at two")
    assert.strictEqual(storedError(error).text, `${error.stack}`)
  })
  it("does not reveal a redacted field", () => {
    assert.notInclude(storedError({ _tag: "X", key: Redacted.make("hunter2") }).text, "hunter2")
  })
})

describe("anything can be stored", () => {
  const values: ReadonlyArray<[string, unknown]> = [
    ["undefined", undefined],
    ["null", null],
    ["a string", "not yet"],
    ["a symbol", Symbol("s")],
    ["a bigint", 5n],
    ["a function", () => 1],
    ["an empty object", {}],
    ["an object without a prototype", Object.create(null)],
    ["an array", [1, "two", { three: 3 }]],
    ["an invalid date", new Date(Number.NaN)],
    ["a revoked proxy", revoked()],
    ["throwing traps", hostile()],
    ["a throwing cause", new Error("x", { cause: hostile() })],
    ["throwing getters", {
      get _tag() {
        throw new Error("no")
      },
      get message() {
        throw new Error("no")
      },
      get stack() {
        throw new Error("no")
      }
    }],
    ["a throwing toString", {
      toString: () => {
        throw new Error("no")
      }
    }],
    ["fields that are no text", { _tag: 1, name: {}, message: 7, stack: [], cause: 0 }],
    ["NUL and half pairs", new Error("bad\u0000 \ud83d \ude00")],
    ["a tag of NUL and half pairs", { _tag: "\u0000\ud83d".repeat(500), message: "\u0000".repeat(100_000) }],
    ["a field of half pairs", { _tag: "X", field: "\ud83d\u0000" }]
  ]
  for (const [name, value] of values) {
    it(`${name}`, () => assertStorable(storedError(value)))
  }

  it("with U+FFFD in place of NUL and half pairs, and whole pairs and literal escapes untouched", () => {
    assert.strictEqual(storedError("a\u0000b \ud83d 😀 \\u0000").message, "a\ufffdb \ufffd 😀 \\u0000")
  })
  it("and a string keeps its text", () => {
    assert.deepStrictEqual(storedError("not yet"), { tag: "NonError", message: "not yet", text: "NonError: not yet" })
  })
})

describe("a large error", () => {
  it("is cut between characters, with the number of bytes cut", () => {
    for (const shift of ["", "a", "aa", "aaa"]) {
      const { message } = storedError(shift + "😀".repeat(2000))
      const [, kept = "", cut] = /^(.*)\[cut: (\d+) bytes\]$/u.exec(message) ?? []
      assert.strictEqual(bytes(kept) + Number(cut), shift.length + 8000)
      assert.isTrue((shift + "😀".repeat(2000)).startsWith(kept) && kept.length > 1000)
    }
  })
  it("of exactly the limit is not cut", () => {
    assert.strictEqual(storedError("é".repeat(2048)).message, "é".repeat(2048))
    assert.include(storedError("é".repeat(2049)).message, "[cut: ")
  })
  it("of 50 MB is cheap, bounded, and keeps its frames", () => {
    const error = new Error("😀".repeat(12_500_000), { cause: "y".repeat(50_000_000) })
    const started = performance.now()
    const stored = storedError(error)
    assert.isBelow(performance.now() - started, 30_000)
    assertStorable(stored)
    assert.match(stored.text, /\[cut: more than \d+ bytes\]\n {4}at [\s\S]*Caused by: NonError: y+\[cut: /)
  })
  it("of a million fields shows a few", () => {
    const error = Object.fromEntries(Array.from({ length: 1_000_000 }, (_, i) => [`k${i}`, i]))
    assert.isBelow(storedError(error).message.length, 500)
  })
  it("of many large causes stays within the limit", () => {
    let error = new Error("z".repeat(100_000))
    for (let i = 0; i < 6; i++) error = new Error("z".repeat(100_000), { cause: error })
    const stored = storedError(error)
    assertStorable(stored)
    assert.match(stored.text, /\[cut: \d+ bytes\]$/)
  })
})

describe("a chain of causes", () => {
  it("ends at a cause that was named before", () => {
    const first = new Error("first")
    const second = new Error("second", { cause: first })
    first.cause = second
    const { text } = storedError(first)
    assert.strictEqual(text.match(/Caused by/g)?.length, 2)
    assert.match(text, /Caused by: \[a cause named above\]$/)
  })
  it("is followed 8 deep and then says that there are more", () => {
    let error = new Error("0")
    for (let i = 1; i <= 20; i++) error = new Error(String(i), { cause: error })
    const { text } = storedError(error)
    assert.strictEqual(text.match(/Caused by: Error: \d+/g)?.length, 8)
    assert.match(text, /Caused by: \[more causes\]$/)
  })
  it("follows the first error of an aggregate", () => {
    assert.match(
      storedError(new AggregateError([new Error("one"), new Error("two")], "all")).text,
      /Caused by: Error: one/
    )
  })
})

describe("shown text", () => {
  it("shows what it can of any value, and throws for none", () => {
    const trap = () => {
      throw new Error("trap")
    }
    const hidden = "[a value that cannot be shown]"
    assert.deepStrictEqual([revoked(), new Proxy({}, { getPrototypeOf: trap })].map((value) => shownText(value, 100)), [
      hidden,
      hidden
    ])
    assert.strictEqual(shownText(new TypeError("no"), 100), "TypeError: no")
  })
})

function revoked(): unknown {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  return proxy
}
