/**
 * W3C Trace Context carried by a job from its producer to its attempts, in two reserved headers. Read leniently: a bad
 * value costs a trace link, never a job.
 */
import * as Option from "effect/Option"

/** Reserved header holding W3C `traceparent`. */
export const TRACEPARENT = "traceparent"

/** Reserved header holding W3C `tracestate`: carried byte for byte, never parsed or cut. */
export const TRACESTATE = "tracestate"

export interface TraceContext {
  /** 32 lowercase hex digits. */
  readonly traceId: string
  /** 16 lowercase hex digits. */
  readonly spanId: string
  /** The eight flag bits; bit 0 is `sampled`. */
  readonly flags: number
  readonly isSampled: boolean
  readonly tracestate: string | undefined
}

/** Version 00 only, lowercase hex, exact lengths, no all-zero id; anything else is none. */
export const parseTraceparent = (value: string): Option.Option<TraceContext> => parse(value, undefined)

/** The trace of a job's headers; none when the header is absent or invalid, which callers need not tell apart. */
export const traceContext = (headers: Readonly<Record<string, string>>): Option.Option<TraceContext> => {
  const value = headers[TRACEPARENT]
  return value === undefined ? Option.none() : parse(value, headers[TRACESTATE])
}

const parse = (value: string, tracestate: string | undefined): Option.Option<TraceContext> => {
  const match = FORMAT.exec(value)
  if (match === null) return Option.none()
  const [, traceId = "", spanId = "", bits = ""] = match
  const flags = Number.parseInt(bits, 16)
  return Option.some({ traceId, spanId, flags, isSampled: (flags & 1) === 1, tracestate })
}

const FORMAT = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/
