import * as fc from "fast-check"
import { assert, describe, it } from "vitest"
import { byCodePoint, cutUtf8, fitsUtf8, isStorableText, toStorableText, utf8Length } from "../src/Text.ts"

const anyText = fc.string({ unit: fc.constantFrom("a", "\u0000", "é", "€", "😀", "\ud83d", "\ude00", "\uff5e") })
const wholeText = fc.string({ unit: fc.constantFrom("a", "é", "€", "😀", "\uff5e") })
const utf8 = (text: string) => Buffer.from(text, "utf8")

describe("text", () => {
  it("is storable unless it holds NUL or half of a pair", () => {
    for (const text of ["", "ok 😀", "\\u0000", "\u0001"]) assert.isTrue(isStorableText(text), JSON.stringify(text))
    for (const text of ["a\u0000b", "\ud83d", "\ude00", "\ude00\ud83d", "😀\ud83d"]) {
      assert.isFalse(isStorableText(text), JSON.stringify(text))
    }
  })
  it("is repaired by one replacement character for each fault, and otherwise unchanged", () => {
    assert.strictEqual(toStorableText("a\u0000\ud83d😀\ude00\\u0000"), "a\ufffd\ufffd😀\ufffd\\u0000")
    fc.assert(fc.property(anyText, (text) => {
      const repaired = toStorableText(text)
      assert.isTrue(isStorableText(repaired) && repaired.length === text.length)
    }))
  })
  it("is measured in UTF-8 bytes", () => {
    fc.assert(fc.property(anyText, fc.nat(40), (text, max) => {
      assert.strictEqual(utf8Length(text), utf8(text).length)
      assert.strictEqual(fitsUtf8(text, max), utf8(text).length <= max)
    }))
  })
  it("is cut to the longest prefix that fits and splits no pair", () => {
    fc.assert(fc.property(wholeText, fc.nat(40), (text, max) => {
      const cut = cutUtf8(text, max)
      assert.isTrue(text.startsWith(cut) && utf8Length(cut) <= max && isStorableText(cut))
      const [next] = text.slice(cut.length)
      assert.isTrue(next === undefined || utf8Length(cut + next) > max)
    }))
  })
  it("is ordered like its UTF-8 bytes", () => {
    fc.assert(fc.property(wholeText, wholeText, (a, b) => {
      assert.strictEqual(Math.sign(byCodePoint(a, b)), utf8(a).compare(utf8(b)))
    }))
  })
})
