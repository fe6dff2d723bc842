/**
 * A batch of new jobs as the parameters of a statement (see `EnqueueSql`). A field that is equal in the whole batch travels
 * as one value: what does not vary costs nothing per job.
 */
import type * as PgTypes from "@effect/sql-pg/PgTypes"
import { type Envelope, isLike } from "@headgate/core/Envelope"
import { byCodePoint } from "@headgate/core/Text"
import { effectiveUniqueKey } from "@headgate/core/UniqueKey"
import { effectiveWeight } from "@headgate/core/Weight"
import * as Result from "effect/Result"
import * as Bind from "./Bind.ts"
import * as Lanes from "./Lanes.ts"

/** The effective key; undefined without one. */
export const uniqueKey = ({ kind, uniqueExcludeKind, uniqueKey }: Envelope): Uint8Array | undefined =>
  uniqueKey === undefined
    ? undefined
    // Its length was checked with the batch.
    : Result.getOrThrow(effectiveUniqueKey({ kind, key: uniqueKey, excludeKind: uniqueExcludeKind }))

/** The bytes as a string of the same length, to compare by. */
export const keyText = (bytes: Uint8Array): string => {
  let text = ""
  for (const byte of bytes) text += String.fromCharCode(byte)
  return text
}

export interface BoundRows {
  /** By column, in their order: a bit for each one of which the parameter is an array, with an element a job. */
  readonly varying: number
  /** Of the columns, then of the different lanes: values of the only one, or arrays of several, where the lane varies. */
  readonly params: ReadonlyArray<unknown>
}

/** `lanes` are those of the jobs, in order. */
export const bindRows = (batch: ReadonlyArray<Envelope>, lanes: ReadonlyArray<Lanes.Lane>): BoundRows => {
  const different = [...new Set(lanes)]
  const places = different.length === 1 ? undefined : new Map(different.map((lane, n) => [lane, n + 1]))
  const placeOf = (n: number) => places?.get(lanes[n]!) ?? 1
  const isUniform = places === undefined && batch.every((job) => isLike(job, batch[0]!))
  let varying = 0
  const params: Array<unknown> = []
  for (const [place, column] of columns.entries()) {
    const { isVarying, parameter } = column.bind(batch, placeOf, isUniform)
    if (isVarying) varying |= 1 << place
    params.push(parameter)
  }
  const [only] = different
  if (only !== undefined && places === undefined) params.push(Bind.int(only.id), ...Lanes.values(only))
  else params.push(Bind.ints(different.map(({ id }) => id)), ...Lanes.params(different))
  return { varying, params }
}

interface Column {
  readonly name: string
  readonly bind: (
    batch: ReadonlyArray<Envelope>,
    placeOf: (n: number) => number,
    /** Only what is always an array varies. */
    isUniform: boolean
  ) => { readonly isVarying: boolean; readonly parameter: PgTypes.Parameter }
}

const column =
  <A>(array: (values: ReadonlyArray<A | null>) => PgTypes.Parameter, value: (value: A | null) => PgTypes.Parameter) =>
  (name: string, of: (job: Envelope, place: number) => A | null | undefined): Column => ({
    name,
    bind: (batch, placeOf, isUniform) => {
      const at = (n: number) => of(batch[n]!, placeOf(n)) ?? null
      const first = at(0)
      const isVarying = ALWAYS_VARYING.has(name) || (!isUniform && batch.some((_, n) => at(n) !== first))
      return { isVarying, parameter: isVarying ? array(batch.map((_, n) => at(n))) : value(first) }
    }
  })

const ALWAYS_VARYING: ReadonlySet<string> = new Set(["id", "payload"])

const text = column<string>(Bind.texts, Bind.text)
const int = column<number>(Bind.ints, Bind.int)
const bigint = column<number>(Bind.bigints, Bind.bigint)
const bool = column<boolean>(Bind.bools, Bind.bool)
const bytea = column<Uint8Array>(Bind.bytes, Bind.bytea)

const headerBytes = (headers: Readonly<Record<string, string>>): Uint8Array | null => {
  const json = JSON.stringify(headers)
  return json === "{}" ? null : encoder.encode(json)
}

/** In the order of the lane's classes: by class, then by key. */
const sortedRates = ({ rates }: Envelope): Envelope["rates"] =>
  rates.length < 2 ? rates : rates.toSorted((a, b) => byCodePoint(a.class, b.class) || byCodePoint(a.key, b.key))

/** Of the lane's classes, then of its limits. */
const keysOf = (job: Envelope): string => {
  if (job.rates.length === 0 && job.limits.length === 0) return ""
  const limits = job.limits.toSorted((a, b) => byCodePoint(a.limit, b.limit))
  const keys = [...sortedRates(job), ...limits].map(({ key }) => key)
  return keys.every((key) => key === "") ? "" : keys.join("\u001f")
}

const weightsOf = (job: Envelope): string | null =>
  job.rates.length === 0 || job.rates.every(({ weight }) => effectiveWeight(weight) === 1)
    ? null
    : `{${sortedRates(job).map(({ weight }) => effectiveWeight(weight)).join()}}`

export const columns: ReadonlyArray<Column> = [
  text("id", ({ id }) => id),
  bytea("payload", ({ payload }) => payload),
  int("lane", (_, place) => place),
  text("partition_key", ({ partitionKey }) => partitionKey),
  text("keys", (job) => keysOf(job)),
  text("weights", (job) => weightsOf(job)),
  text("fingerprint", ({ fingerprint }) => fingerprint),
  int("priority", ({ priority }) => priority),
  int("max_attempts", ({ maxAttempts }) => maxAttempts),
  int("crash_limit", ({ crashLimit }) => crashLimit),
  bigint("due_at_ms", ({ scheduledAtMs }) => scheduledAtMs),
  bigint("delay_ms", ({ delayMs }) => delayMs),
  bigint("timeout_ms", ({ timeoutMs }) => timeoutMs),
  bigint("queue_timeout_ms", ({ queueTimeoutMs }) => queueTimeoutMs),
  bigint("deadline_at_ms", ({ deadlineAtMs }) => deadlineAtMs),
  bigint("deadline_in_ms", ({ deadlineInMs }) => deadlineInMs),
  bigint("retention_ms", ({ retentionMs }) => retentionMs),
  bytea("unique_key", uniqueKey),
  bytea("headers", ({ headers }) => headerBytes(headers)),
  text("tags", ({ tags }) => tags.length === 0 ? null : Bind.textArrayLiteral(tags)),
  bool("pending", ({ pending }) => pending),
  bigint("fall_back_ms", ({ stickyFallbackMs }) => stickyFallbackMs)
]

const encoder = new TextEncoder()
