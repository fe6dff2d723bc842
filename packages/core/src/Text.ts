/**
 * What text a store can hold. Postgres text refuses NUL, and UTF-8 has no form for half of a surrogate pair, so names,
 * keys, headers and tags are refused with either, while error texts (which must never fail to be stored) are repaired.
 */

const UNSTORABLE = /[\u0000\ud800-\udfff]/u
const EACH_UNSTORABLE = /[\u0000\ud800-\udfff]/gu

/** True when the text holds no NUL and no unpaired surrogate. */
export const isStorableText = (text: string): boolean => !UNSTORABLE.test(text)

/** Replaces each NUL and each unpaired surrogate by U+FFFD; whole pairs stay as they are. */
export const toStorableText = (text: string): string =>
  UNSTORABLE.test(text) ? text.replace(EACH_UNSTORABLE, "\ufffd") : text

/** In UTF-8. Most texts are short and ASCII, and not worth a call to the platform. */
export const toUtf8 = (text: string): Uint8Array => {
  if (text.length > SHORT) return encoder.encode(text)
  const bytes = new Uint8Array(text.length)
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    if (unit > 0x7f) return encoder.encode(text)
    bytes[i] = unit
  }
  return bytes
}

/** Length in UTF-8 bytes; an unpaired surrogate counts as the three bytes of its replacement. */
export const utf8Length = (text: string): number => {
  let bytes = text.length
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    if (unit < 0x80) continue
    if (unit < 0x800) bytes += 1
    else if (isHighSurrogate(unit) && isLowSurrogate(text.charCodeAt(i + 1))) {
      bytes += 2
      i++
    } else bytes += 2
  }
  return bytes
}

/** True when the text is at most `maxBytes` UTF-8 bytes long; reads no more of it than needed. */
export const fitsUtf8 = (text: string, maxBytes: number): boolean =>
  text.length * 3 <= maxBytes || (text.length <= maxBytes && utf8Length(text) <= maxBytes)

/** The longest prefix of at most `maxBytes` UTF-8 bytes that splits no pair. Cost is bounded by `maxBytes`. */
export const cutUtf8 = (text: string, maxBytes: number): string => {
  if (text.length * 3 <= maxBytes) return text
  let bytes = 0
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    const isPair = isHighSurrogate(unit) && isLowSurrogate(text.charCodeAt(i + 1))
    bytes += unit < 0x80 ? 1 : unit < 0x800 ? 2 : isPair ? 4 : 3
    if (bytes > maxBytes) return text.slice(0, i)
    if (isPair) i++
  }
  return text
}

/** Orders by code point, which is the order of the UTF-8 bytes (JavaScript's own `<` differs above U+FFFF). */
export const byCodePoint = (a: string, b: string): number => {
  const length = Math.min(a.length, b.length)
  for (let i = 0; i < length; i++) {
    const left = a.charCodeAt(i)
    const right = b.charCodeAt(i)
    if (left !== right) return codePointRank(left) - codePointRank(right)
  }
  return a.length - b.length
}

const isHighSurrogate = (unit: number): boolean => unit >= 0xd800 && unit <= 0xdbff
const isLowSurrogate = (unit: number): boolean => unit >= 0xdc00 && unit <= 0xdfff
const codePointRank = (unit: number): number => unit >= 0xd800 && unit <= 0xdfff ? unit + 0x10000 : unit
const SHORT = 64
const encoder = new TextEncoder()
