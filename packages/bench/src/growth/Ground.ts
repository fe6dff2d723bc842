/** Rows that are there before anything is measured: one enqueued job, copied by one statement as often as it takes. */
import { randomUUID } from "node:crypto"
import * as Pg from "pg"
import type { Database } from "../Server.ts"
import { one } from "../Server.ts"
import type { Session } from "./Cycle.ts"
import type { GrowthTask } from "./Tasks.ts"

export interface Rows {
  readonly count: number
  readonly isFinished?: boolean
  readonly partitions?: number
  /** The first in the queue. */
  readonly isAhead?: boolean
}

/** Jobs of this task, besides those that are there. */
export const add = async (
  session: Session,
  { client }: Database,
  task: GrowthTask,
  { count, isAhead = false, isFinished = false, partitions = 0 }: Rows
): Promise<void> => {
  const [id] = await session.runPromise(task.enqueueAll([task.payloadOf(0)]))
  const replaced: Record<string, string> = {
    // As long as one made by the store, and as they are: in the order of time.
    id: "left(t.id, 10) || lpad(n::text, 16, '0')",
    fingerprint: "md5(t.id || n::text)",
    ...partitions === 0 ? {} : { partition_key: "'p' || lpad((n % $3)::text, 5, '0')" },
    ...isAhead ? { priority: "1::smallint" } : {},
    ...isFinished
      ? {
        state: "'completed'",
        fence: "1::bigint",
        claimed_at_ms: "t.enqueued_at_ms",
        finished_at_ms: "t.enqueued_at_ms",
        evict_at_ms: "t.enqueued_at_ms + t.retention_ms",
        last_worker: "'growth'",
        last_lease_id: "gen_random_uuid()"
      }
      : {}
  }
  const { rows } = await client.query<{ name: string }>(
    `select attname as name from pg_attribute
    where attrelid = 'headgate.job'::regclass and attnum > 0 and not attisdropped order by attnum`
  )
  const names = rows.map(({ name }) => name)
  // The condition names $3 where no column does.
  await client.query(
    `insert into headgate.job (${names.join(", ")}) select ${
      names.map((name) => replaced[name] ?? `t.${name}`).join(", ")
    }
    from (select * from headgate.job where id = $1) t cross join generate_series(1, $2) n
    where $3::int is not null`,
    [id, count, partitions]
  )
  await client.query("delete from headgate.job where id = $1", [id])
}

/** Jobs that came, ran and were done, all ahead of those that wait: two dead versions each. */
export const churn = async (
  session: Session,
  database: Database,
  task: GrowthTask,
  count: number
): Promise<void> => {
  await add(session, database, task, { count, isAhead: true })
  const { client } = database
  await client.query(
    `update headgate.job set state = 'running', lease_id = $1, lease_expires_at_ms = 0, worker = 'churn'
    where priority = 1 and state = 'available'`,
    [randomUUID()]
  )
  await client.query("delete from headgate.job where worker = 'churn'")
}

/** Somebody else's transaction, which sees the database as it is now until it is told to end. */
export const hold = async (url: string): Promise<() => Promise<void>> => {
  const client = new Pg.Client({ connectionString: url })
  await client.connect()
  await client.query("begin isolation level repeatable read")
  await client.query("select 1 from headgate.job limit 1")
  return () => client.end()
}

export interface Size {
  readonly rows: number
  readonly heapBytes: number
  readonly indexBytes: number
}

export const sizeOf = async ({ client }: Database): Promise<Size> => ({
  rows: Number(await one(client, "select count(*) from headgate.job")),
  heapBytes: Number(await one(client, "select pg_table_size('headgate.job')")),
  indexBytes: Number(await one(client, "select pg_indexes_size('headgate.job')"))
})
