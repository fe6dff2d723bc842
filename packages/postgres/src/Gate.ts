/**
 * Admission: one call of the SQL function `admit` claims jobs and writes their leases. Jobs that are resumed bring
 * their checkpoint, read right after: nobody but the new holder may change it.
 */
import type * as PgTypes from "@effect/sql-pg/PgTypes"
import type { Checkpoint } from "@headgate/core/Checkpoint"
import type { AdmitRequest, Claim } from "@headgate/core/Claim"
import { type EndedAtGate, Gate } from "@headgate/core/Gate"
import type { Fence, JobId, LeaseId } from "@headgate/core/Ids"
import { byCodePoint } from "@headgate/core/Text"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import * as CheckpointRows from "./CheckpointRows.ts"
import { ControlSql } from "./ControlSql.ts"

const make = Effect.gen(function*() {
  const { claim, statement } = yield* ControlSql
  const announcer = yield* Announcer
  const admit = claim<ClaimRow | OtherRow>(
    "Gate.admit",
    "select * from headgate.admit($1, $2, $3, $4, $5, $6, $7, $8)"
  )
  const readCheckpoints = CheckpointRows.reader(statement, "Gate.admit")
  const abandon = statement<{ queue: string }>("Gate.abandon", "select * from headgate.abandon($1)")
  const requested = remembered(bindKinds)

  return Gate.of({
    admit: Effect.fn("Gate.admit")(function*(request) {
      const { kinds, versions } = requested(request.kinds)
      // Claims whose answer nobody hears are claims until their leases run out.
      const rows = yield* Effect.uninterruptible(admit([
        Bind.text(request.worker),
        Bind.uuid(request.leaseId),
        Bind.texts(request.queues),
        kinds,
        versions,
        Bind.int(request.capacity),
        Bind.bigint(request.leaseMs),
        Bind.int(request.quantum ?? null)
      ]))
      const claimed = rows.every(isClaim) ? rows : rows.filter(isClaim)
      const resumed = claimed.filter((row) => row.has_checkpoint).map((row) => row.id)
      const checkpoints = resumed.length === 0 ? undefined : yield* readCheckpoints(resumed, request.leaseId)
      const claims = inOrder(claimed).map((row) => toClaim(row, request.leaseId, checkpoints?.get(row.id)))
      if (claimed === rows) return { claims, ended: [], more: false }
      const others = rows.flatMap((row) => row.fence === null ? [row] : [])
      const ended = others.flatMap(({ id, reason }) => id === null ? [] : [{ jobId: id, reason }])
      return { claims, ended, more: others.some(({ id }) => id === null) }
    }),
    abandon: Effect.fn("Gate.abandon")(function*(leaseId) {
      const rows = yield* abandon([Bind.uuid(leaseId)])
      yield* announcer.announce([...new Set(rows.map((row) => row.queue))])
      return rows.length
    })
  })
})

export const layer: Layer.Layer<Gate, never, ControlSql | Announcer> = Layer.effect(Gate, make)

const bindKinds = (
  kinds: AdmitRequest["kinds"]
): { readonly kinds: PgTypes.Parameter; readonly versions: PgTypes.Parameter } => ({
  kinds: Bind.texts(kinds.map(({ kind }) => kind)),
  versions: Bind.ints(kinds.map(({ version }) => version))
})

/** Keeps the answer for the argument given last: a worker's loop asks with the same list again and again. */
const remembered = <A extends object, B>(make: (from: A) => B): (from: A) => B => {
  const known = new WeakMap<A, B>()
  return (from) => {
    const found = known.get(from)
    if (found !== undefined) return found
    const made = make(from)
    known.set(from, made)
    return made
  }
}

const toClaim = (row: ClaimRow, leaseId: LeaseId, checkpoint: Checkpoint | undefined): Claim => ({
  // SAFETY: the column counts the job's claims, a whole number.
  lease: { jobId: row.id, leaseId, fence: Number(row.fence) as Fence },
  kind: row.kind,
  schemaVersion: row.schema_version,
  queue: row.queue,
  partitionKey: row.partition_key,
  payload: row.payload,
  priority: row.priority,
  attempt: row.attempt,
  maxAttempts: row.max_attempts,
  crashAttempt: row.crash_attempt,
  streak: row.streak,
  enqueuedAtMs: Number(row.enqueued_at_ms),
  scheduledAtMs: Number(row.scheduled_at_ms),
  claimedAtMs: Number(row.claimed_at_ms),
  timeoutMs: row.timeout_ms === null ? undefined : Number(row.timeout_ms),
  deadlineAtMs: row.deadline_at_ms === null ? undefined : Number(row.deadline_at_ms),
  retentionMs: Number(row.retention_ms),
  headers: row.headers === null ? noHeaders : readHeaders(row.headers),
  checkpoint
})

interface ClaimRow {
  readonly id: JobId
  readonly fence: bigint
  readonly kind: string
  readonly schema_version: number
  readonly queue: string
  readonly partition_key: string
  readonly payload: Uint8Array
  readonly priority: number
  readonly attempt: number
  readonly max_attempts: number
  readonly crash_attempt: number
  readonly streak: number
  readonly enqueued_at_ms: bigint
  readonly scheduled_at_ms: bigint
  readonly claimed_at_ms: bigint
  readonly timeout_ms: bigint | null
  readonly deadline_at_ms: bigint | null
  readonly retention_ms: bigint
  readonly headers: Uint8Array | null
  readonly has_checkpoint: boolean
}

/** A job that left the queue instead; without an id, the gate stopped at its budget. */
interface OtherRow {
  readonly id: JobId | null
  readonly fence: null
  readonly reason: EndedAtGate["reason"]
}

const isClaim = (row: ClaimRow | OtherRow): row is ClaimRow => row.fence !== null

const noHeaders: Readonly<Record<string, string>> = {}
const decoder = new TextDecoder()

/** What somebody else wrote into the row and is no header is left out: one bad row must not fail the call for ever. */
export const readHeaders = (bytes: Uint8Array): Readonly<Record<string, string>> => {
  try {
    const read: unknown = JSON.parse(decoder.decode(bytes))
    if (typeof read !== "object" || read === null || Array.isArray(read)) return noHeaders
    return Object.fromEntries(
      Object.entries(read).filter((entry): entry is [string, string] => typeof entry[1] === "string")
    )
  } catch {
    return noHeaders
  }
}

/** An update answers in the order of its index scan; ids are made in the order of time, so mostly this is a look. */
const inOrder = (rows: ReadonlyArray<ClaimRow>): ReadonlyArray<ClaimRow> => {
  for (let at = 1; at < rows.length; at++) if (compare(rows[at - 1]!, rows[at]!) > 0) return [...rows].sort(compare)
  return rows
}

const compare = (a: ClaimRow, b: ClaimRow): number =>
  b.priority - a.priority || Number(a.scheduled_at_ms - b.scheduled_at_ms) || byCodePoint(a.id, b.id)
