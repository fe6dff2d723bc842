/**
 * New jobs, stored by one statement on the application's client, inside its open transaction if there is one. What the
 * statement passed over is looked at afterwards: an equal job is there already, something stands in the way, or a rival
 * has gone meanwhile and the rest is tried again. Whatever the answer, all jobs of the call are stored or none. Calls of
 * one job each outside a transaction share statements (see `EnqueueGroups`).
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { validateEnqueue } from "@headgate/core/EnqueueGuard"
import { enqueueQueue, type Envelope, sameJobContent } from "@headgate/core/Envelope"
import { fingerprint } from "@headgate/core/Fingerprint"
import type { JobId } from "@headgate/core/Ids"
import { type Enqueued, type EnqueueRefusal, Producer } from "@headgate/core/Producer"
import { isTraced } from "@headgate/core/ProducerSpan"
import { Backpressure, Duplicate, IdConflict, Invalid, Quarantined, StoreUnavailable } from "@headgate/core/Refusals"
import { isTerminal, type State } from "@headgate/core/State"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import { ambientOf, foreignTransaction } from "./Ambient.ts"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql, inSchema, isConflict, rollbackFaults, sqlState } from "./ControlSql.ts"
import * as EnqueueGroups from "./EnqueueGroups.ts"
import * as EnqueuePlain from "./EnqueuePlain.ts"
import { keyText, uniqueKey } from "./EnqueueRows.ts"
import * as EnqueueSql from "./EnqueueSql.ts"
import * as Lanes from "./Lanes.ts"
import { type ReplacedRow, replaceParams, replaceSql } from "./Replace.ts"
import { refuseUnsupported } from "./Unsupported.ts"

const operation = "Producer.enqueue"

const make = Effect.gen(function*() {
  const application = yield* PgClient.PgClient
  const { schema, statement, unavailable } = yield* ControlSql
  const announcer = yield* Announcer
  const lanes = Lanes.make(statement)
  const client = application.withoutTransforms()
  const enqueueSql = EnqueueSql.make(schema)
  const plain = EnqueuePlain.make(client, enqueueSql, lanes, announcer)
  const obstaclesText = inSchema(schema, EnqueueSql.obstaclesSql)
  const closedText = inSchema(schema, EnqueueSql.closedSql)
  const replaceText = inSchema(schema, replaceSql)
  const removeText = inSchema(schema, "delete from headgate.job j where j.id = any($1)")

  /** Stores all of `jobs` and answers which are not due yet; or stores none, and answers a refusal or undefined. */
  const insert = Effect.fnUntraced(function*(
    jobs: ReadonlyArray<Envelope>,
    places: ReadonlyArray<Lanes.Lane>,
    isOwn: boolean
  ) {
    const once = client.unsafe<InsertRow>(...enqueueSql.insert(jobs, places, !isOwn))
    let [row] = yield* once
    if (isIsolated(row) && !isOwn) [row] = yield* rollbackFaults(readCommitted(application.withTransaction(once)))
    if (row !== undefined && row.pressure !== null) return pressed(row.pressure)
    if (row === undefined || row.stored === jobs.length) return new Set(row?.later)
    // In the caller's transaction a failing statement would end it: the part is taken back instead.
    if (isOwn && row.part.length > 0) yield* client.unsafe(removeText, [Bind.texts(row.part)])
    return undefined
  })

  const obstacles = (jobs: ReadonlyArray<Envelope>) =>
    client.unsafe<ObstacleRow>(obstaclesText, [
      Bind.texts(jobs.map(({ id }) => id)),
      Bind.bytes(jobs.flatMap((job) => uniqueKey(job) ?? []))
    ])

  /** The first job of a closed fingerprint. */
  const findClosed = Effect.fnUntraced(function*(batch: ReadonlyArray<Envelope>, jobs: ReadonlyArray<Envelope>) {
    const prints = yield* Effect.forEach(jobs, fingerprintOf)
    const rows = yield* client.unsafe<{ readonly fingerprint: string }>(closedText, [Bind.texts(prints)])
    const closed = new Set(rows.map(({ fingerprint }) => fingerprint))
    const place = prints.findIndex((print) => closed.has(print))
    return place === -1
      ? undefined
      : new Quarantined({ fingerprint: prints[place]!, index: batch.indexOf(jobs[place]!) })
  })

  /** Undefined when the holder has ended meanwhile and holds nothing any more. */
  const replace: Replace = Effect.fnUntraced(function*(holder, job) {
    const params = replaceParams(holder, job)
    if (params === undefined) return false
    const [row] = yield* client.unsafe<ReplacedRow>(replaceText, params)
    if (row === undefined || isTerminal(row.from_state)) return undefined
    if (row.to_state === "available") yield* application.afterCommit(announcer.announce([row.queue]))
    return row.to_state !== null
  })

  /** `lostSince`: when these jobs were sent before, by `performance.now`, if that answer was lost. */
  const store = Effect.fnUntraced(function*(batch: ReadonlyArray<Envelope>, isOwn: boolean, lostSince?: number) {
    const answers = new Map<string, Enqueued>()
    const startedAt = lostSince ?? performance.now()
    let jobs = batch
    let lostAnswer = lostSince !== undefined
    for (let round = 1; round <= MAX_ROUNDS; round++) {
      const places = yield* lanes.ensure(jobs)
      const twin = findTwin(jobs)
      // A first round without an insert shows whether the earlier twin is a finished job that was sent again.
      if (twin !== undefined && round > 1) return yield* duplicate(twin.of, batch.indexOf(twin.job))
      if (twin === undefined) {
        const tried = yield* Effect.result(insert(jobs, places, isOwn))
        if (tried._tag === "Failure" && isLost(tried.failure) && !isOwn && !lostAnswer) {
          lostAnswer = true
          continue
        }
        if (tried._tag === "Failure" && (isOwn || !isPassedOver(tried.failure))) {
          return yield* Effect.fail(tried.failure)
        }
        const stored = tried._tag === "Success" ? tried.success : undefined
        if (stored !== undefined && "_tag" in stored) return yield* stored
        if (stored !== undefined) {
          const now = jobs.map((job) => EnqueuePlain.created(job, stored.has(job.id)))
          if (jobs === batch) return now
          for (const answer of now) answers.set(answer.id, answer)
          return inOrder(batch, answers)
        }
      }
      const rows = yield* obstacles(jobs)
      if (rows.some(({ what }) => what === "closed")) {
        const stored = new Set<string>(rows.flatMap(({ id, what }) => what === "id" ? [id] : []))
        const closed = yield* findClosed(batch, jobs.filter(({ id }) => !stored.has(id)))
        if (closed !== undefined) return yield* closed
      }
      // The statement was sent twice: what this call stored before is not an older job.
      const ownAge = lostAnswer ? performance.now() - startedAt + 1000 : -1
      const left = yield* judge(batch, jobs, rows, ownAge, answers, replace)
      if (left.length === 0) return inOrder(batch, answers)
      if (left.length === jobs.length) lanes.forget(jobs)
      jobs = left
    }
    return yield* new StoreUnavailable({
      operation,
      message: isOwn ? OLD_SNAPSHOT : "other producers were faster each time"
    })
  })

  const storeAndAnnounce = Effect.fnUntraced(
    function*(batch: ReadonlyArray<Envelope>, isOwn: boolean, lostSince?: number) {
      let sentAt = lostSince
      if (!isOwn && sentAt === undefined) {
        const startedAt = performance.now()
        const tried = yield* Effect.result(plain(batch))
        if (tried._tag === "Failure") {
          if (tried.failure._tag !== "SqlError" || !isLost(tried.failure)) return yield* Effect.fail(tried.failure)
          sentAt = startedAt
        } else if (tried.success !== undefined) return tried.success
      }
      const answers = yield* store(batch, isOwn, sentAt)
      const ready = EnqueuePlain.readyQueues(batch, answers)
      if (ready.length > 0) yield* application.afterCommit(announcer.announce(ready))
      return answers
    },
    Effect.catchTag("SqlError", unavailable(operation))
  )

  /** Stores those of the jobs in whose way nothing stands; none of them when a queue has too many already. */
  const insertGroup: InsertGroup = Effect.fnUntraced(function*(jobs) {
    const places = yield* lanes.ensure(jobs)
    const [row] = yield* client.unsafe<InsertRow>(...enqueueSql.insert(jobs, places, false, GROUP_PATIENCE))
    if (row === undefined || row.pressure !== null) return { full: row?.pressure?.queue }
    const stored = storedBy(row, jobs)
    const ready = EnqueuePlain.readyQueues(jobs, jobs.map(({ id }) => stored.get(id)))
    if (ready.length > 0) yield* announcer.announce(ready)
    return { stored }
  })

  const plainGroup: InsertGroup = (jobs) =>
    Effect.map(
      plain(jobs, GROUP_PATIENCE),
      (answers) => answers === undefined ? {} : { stored: new Map(answers.map((answer) => [answer.id, answer])) }
    )

  /** Stores those of the jobs in whose way nothing stands, by one statement where it can. */
  const send = Effect.fnUntraced(function*(jobs: ReadonlyArray<Envelope>) {
    const startedAt = performance.now()
    let storeGroup = plainGroup
    let left = jobs
    let lostSince: number | undefined
    while (left.length > 0) {
      const tried = yield* Effect.result(storeGroup(left))
      storeGroup = insertGroup
      if (tried._tag === "Failure") {
        if (tried.failure._tag !== "SqlError") break
        if (!isLost(tried.failure)) return { stored: NONE, lostSince, isHeld: sqlState(tried.failure) === HELD }
        if (lostSince !== undefined) return yield* Effect.fail(tried.failure)
        lostSince = startedAt
        continue
      }
      const { full, stored } = tried.success
      if (stored !== undefined) return { stored, lostSince, isHeld: false }
      if (full !== undefined) left = left.filter((job) => enqueueQueue(job.queue) !== full)
    }
    return { stored: NONE, lostSince, isHeld: false }
  }, Effect.catchTag("SqlError", unavailable(operation)))

  const enqueueInGroup = EnqueueGroups.make<EnqueueRefusal>(send)

  const enqueue: Producer["Service"]["enqueue"] = (batch) =>
    Effect.withFiber(({ context }) => {
      const valid = validateEnqueue(batch)
      if (Result.isFailure(valid)) return Effect.fail(valid.failure)
      const unsupported = refuseUnsupported(batch)
      if (unsupported !== undefined) return Effect.fail(unsupported)
      const transaction = ambientOf(context, application)
      if (transaction === "foreign") return Effect.fail(foreignTransaction(operation))
      const [job] = batch
      return transaction === "none" && batch.length === 1 && job !== undefined
        ? enqueueInGroup(job, (lostSince) => storeAndAnnounce(batch, false, lostSince))
        : storeAndAnnounce(batch, transaction === "own")
    })
  const traced = Effect.fn("Producer.enqueue")(enqueue)

  return Producer.of({
    // A span that nobody exports would cost as much as the rest of a call that shares its statement.
    enqueue: (batch) => Effect.withFiber((fiber) => isTraced(fiber) ? traced(batch) : enqueue(batch))
  })
})

