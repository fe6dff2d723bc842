/** Settlements as statement parameters. What the database would refuse is repaired here, so no item sinks its batch. */
import type { AttemptLog } from "@headgate/core/AttemptLog"
import { MAX_ERROR_MESSAGE_BYTES, MAX_ERROR_TAG_BYTES, MAX_ERROR_TEXT_BYTES } from "@headgate/core/ErrorText"
import type { LeaseRef } from "@headgate/core/Ids"
import { type Charge, MAX_CHARGE, type Settlement } from "@headgate/core/Leases"
import { MAX_DURATION_MS } from "@headgate/core/Millis"
import { type Outcome, type OutcomeError, outcomeName } from "@headgate/core/Outcome"
import { cutUtf8, isStorableText, toStorableText } from "@headgate/core/Text"
import * as Bind from "./Bind.ts"
import * as LogText from "./LogText.ts"

export interface Split {
  readonly first: ReadonlyArray<Settlement>
  /** Of a job in `first`, under another lease. */
  readonly others: ReadonlyArray<Settlement>
  /** Of a lease in `first`, which is answered like `of`. */
  readonly repeats: ReadonlyArray<{ readonly lease: LeaseRef; readonly of: LeaseRef }>
}

/** The first settlement of each job, and what else the batch says of the same jobs. */
export const split = (batch: ReadonlyArray<Settlement>): Split => {
  const seen = new Map<string, LeaseRef>()
  const others: Array<Settlement> = []
  const repeats: Array<Split["repeats"][number]> = []
  const first = batch.filter((item) => {
    const { lease } = item
    const of = seen.get(lease.jobId)
    if (of === undefined) seen.set(lease.jobId, lease)
    else if (of.fence !== lease.fence || of.leaseId !== lease.leaseId) others.push(item)
    else if (of !== lease) repeats.push({ lease, of })
    return of === undefined
  })
  return { first, others, repeats }
}

/** Corrects what its attempt was charged. A crash never does. */
export const isCharged = ({ charges, outcome }: Settlement): boolean =>
  outcome._tag === "RateLimited" || (charges !== undefined && outcome._tag !== "Crashed")

/**
 * Successes apart from the rest, and what corrects a charge apart from what does not, in pieces of a size that one
 * statement carries well.
 */
export const statements = (items: ReadonlyArray<Settlement>): ReadonlyArray<ReadonlyArray<Settlement>> => {
  const pieces: Array<Array<Settlement>> = []
  const [success, other, chargedSuccess, chargedOther] = [newPiece(), newPiece(), newPiece(), newPiece()]
  for (const item of items) {
    const isSuccess = item.outcome._tag === "Success"
    const piece = isCharged(item) ? isSuccess ? chargedSuccess : chargedOther : isSuccess ? success : other
    const bytes = bytesOf(item)
    if (piece.items.length === MAX_ITEMS || (piece.items.length > 0 && piece.bytes + bytes > MAX_BYTES)) {
      pieces.push(piece.items)
      piece.items = []
      piece.bytes = 0
    }
    piece.items.push(item)
    piece.bytes += bytes
  }
  for (const { items } of [success, other, chargedSuccess, chargedOther]) if (items.length > 0) pieces.push(items)
  return pieces
}

interface Piece {
  items: Array<Settlement>
  bytes: number
}

const newPiece = (): Piece => ({ items: [], bytes: 0 })

/** The parameters of the SQL function `settle`. */
export const params = (items: ReadonlyArray<Settlement>): ReadonlyArray<unknown> => {
  const errors = items.map(({ outcome }) => errorOf(outcome))
  return [
    Bind.texts(items.map(({ lease }) => lease.jobId)),
    Bind.uuids(items.map(({ lease }) => lease.leaseId)),
    Bind.bigints(items.map(({ lease }) => lease.fence)),
    Bind.texts(items.map(({ outcome }) => outcomeName(outcome))),
    Bind.bigints(items.map(({ outcome }) => delayOf(outcome))),
    Bind.texts(items.map(({ outcome }) => bounded(reasonOf(outcome), MAX_ERROR_MESSAGE_BYTES))),
    Bind.texts(errors.map((error) => bounded(error?.tag, MAX_ERROR_TAG_BYTES))),
    Bind.texts(errors.map((error) => bounded(error?.message, MAX_ERROR_MESSAGE_BYTES))),
    Bind.texts(errors.map((error) => bounded(error?.text, MAX_ERROR_TEXT_BYTES))),
    Bind.bytes(errors.map((error) => error?.encoded ?? null)),
    logParam(items),
    Bind.texts(items.flatMap(({ isUnbegun, lease }) => isUnbegun === true ? lease.jobId : []))
  ]
}

