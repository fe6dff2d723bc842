/**
 * Turns whatever an attempt failed with into an error that can be stored. Called on the failure path, which must not
 * fail itself: any value is accepted, nothing is thrown, and the cost is bounded whatever the value's size.
 */
import { cutUtf8, fitsUtf8, toStorableText, utf8Length } from "./Text.ts"

export const MAX_ERROR_TAG_BYTES = 128
export const MAX_ERROR_MESSAGE_BYTES = 4096
export const MAX_ERROR_TEXT_BYTES = 65_536

/** All three are storable text: NUL and unpaired surrogates became U+FFFD. What was cut says so: `[cut: N bytes]`. */
export interface StoredError {
  /** `_tag`, else the error's `name`; `NonError` for anything that has neither. */
  readonly tag: string
  /** At most 4 kB. The fields of an error without a message stand in for it. */
  readonly message: string
  /** At most 64 kB: tag, message and stack of the error and of its causes, 8 deep. */
  readonly text: string
}

export const storedError = (failure: unknown): StoredError => {
  const tag = tagOf(failure)
  const message = tag === "SqlError" ? innermostMessage(failure) : messageOf(failure)
  return {
    tag,
    message: boundedText(message, MAX_ERROR_MESSAGE_BYTES),
    text: boundedText(causes(failure, entry(failure, tag, message)), MAX_ERROR_TEXT_BYTES)
  }
}

/** Any value as storable text of at most `maxBytes`, read as carefully as an error is. An error is its tag and message. */
export const shownText = (value: unknown, maxBytes: number): string => {
  if (typeof value === "string") return boundedText(value, maxBytes)
  if (!isError(value)) return boundedText(shownOrNot(value), maxBytes)
  const message = messageOf(value)
  return boundedText(message === "" ? tagOf(value) : `${tagOf(value)}: ${message}`, maxBytes)
}

// A proxy may throw at the mere question.
const isError = (value: unknown): value is Error => {
  try {
    return value instanceof Error
  } catch {
    return false
  }
}

const causes = (failure: unknown, first: string): string => {
  let text = first
  const seen = new Set<unknown>([failure])
  let cause = causeOf(failure)
  for (let depth = 0; cause !== undefined; depth++, cause = causeOf(cause)) {
    if (depth === MAX_CAUSES) return `${text}\nCaused by: [more causes]`
    if (seen.has(cause)) return `${text}\nCaused by: [a cause named above]`
    seen.add(cause)
    text += `\nCaused by: ${entry(cause, tagOf(cause), messageOf(cause))}`
  }
  return text
}

const entry = (failure: unknown, tag: string, message: string): string => {
  const head = message === "" ? tag : `${tag}: ${boundedText(message, MAX_PART_BYTES)}`
  return head + boundedText(nearest(framesOf(failure)), MAX_PART_BYTES)
}

// What the database said stands below two wrappers that only say that a query failed.
const innermostMessage = (failure: unknown): string => {
  let innermost = failure
  for (let depth = 0; depth < MAX_CAUSES; depth++) {
    const cause = causeOf(innermost)
    if (cause === undefined || messageOf(cause) === "") break
    innermost = cause
  }
  return messageOf(innermost)
}

// The stack begins with the error's own message, of any length and content: the frames are looked for behind it.
const framesOf = (failure: unknown): string => {
  const stack = read(failure, "stack")
  if (typeof stack !== "string") return ""
  const message = read(failure, "message")
  const length = typeof message === "string" ? message.length : 0
  const behind = stack.indexOf(FRAME, length)
  const start = behind === -1 && length < stack.length ? stack.indexOf(FRAME) : behind
  return start === -1 ? "" : stack.slice(start)
}

// Of more frames than are kept, those of the program's own code.
const nearest = (frames: string): string => {
  if (frames.length <= MAX_PART_BYTES) return frames
  const own = frames.slice(0, MAX_FRAMES_READ).split("\n").filter((line) => !EFFECTS_OWN.test(line)).join("\n")
  return own === "" ? frames : own
}

// Of the errors of an `AggregateError` the first stands for all.
const causeOf = (failure: unknown): unknown => {
  const cause = read(failure, "cause")
  if (cause !== undefined && cause !== null) return cause
  const errors = read(failure, "errors")
  return Array.isArray(errors) ? read(errors, 0) : undefined
}