export const layer: Layer.Layer<Producer, never, ControlSql | Announcer | PgClient.PgClient> = Layer.effect(
  Producer,
  make
)

/** Records equal jobs that are there already, fails on what stands in the way, answers the jobs still to be stored. */
const judge = Effect.fnUntraced(function*(
  batch: ReadonlyArray<Envelope>,
  jobs: ReadonlyArray<Envelope>,
  rows: ReadonlyArray<ObstacleRow>,
  ownAge: number,
  answers: Map<string, Enqueued>,
  replace: Replace
) {
  const byId = new Map<string, ObstacleRow>(rows.filter((row) => row.what === "id").map((row) => [row.id, row]))
  const byKey = new Map(rows.flatMap((row) => row.key === null ? [] : [[keyText(row.key), row] as const]))
  const left: Array<Envelope> = []
  for (const job of jobs) {
    const row = byId.get(job.id)
    if (row !== undefined) {
      const content = { ...job, fingerprint: yield* fingerprintOf(job) }
      if (!sameJobContent(content, row)) return yield* new IdConflict({ id: job.id, index: batch.indexOf(job) })
      answers.set(job.id, { id: row.id, state: row.state, status: Number(row.age) <= ownAge ? "created" : "existing" })
      continue
    }
    const key = uniqueKey(job)
    const holder = key === undefined ? undefined : byKey.get(keyText(key))
    const isReplaced = holder === undefined ? undefined : yield* replace(holder, job)
    if (holder !== undefined && isReplaced !== undefined) {
      return yield* duplicate(holder.id, batch.indexOf(job), isReplaced)
    }
    left.push(job)
  }
  return left
})

