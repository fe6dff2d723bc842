/**
 * The short way for new jobs, outside of transactions: a plain insert, for jobs in whose way nothing is likely to stand.
 * It stores all of them or none. What it does not store goes the long way (see `Producer`), which tells why; so do, for a
 * while, the jobs of the lanes concerned.
 */
import type * as PgClient from "@effect/sql-pg/PgClient"
import { enqueueQueue, type Envelope } from "@headgate/core/Envelope"
import { ULID_LENGTH } from "@headgate/core/IdGen"
import type { JobId } from "@headgate/core/Ids"
import type { Enqueued } from "@headgate/core/Producer"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import type * as SqlError from "effect/sql/SqlError"
import type { Announcer } from "./Announcer.ts"
import { isConflict, sqlState } from "./ControlSql.ts"
import type { EnqueueSql } from "./EnqueueSql.ts"
import type { Lane, Lanes } from "./Lanes.ts"

/** The answers, in order; undefined when nothing was stored. */
export type Plain = (
  jobs: ReadonlyArray<Envelope>,
  patience?: string
) => Effect.Effect<ReadonlyArray<Enqueued> | undefined, SqlError.SqlError | StoreUnavailable>

/** A refusal is rarely the last one: a limit or a closed fingerprint stays, and ids of the caller's own come again. */
const REST_MS = 1000

export const make = (
  client: PgClient.PgClient,
  enqueueSql: EnqueueSql,
  lanes: Lanes,
  announcer: Announcer["Service"]
): Plain => {
  const restsUntil = new WeakMap<Lane, number>()
  const isResting = (lane: Lane) => (restsUntil.get(lane) ?? 0) > performance.now()
  const store = Effect.fnUntraced(function*(jobs: ReadonlyArray<Envelope>, patience: string | undefined) {
    const places = yield* lanes.ensure(jobs)
    const different = [...new Set(places)]
    if (different.some(isResting)) return undefined
    const answers = jobs.map((job) => created(job, isDelayed(job)))
    const ready = readyQueues(jobs, answers)
    const carries = ready.length > 0 && different.length === 1 && announcer.mayCarry()
    const insert = client.unsafe(...enqueueSql.plain(jobs, places, carries ? CARRYING_PATIENCE : patience, carries)).raw
    const isStored = yield* Effect.map(insert, (answer) => rowCount(answer) === jobs.length).pipe(
      Effect.catchIf((error) => isTaken(error) || (carries && isMute(error)), () => NOT_STORED)
    )
    if (!isStored) {
      for (const lane of different) restsUntil.set(lane, performance.now() + REST_MS)
      return undefined
    }
    if (ready.length > 0 && !carries) yield* announcer.announce(ready)
    return answers
  })
  return (jobs, patience) => jobs.every(isPlain) ? store(jobs, patience) : Effect.undefined
}

/** Its id looks like a new one, nothing else excludes it, and its state is known without the store's clock. */
const isPlain = ({ id, scheduledAtMs, uniqueKey }: Envelope): boolean =>
  uniqueKey === undefined && scheduledAtMs === undefined && id.length === ULID_LENGTH

const isDelayed = ({ delayMs }: Envelope): boolean => delayMs !== undefined && delayMs > 0

export const created = ({ id, pending }: Envelope, isLater: boolean): Enqueued => ({
  // SAFETY: the guard has checked the id.
  id: id as JobId,
  state: pending ? "pending" : isLater ? "scheduled" : "available",
  status: "created"
})

/** The queues of the jobs that were created as available. */
export const readyQueues = (
  jobs: ReadonlyArray<Envelope>,
  answers: ReadonlyArray<Enqueued | undefined>
): ReadonlyArray<string> => {
  const queues = new Set<string>()
  let last: string | undefined
  for (const [n, { queue }] of jobs.entries()) {
    const answer = answers[n]
    if (queue === last || answer?.status !== "created" || answer.state !== "available") continue
    queues.add(enqueueQueue(queue))
    last = queue
  }
  return [...queues]
}

const isTaken = (error: SqlError.SqlError): boolean => sqlState(error) === UNIQUE_VIOLATION || isConflict(error)

/** Announcements of others take long to commit, the server's queue of them is full, or the role may not announce. */
const isMute = (error: SqlError.SqlError): boolean =>
  [LOCK_NOT_AVAILABLE, LIMIT_EXCEEDED, NOT_ALLOWED].includes(sqlState(error) ?? "")

const rowCount = (answer: unknown): unknown =>
  typeof answer === "object" && answer !== null && "rowCount" in answer ? answer.rowCount : undefined

const UNIQUE_VIOLATION = "23505"
const LIMIT_EXCEEDED = "54000"
const NOT_ALLOWED = "42501"
const LOCK_NOT_AVAILABLE = "55P03"
/** The transactions of the whole database that announce something commit one after another. */
const CARRYING_PATIENCE = "20ms"
const NOT_STORED = Effect.succeed(false)