const tagOf = (failure: unknown): string => {
  const tag = read(failure, "_tag")
  if (typeof tag === "string" && tag !== "") return storableTag(tag)
  const name = typeof read(failure, "message") === "string" ? read(failure, "name") : undefined
  return typeof name === "string" && name !== "" ? storableTag(name) : "NonError"
}

const storableTag = (tag: string): string =>
  cutUtf8(toStorableText(tag.slice(0, MAX_ERROR_TAG_BYTES)), MAX_ERROR_TAG_BYTES)

const messageOf = (failure: unknown): string => {
  const message = read(failure, "message")
  if (typeof message === "string" && message !== "") return message
  return typeof failure === "string" ? failure : shownOrNot(failure)
}

const shownOrNot = (value: unknown): string => {
  try {
    return shown(value, 0)
  } catch {
    return "[a value that cannot be shown]"
  }
}

const shown = (value: unknown, depth: number): string => {
  switch (typeof value) {
    case "string":
      return JSON.stringify(value.slice(0, MAX_SHOWN_TEXT)) + (value.length > MAX_SHOWN_TEXT ? "..." : "")
    case "function":
      return "[function]"
    case "object":
      return value === null ? "null" : depth > MAX_SHOWN_DEPTH ? "[...]" : object(value, depth)
    default:
      return String(value)
  }
}

const object = (value: object, depth: number): string => {
  if (ArrayBuffer.isView(value)) return `[${value.byteLength} bytes]`
  if (value instanceof Map || value instanceof Set) return `[${value.size} entries]`
  if (value instanceof Date) return value.toISOString()
  if (Array.isArray(value)) {
    const items = value.slice(0, MAX_SHOWN_FIELDS).map((item) => shown(item, depth + 1))
    return `[${items.join(", ")}${value.length > MAX_SHOWN_FIELDS ? ", ..." : ""}]`
  }
  return fields(value, depth)
}

// Reads the fields and never a `toString` or `toJSON` of the value's own, whose cost nobody knows.
const fields = (value: object, depth: number): string => {
  const pairs: Array<string> = []
  for (const key in value) {
    if (!Object.hasOwn(value, key) || HIDDEN.has(key)) continue
    if (pairs.length === MAX_SHOWN_FIELDS) {
      pairs.push("...")
      break
    }
    pairs.push(`${key.slice(0, MAX_SHOWN_TEXT)}: ${shown(read(value, key), depth + 1)}`)
  }
  if (pairs.length > 0) return `{ ${pairs.join(", ")} }`
  return depth === 0 ? "" : "{}"
}

const read = (value: unknown, key: PropertyKey): unknown => {
  if ((typeof value !== "object" || value === null) && typeof value !== "function") return undefined
  try {
    return Reflect.get(value, key)
  } catch {
    return undefined
  }
}

/** Repaired, and cut to at most `maxBytes` UTF-8 bytes with the mark of what was cut. The cost is bounded by `maxBytes`. */
export const boundedText = (text: string, maxBytes: number): string => {
  const head = toStorableText(text.length > maxBytes ? text.slice(0, maxBytes) : text)
  if (text.length <= maxBytes && fitsUtf8(head, maxBytes)) return head
  const kept = cutUtf8(head, maxBytes - MAX_MARK_BYTES)
  // A repaired text has one unit for each unit of the original, so places agree.
  const rest = text.length - kept.length
  const bytes = rest <= MAX_COUNTED ? utf8Length(text.slice(kept.length)) : `more than ${rest}`
  return `${kept}[cut: ${bytes} bytes]`
}

const FRAME = "\n    at "
const EFFECTS_OWN = /\/node_modules\/effect\/|at Generator\.next \(<anonymous>\)/
const MAX_FRAMES_READ = 1_048_576
const MAX_CAUSES = 8
const MAX_PART_BYTES = 16_384
const MAX_MARK_BYTES = 64
const MAX_COUNTED = 1_048_576
const MAX_SHOWN_TEXT = 200
const MAX_SHOWN_FIELDS = 20
const MAX_SHOWN_DEPTH = 2
const HIDDEN: ReadonlySet<string> = new Set(["_tag", "name", "message", "stack", "cause", "errors"])
