/**
 * The short way for new jobs, outside of transactions: a plain insert, for jobs in whose way nothing is likely to stand.
 * It stores all of them or none. What it does not store goes the long way, which tells why; so do, for a while, the jobs
 * of the lanes concerned.
 */
import type * as PgClient from "@effect/sql-pg/PgClient"
import type { Envelope } from "@headgate/core/Envelope"
import { isUlid } from "@headgate/core/IdGen"
import * as Effect from "effect/Effect"
import type * as SqlError from "effect/sql/SqlError"
import { isConflict, sqlState } from "./ControlSql.ts"
import type { EnqueueSql } from "./EnqueueSql.ts"
import type { Lane } from "./Lanes.ts"

/** Whether it stored the jobs: all of them, or none. */
export type Plain = (
  jobs: ReadonlyArray<Envelope>,
  lanes: ReadonlyArray<Lane>,
  patience?: string
) => Effect.Effect<boolean, SqlError.SqlError>

/** A refusal is rarely the last one: a limit or a closed fingerprint stays, and ids of the caller's own come again. */
const REST_MS = 1000

export const make = (client: PgClient.PgClient, enqueueSql: EnqueueSql): Plain => {
  const restsUntil = new WeakMap<Lane, number>()
  const refused = (lanes: ReadonlyArray<Lane>) => {
    const until = performance.now() + REST_MS
    for (const lane of lanes) restsUntil.set(lane, until)
    return false
  }
  return (jobs, lanes, patience = undefined) => {
    const now = performance.now()
    if (!jobs.every(isPlain) || lanes.some((lane) => (restsUntil.get(lane) ?? 0) > now)) return NOT_STORED
    return client.unsafe(...enqueueSql.plain(jobs, lanes, patience)).raw.pipe(
      Effect.map((answer) => rowCount(answer) === jobs.length || refused(lanes)),
      Effect.catchIf(isTaken, () => Effect.sync(() => refused(lanes)))
    )
  }
}

/** Its id is a new one, nothing else excludes it, and its state is known without the store's clock. */
const isPlain = ({ id, scheduledAtMs, uniqueKey }: Envelope): boolean =>
  uniqueKey === undefined && scheduledAtMs === undefined && isUlid(id)

const isTaken = (error: SqlError.SqlError): boolean => sqlState(error) === UNIQUE_VIOLATION || isConflict(error)

const rowCount = (answer: unknown): unknown =>
  typeof answer === "object" && answer !== null && "rowCount" in answer ? answer.rowCount : undefined

const UNIQUE_VIOLATION = "23505"
const NOT_STORED = Effect.succeed(false)
