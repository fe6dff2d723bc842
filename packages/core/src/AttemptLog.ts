/**
 * What a handler logged while its attempt ran, as it is kept with an attempt that did not succeed. Lines are made where
 * they are logged, so that a value that changes later is shown as it was; each is bounded whatever was logged.
 */
import type * as Cause from "effect/Cause"
import type { Severity } from "effect/LogLevel"
import { boundedText, shownText, storedError } from "./ErrorText.ts"
import { utf8Length } from "./Text.ts"

/** In UTF-8 bytes, the mark of a cut included. */
export const MAX_LOG_MESSAGE_BYTES = 4096
export const MAX_LOG_ANNOTATION_BYTES = 128
export const MAX_LOG_ANNOTATIONS = 10
/** What one attempt may keep at most, whatever its worker was told. */
export const MAX_LOG_LINES = 1000
export const MAX_LOG_BYTES = 65_536

/** All of it is storable text. */
export interface LogLine {
  /** Since the attempt's start, on the worker's monotonic clock. */
  readonly afterMs: number
  readonly level: Severity
  /** The arguments of the call, then the errors of a cause that was logged with them, with their stacks. */
  readonly message: string
  readonly annotations: Readonly<Record<string, string>>
}

export interface AttemptLog {
  /** The newest lines, oldest first. */
  readonly lines: ReadonlyArray<LogLine>
  /** Lines before these that were not kept. */
  readonly dropped: number
}

export interface LoggedLine {
  readonly afterMs: number
  readonly level: Severity
  /** The arguments of the call: an array, or one value. */
  readonly message: unknown
  readonly cause: Cause.Cause<unknown>
  readonly annotations: Readonly<Record<string, unknown>>
}

/** Never throws. */
export const logLine = ({ afterMs, annotations, cause, level, message }: LoggedLine): LogLine => {
  const parts = (Array.isArray(message) ? message : [message]).slice(0, MAX_PARTS)
  const shown = parts.map((part) => shownText(part, MAX_LOG_MESSAGE_BYTES)).join(" ")
  const errors = cause.reasons.slice(0, MAX_REASONS).map(textOfReason)
  return {
    afterMs: Math.max(0, Math.round(afterMs)),
    level,
    message: boundedText([shown, ...errors].filter((text) => text !== "").join("\n"), MAX_LOG_MESSAGE_BYTES),
    annotations: shortAnnotations(annotations)
  }
}

/** What a line takes of the bytes an attempt may keep. */
export const logLineBytes = ({ annotations, message }: LogLine): number => {
  let bytes = LINE_BYTES + utf8Length(message)
  for (const name in annotations) bytes += utf8Length(name) + utf8Length(annotations[name] ?? "")
  return bytes
}

const textOfReason = (reason: Cause.Reason<unknown>): string => {
  switch (reason._tag) {
    case "Fail":
      return storedError(reason.error).text
    case "Die":
      return storedError(reason.defect).text
    case "Interrupt":
      return "Interrupted"
  }
}

const shortAnnotations = (annotations: Readonly<Record<string, unknown>>): Readonly<Record<string, string>> => {
  const short: Record<string, string> = {}
  let count = 0
  for (const name in annotations) {
    if (ATTEMPTS_OWN.has(name)) continue
    if (count++ === MAX_LOG_ANNOTATIONS) break
    short[boundedText(name, MAX_LOG_ANNOTATION_BYTES)] = shownText(annotations[name], MAX_LOG_ANNOTATION_BYTES)
  }
  return short
}

const LINE_BYTES = 32
const MAX_PARTS = 20
const MAX_REASONS = 3
/** Said of every line of an attempt, whose record names them already. */
const ATTEMPTS_OWN: ReadonlySet<string> = new Set(["jobId", "kind"])