/** A shorter array is filled up with nulls. */
const logParam = (items: ReadonlyArray<Settlement>) =>
  Bind.texts(items.some(({ log }) => log !== undefined) ? items.map(({ log }) => log ? LogText.encode(log) : null) : [])

/** The parameters of the SQL function `correct` that follow the leases: job, class, key, actual cost, push-back. */
export const correctionParams = (items: ReadonlyArray<Settlement>): ReadonlyArray<unknown> => {
  const rows = items.flatMap(correctionsOf)
  return [
    Bind.texts(rows.map(({ jobId }) => jobId)),
    Bind.texts(rows.map((row) => row.class ?? null)),
    Bind.texts(rows.map(({ key }) => key ?? null)),
    Bind.bigints(rows.map(({ actual }) => actual)),
    Bind.bigints(rows.map(({ pushBackMs }) => pushBackMs))
  ]
}

interface Correction {
  readonly jobId: string
  readonly class?: string | undefined
  readonly key?: string | undefined
  readonly actual: number | null
  readonly pushBackMs: number | null
}

/** A rate-limited attempt has used nothing, unless it says otherwise. */
const correctionsOf = ({ charges = [], lease: { jobId }, outcome }: Settlement): ReadonlyArray<Correction> => {
  const said = charges.filter(isSayable).map((charge) => ({
    jobId,
    class: charge.class,
    key: charge.key,
    actual: Math.min(Math.max(Math.round(charge.actual), 0), MAX_CHARGE),
    pushBackMs: null
  }))
  if (outcome._tag !== "RateLimited") return said
  const { pushBackMs, rateClass } = outcome
  const closed = pushBackMs === undefined || Number.isNaN(pushBackMs) ? null : Math.max(Math.round(pushBackMs), 0)
  return [
    { jobId, actual: 0, pushBackMs: null },
    { jobId, class: rateClass, actual: null, pushBackMs: closed === null ? null : Math.min(closed, MAX_DURATION_MS) },
    ...said
  ]
}

/** What is no number says nothing, nor does a name that no job can have. */
const isSayable = ({ actual, class: name, key }: Charge): boolean =>
  !Number.isNaN(actual) && (name === undefined || isStorableText(name)) && (key === undefined || isStorableText(key))

const reasonOf = (outcome: Outcome): string | undefined =>
  "reason" in outcome ? outcome.reason : outcome._tag === "Retry" && outcome.isLast ? "exhausted" : undefined

const errorOf = (outcome: Outcome): OutcomeError | undefined => "error" in outcome ? outcome.error : undefined

/** A delay that is no number is a second; any other is brought into the range of what can be stored. */
const delayOf = (outcome: Outcome): number | null => {
  const delay = "delayMs" in outcome ? outcome.delayMs : undefined
  if (delay === undefined) return null
  return Number.isNaN(delay) ? 1000 : Math.min(Math.max(Math.round(delay), 0), MAX_DURATION_MS)
}

const bounded = (text: string | undefined, maxBytes: number): string | null =>
  text === undefined ? null : cutUtf8(toStorableText(text), maxBytes)

const bytesOf = ({ log, outcome }: Settlement): number => {
  if (outcome._tag === "Success") return outcome.result?.bytes.length ?? 0
  const error = errorOf(outcome)
  return (error === undefined ? 0 : error.text.length + (error.encoded?.length ?? 0)) + logBytes(log)
}

const logBytes = (log: AttemptLog | undefined): number =>
  log === undefined ? 0 : log.lines.reduce((bytes, { message }) => bytes + message.length, 0)

const MAX_ITEMS = 5000
const MAX_BYTES = 8_388_608
