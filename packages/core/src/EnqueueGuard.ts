/**
 * The one guard in front of every door for new jobs (code, schedules, HTTP). Hand-written because it runs on the hot
 * path; it looks at a whole batch before anything is written, and its answers are part of the conformance vectors.
 */
import * as Result from "effect/Result"
import { type Envelope, isLike, type LimitSlot, type Rate } from "./Envelope.ts"
import { isFingerprint, MAX_FINGERPRINT_BYTES } from "./Fingerprint.ts"
import { refuseName } from "./Kind.ts"
import { MAX_TIME_MS, refuseInteger, refuseMillis } from "./Millis.ts"
import { MAX_OPAQUE_SCHEMA_VERSION, refuseBytes } from "./Output.ts"
import { IdConflict, Invalid } from "./Refusals.ts"
import { State } from "./State.ts"
import { refuseTags } from "./Tags.ts"
import { fitsUtf8, isStorableText, utf8Length } from "./Text.ts"
import { TRACEPARENT, TRACESTATE } from "./TraceContext.ts"
import { refuseUniqueKey, UNIQUE_REPLACE_ALL } from "./UniqueKey.ts"
import { MAX_WEIGHT } from "./Weight.ts"

export const MAX_BATCH = 10_000
/** All payloads of one batch together: 64 MiB. */
export const MAX_BATCH_PAYLOAD_BYTES = 67_108_864
export const MAX_PAYLOAD_BYTES = 1_048_576
export const MAX_ID_BYTES = 128
export const MAX_PARTITION_KEY_BYTES = 256
export const MAX_ATTEMPTS_LIMIT = 1000
export const MAX_RATES = 8
export const MAX_LIMITS = 8
/** Of a rate class or a concurrency limit. */
export const MAX_POLICY_KEY_BYTES = 256
export const MAX_HEADERS = 64
export const MAX_HEADER_NAME_BYTES = 128
/** Names and values of one job together. */
export const MAX_HEADERS_BYTES = 16_384

/**
 * Checks 1 to 10,000 envelopes and answers the first fault. An id repeated inside the batch is a conflict even when the
 * content is the same. In a batch of several the message of an `Invalid` ends with the place of the job.
 */
export const validateEnqueue = (
  batch: ReadonlyArray<Envelope>,
  options: { readonly maxPayloadBytes?: number } = {}
): Result.Result<ReadonlyArray<Envelope>, Invalid | IdConflict> => {
  const refusal = refuseInteger("batch", batch.length, 1, MAX_BATCH, " jobs") ??
    refuseBatch(batch, options.maxPayloadBytes ?? MAX_PAYLOAD_BYTES)
  return refusal === undefined ? Result.succeed(batch) : Result.fail(refusal)
}

const refuseBatch = (batch: ReadonlyArray<Envelope>, maxPayloadBytes: number): Invalid | IdConflict | undefined => {
  const isAlone = batch.length === 1
  // Ids that rise are all different; the first that does not is looked up among those before it.
  let seen: Set<string> | undefined
  let previous: Envelope | undefined
  let last = ""
  let index = -1
  let bytes = 0
  for (const envelope of batch) {
    index++
    const refusal = refuseIdentity(envelope, maxPayloadBytes) ??
      (previous !== undefined && isLike(envelope, previous) ? undefined : refuseRest(envelope))
    previous = envelope
    if (refusal !== undefined) return isAlone ? refusal : placed(refusal, index)
    bytes += envelope.payload.length
    if (bytes > MAX_BATCH_PAYLOAD_BYTES) return tooManyBytes(batch)
    const { id } = envelope
    if (seen === undefined && id > last) {
      last = id
      continue
    }
    seen ??= new Set(batch.slice(0, index).map((earlier) => earlier.id))
    if (seen.has(id)) return new IdConflict({ id, index })
    seen.add(id)
  }
  return undefined
}

const tooManyBytes = (batch: ReadonlyArray<Envelope>): Invalid => {
  const actual = batch.reduce((sum, { payload }) => sum + payload.length, 0)
  const message = `the payloads of the batch take ${actual} bytes, the limit is ${MAX_BATCH_PAYLOAD_BYTES}`
  return new Invalid({ field: "batch", message, limit: MAX_BATCH_PAYLOAD_BYTES, actual })
}

const placed = (refusal: Invalid, index: number): Invalid =>
  new Invalid({
    field: refusal.field,
    message: `${refusal.message} (job ${index} of the batch)`,
    ...(refusal.limit === undefined ? {} : { limit: refusal.limit }),
    ...(refusal.actual === undefined ? {} : { actual: refusal.actual })
  })

const refuseIdentity = (envelope: Envelope, maxPayloadBytes: number): Invalid | undefined => {
  const { fingerprint, id, payload } = envelope
  const refusal = typeof id === "string" && USUAL_ID.test(id) ? undefined : refuseId(id)
  if (refusal !== undefined) return refusal
  if (fingerprint !== undefined && !isFingerprint(fingerprint)) {
    const message = `fingerprint must be 1 to ${MAX_FINGERPRINT_BYTES} visible ASCII characters`
    return new Invalid({ field: "fingerprint", message })
  }
  return refuseName("kind", envelope.kind) ??
    refuseInteger("schemaVersion", envelope.schemaVersion, 1, MAX_OPAQUE_SCHEMA_VERSION) ??
    refuseBytes("payload", payload, maxPayloadBytes)
}