const fingerprintOf = (job: Envelope): Effect.Effect<string> =>
  job.fingerprint === undefined ? fingerprint(job.kind, job.payload) : Effect.succeed(job.fingerprint)

const readCommitted = Effect.provideService(SqlClient.BeginTransaction, "BEGIN ISOLATION LEVEL READ COMMITTED")

const isIsolated = (row: InsertRow | undefined): boolean => typeof row?.pressure?.isolation === "string"

const pressed = (pressure: NonNullable<InsertRow["pressure"]>): Backpressure | Invalid =>
  pressure.isolation === undefined ? new Backpressure(pressure) : new Invalid({
    field: "queue",
    message: `the queue ${pressure.queue} has a limit of unfinished jobs, which cannot be kept in a transaction of ` +
      `isolation level ${pressure.isolation}`
  })

const duplicate = (existingId: string, index: number, replaced = false): Duplicate =>
  new Duplicate({ existingId, replaced, index })

/** The first job of the batch whose unique key an earlier one has as well. */
const findTwin = (jobs: ReadonlyArray<Envelope>): { readonly job: Envelope; readonly of: string } | undefined => {
  const holders = new Map<string, string>()
  for (const job of jobs) {
    const key = uniqueKey(job)
    if (key === undefined) continue
    const of = holders.get(keyText(key))
    if (of !== undefined) return { job, of }
    holders.set(keyText(key), job.id)
  }
  return undefined
}

