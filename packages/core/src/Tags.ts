/** Free labels of a job, stored in one canonical form so that equal sets compare equal. */
import * as Result from "effect/Result"
import { Invalid } from "./Refusals.ts"
import { byCodePoint, isStorableText } from "./Text.ts"

export const MAX_TAGS = 32
/** In Unicode code points. */
export const MAX_TAG_CHARACTERS = 64

/** Sorted by code point (the order of the UTF-8 bytes), without repeats. The count limit is taken before repeats go. */
export const canonicalTags = (tags: ReadonlyArray<string>): Result.Result<ReadonlyArray<string>, Invalid> => {
  const refusal = refuseTags(tags)
  return refusal === undefined ? Result.succeed(sortedTags(tags)) : Result.fail(refusal)
}

/** The canonical order of tags that were already checked. */
export const sortedTags = (tags: ReadonlyArray<string>): ReadonlyArray<string> =>
  tags.length < 2 ? tags : [...new Set(tags)].sort(byCodePoint)

/** The refusal of more than 32 tags, or of a tag that is not 1 to 64 characters of storable text, if there is one. */
export const refuseTags = (tags: ReadonlyArray<string>): Invalid | undefined => {
  if (tags.length > MAX_TAGS) {
    const message = `${tags.length} tags were given, the limit is ${MAX_TAGS}`
    return new Invalid({ field: "tags", message, limit: MAX_TAGS, actual: tags.length })
  }
  for (const tag of tags) {
    const refusal = refuseTag(tag)
    if (refusal !== undefined) return refusal
  }
  return undefined
}

const refuseTag = (tag: string): Invalid | undefined => {
  if (typeof tag !== "string") return new Invalid({ field: "tags", message: "a tag must be text" })
  const length = characters(tag)
  if (length === 0) return new Invalid({ field: "tags", message: "a tag is empty", limit: 1, actual: 0 })
  if (length > MAX_TAG_CHARACTERS) {
    const message = `a tag has ${length} characters, the limit is ${MAX_TAG_CHARACTERS}`
    return new Invalid({ field: "tags", message, limit: MAX_TAG_CHARACTERS, actual: length })
  }
  if (!isStorableText(tag)) {
    return new Invalid({ field: "tags", message: "a tag holds NUL or half of a surrogate pair" })
  }
  return undefined
}

const characters = (text: string): number => {
  let pairs = 0
  for (let i = 1; i < text.length; i++) {
    if ((text.charCodeAt(i) & 0xfc00) === 0xdc00 && (text.charCodeAt(i - 1) & 0xfc00) === 0xd800) pairs++
  }
  return text.length - pairs
}