const refuseRest = (envelope: Envelope): Invalid | undefined =>
  refuseRouting(envelope) ?? refuseTimes(envelope) ?? refuseUnique(envelope) ?? refuseLabels(envelope) ??
    refuseOrigin(envelope)

const refuseId = (id: string): Invalid | undefined => {
  const refusal = refuseText("id", id, 1, MAX_ID_BYTES)
  if (refusal !== undefined) return refusal
  if (CONTROL.test(id)) return new Invalid({ field: "id", message: "id holds a control character" })
  return id === "." || id === ".."
    ? new Invalid({ field: "id", message: "id cannot be addressed in a URL" })
    : undefined
}

const refuseRouting = (envelope: Envelope): Invalid | undefined => {
  const { limits, partitionKey, queue, rates, stickyFallbackMs, stickyWorker } = envelope
  const refusal = (queue === "" ? undefined : refuseName("queue", queue)) ??
    (partitionKey === "" ? undefined : refuseText("partitionKey", partitionKey, 0, MAX_PARTITION_KEY_BYTES)) ??
    (rates.length === 0 ? undefined : refuseRates(rates)) ??
    (limits.length === 0 ? undefined : refuseLimits(limits)) ??
    refuseInteger("priority", envelope.priority, -32_768, 32_767) ??
    refuseInteger("maxAttempts", envelope.maxAttempts, 1, MAX_ATTEMPTS_LIMIT) ??
    refuseInteger("crashLimit", envelope.crashLimit, 1, MAX_ATTEMPTS_LIMIT) ??
    (stickyWorker === undefined ? undefined : refuseWorker(stickyWorker))
  if (refusal !== undefined || stickyFallbackMs === undefined) return refusal
  return stickyWorker === undefined
    ? new Invalid({ field: "stickyFallbackMs", message: "stickyFallbackMs needs a stickyWorker" })
    : refuseMillis("stickyFallbackMs", stickyFallbackMs, 1)
}

/** Any other name is that of no worker: the job would wait for ever. */
const refuseWorker = (stickyWorker: string): Invalid | undefined =>
  /^[\x21-\x7e]{1,128}$/.test(stickyWorker)
    ? undefined
    : refuseText("stickyWorker", stickyWorker, 1, MAX_ID_BYTES) ??
      new Invalid({
        field: "stickyWorker",
        message: "stickyWorker, the id of a worker, is 1 to 128 visible ASCII characters"
      })

const refuseTimes = (envelope: Envelope): Invalid | undefined => {
  const { deadlineAtMs, deadlineInMs, delayMs, scheduledAtMs } = envelope
  if (scheduledAtMs !== undefined && delayMs !== undefined) {
    return new Invalid({ field: "delayMs", message: "delayMs and scheduledAtMs exclude each other" })
  }
  if (deadlineAtMs !== undefined && deadlineInMs !== undefined) {
    return new Invalid({ field: "deadlineInMs", message: "deadlineInMs and deadlineAtMs exclude each other" })
  }
  return refuseTime("scheduledAtMs", scheduledAtMs) ??
    refuseTime("deadlineAtMs", deadlineAtMs) ??
    refuseOptionalMillis("delayMs", delayMs, 0) ??
    refuseOptionalMillis("deadlineInMs", deadlineInMs) ??
    refuseOptionalMillis("timeoutMs", envelope.timeoutMs) ??
    refuseOptionalMillis("queueTimeoutMs", envelope.queueTimeoutMs) ??
    refuseMillis("retentionMs", envelope.retentionMs, 0)
}

const refuseUnique = (envelope: Envelope): Invalid | undefined => {
  const { kind, uniqueDebounceMs, uniqueExcludeKind, uniqueKey, uniqueReplace, uniqueStates, uniqueWindowMs } = envelope
  if (uniqueKey === undefined) {
    const isBare = uniqueDebounceMs === undefined && !uniqueExcludeKind && uniqueReplace === 0 &&
      uniqueStates === undefined && uniqueWindowMs === undefined
    return isBare ? undefined : new Invalid({ field: "uniqueKey", message: "unique options need a uniqueKey" })
  }
  if (!(uniqueKey instanceof Uint8Array)) return new Invalid({ field: "uniqueKey", message: "uniqueKey must be bytes" })
  if (uniqueStates !== undefined && !(uniqueStates.length > 0 && uniqueStates.every((state) => STATES.has(state)))) {
    return new Invalid({ field: "uniqueStates", message: "uniqueStates must name at least one state, and only states" })
  }
  return refuseUniqueKey({ kind, key: uniqueKey, excludeKind: uniqueExcludeKind }) ??
    refuseInteger("uniqueReplace", uniqueReplace, 0, UNIQUE_REPLACE_ALL) ??
    refuseOptionalMillis("uniqueWindowMs", uniqueWindowMs) ??
    refuseOptionalMillis("uniqueDebounceMs", uniqueDebounceMs)
}