/** Whom `EnqueueSql.insert` stored, where a part may stay. */
const storedBy = (row: InsertRow, jobs: ReadonlyArray<Envelope>): ReadonlyMap<string, Enqueued> => {
  const later = new Set(row.later)
  const part = row.stored === jobs.length ? undefined : new Set(row.part)
  const answers = new Map<string, Enqueued>()
  for (const job of jobs) {
    if (part?.has(job.id) ?? true) answers.set(job.id, EnqueuePlain.created(job, later.has(job.id)))
  }
  return answers
}

const inOrder = (batch: ReadonlyArray<Envelope>, answers: ReadonlyMap<string, Enqueued>): ReadonlyArray<Enqueued> =>
  batch.flatMap(({ id }) => answers.get(id) ?? [])

/** Nothing was stored, and another look or another try will tell more. */
const isPassedOver = (error: SqlError.SqlError): boolean => sqlState(error) === PARTIAL || isConflict(error)

/** The connection ended before the answer came: the statement may have been applied. */
const isLost = (error: SqlError.SqlError): boolean => {
  const state = sqlState(error)
  return state === undefined ? error.reason._tag === "ConnectionError" : /^(08|57P0)/.test(state)
}

const PARTIAL = "HG001"
/** Lock not available. */
const HELD = "55P03"
/** What an open transaction holds concerns few of the group, and keeps all of it waiting. */
const GROUP_PATIENCE = "20ms"
const NONE: ReadonlyMap<string, Enqueued> = new Map()
const MAX_ROUNDS = 20
const OLD_SNAPSHOT = "the open transaction cannot see what was committed meanwhile; repeat the whole transaction"

type Replace = (holder: ObstacleRow, job: Envelope) => Effect.Effect<boolean | undefined, SqlError.SqlError>

type InsertGroup = (jobs: ReadonlyArray<Envelope>) => Effect.Effect<
  { readonly stored?: ReadonlyMap<string, Enqueued>; readonly full?: string | undefined },
  SqlError.SqlError | StoreUnavailable
>

interface InsertRow {
  readonly stored: number
  readonly later: ReadonlyArray<string>
  readonly part: ReadonlyArray<string>
  readonly pressure:
    | {
      readonly queue: string
      readonly limit: number
      readonly current: number
      readonly incoming: number
      readonly isolation?: undefined
    }
    | { readonly queue: string; readonly isolation: string }
    | null
}

interface ObstacleRow {
  readonly what: "id" | "key" | "closed"
  readonly id: JobId
  readonly kind: string
  readonly queue: string
  readonly fingerprint: string
  readonly state: State
  readonly key: Uint8Array | null
  readonly age: bigint
}