const refuseLabels = (envelope: Envelope): Invalid | undefined =>
  (envelope.tags.length === 0 ? undefined : refuseTags(envelope.tags)) ?? refuseHeaders(envelope.headers)

const refuseOrigin = ({ periodicOrigin }: Envelope): Invalid | undefined =>
  periodicOrigin === undefined
    ? undefined
    : refuseText("periodicOrigin.scheduleId", periodicOrigin.scheduleId, 1, MAX_ID_BYTES) ??
      refuseTime("periodicOrigin.tickMs", periodicOrigin.tickMs)

const refuseRates = (rates: ReadonlyArray<Rate>): Invalid | undefined => {
  const count = refuseInteger("rates", rates.length, 0, MAX_RATES, " rates")
  if (count !== undefined) return count
  const names = new Set<string>()
  for (const [index, rate] of rates.entries()) {
    const field = `rates[${index}]`
    const refusal = refuseName(`${field}.class`, rate.class) ?? refuseKey(`${field}.key`, rate.key) ??
      refuseInteger(`${field}.weight`, rate.weight, 0, MAX_WEIGHT)
    if (refusal !== undefined) return refusal
    // A class holds no space, so the pair cannot be read in two ways.
    const name = `${rate.class} ${rate.key}`
    if (names.has(name)) {
      return new Invalid({ field: `${field}.class`, message: `${field} names a class and key again` })
    }
    names.add(name)
  }
  return undefined
}

const refuseLimits = (limits: ReadonlyArray<LimitSlot>): Invalid | undefined => {
  const count = refuseInteger("limits", limits.length, 0, MAX_LIMITS, " limits")
  if (count !== undefined) return count
  const names = new Set<string>()
  for (const [index, { key, limit }] of limits.entries()) {
    const field = `limits[${index}]`
    const refusal = refuseName(`${field}.limit`, limit) ?? refuseKey(`${field}.key`, key)
    if (refusal !== undefined) return refusal
    if (names.has(limit)) return new Invalid({ field: `${field}.limit`, message: `${field} names a limit again` })
    names.add(limit)
  }
  return undefined
}

/** Stores join the keys of a job by a control character. */
const refuseKey = (field: string, key: string): Invalid | undefined =>
  key === ""
    ? undefined
    : refuseText(field, key, 0, MAX_POLICY_KEY_BYTES) ??
      (CONTROL.test(key) ? new Invalid({ field, message: `${field} holds a control character` }) : undefined)

const refuseHeaders = (headers: Readonly<Record<string, string>>): Invalid | undefined => {
  const names = Object.keys(headers)
  if (names.length === 0) return undefined
  if (names.length > MAX_HEADERS) {
    const message = `${names.length} headers were given, the limit is ${MAX_HEADERS}`
    return new Invalid({ field: "headers", message, limit: MAX_HEADERS, actual: names.length })
  }
  let bytes = 0
  for (const name of names) {
    const value = headers[name]
    const refusal = refuseText("headers", name, 1, MAX_HEADER_NAME_BYTES)
    if (refusal !== undefined) return refusal
    if (typeof value !== "string" || !isStorableText(value)) {
      return new Invalid({ field: "headers", message: "a header's value must be text without NUL or half pairs" })
    }
    const lower = name.toLowerCase()
    if (lower !== name && (lower === TRACEPARENT || lower === TRACESTATE)) {
      return new Invalid({ field: "headers", message: `the reserved header ${lower} is written in lower case` })
    }
    bytes += utf8Length(name) + utf8Length(value)
  }
  if (bytes <= MAX_HEADERS_BYTES) return undefined
  const message = `the headers take ${bytes} bytes, the limit is ${MAX_HEADERS_BYTES}`
  return new Invalid({ field: "headers", message, limit: MAX_HEADERS_BYTES, actual: bytes })
}

export const refuseText = (field: string, text: string, minBytes: number, maxBytes: number): Invalid | undefined => {
  if (typeof text !== "string") return new Invalid({ field, message: `${field} must be text` })
  if (text.length < minBytes) return new Invalid({ field, message: `${field} is empty`, limit: minBytes, actual: 0 })
  if (!fitsUtf8(text, maxBytes)) {
    const actual = utf8Length(text)
    const message = `${field} takes ${actual} bytes, the limit is ${maxBytes}`
    return new Invalid({ field, message, limit: maxBytes, actual })
  }
  return isStorableText(text)
    ? undefined
    : new Invalid({ field, message: `${field} holds NUL or half of a surrogate pair` })
}

const refuseTime = (field: string, ms: number | undefined): Invalid | undefined =>
  ms === undefined ? undefined : refuseInteger(field, ms, 0, MAX_TIME_MS, " ms")

const refuseOptionalMillis = (field: string, ms: number | undefined, minMs = 1): Invalid | undefined =>
  ms === undefined ? undefined : refuseMillis(field, ms, minMs)

// Passes what `refuseId` passes, in one look; the rest takes the long way.
const USUAL_ID = /^[\w-][\x21-\x7e]{0,127}$/
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/
const STATES: ReadonlySet<string> = new Set(State.literals)
