/**
 * What W6 measures on: databases filled by SQL, and sessions that claim from them, either through the gate or by a plain
 * dequeue of the same columns from the same table with the same indexes.
 */
import { randomUUID } from "node:crypto"
import * as Fs from "node:fs"
import * as Pg from "pg"
import type { Database } from "../Server.ts"

/** Jobs of one lane, all waiting since before now. */
export interface Jobs {
  readonly count: number
  readonly kind?: string
  readonly pinnedTo?: string
  readonly classes?: ReadonlyArray<string>
  /** Each job's partition is the next of these; none is the default partition. */
  readonly partitions?: ReadonlyArray<string>
  /** Whether they stand before all others. */
  readonly isAhead?: boolean
  readonly isRunning?: boolean
  /** Neighbours in the table are this many places apart in the queue, as they are where so many partitions fill it by turns. */
  readonly scatter?: number
}

export interface Ground {
  readonly jobs: ReadonlyArray<Jobs>
  readonly policies?: ReadonlyArray<string>
  /** The planner knows the table as it was when it was empty, and nobody vacuums. */
  readonly isStale?: boolean
  /** So many jobs were claimed and finished while a transaction held its snapshot, which it still does. */
  readonly churned?: number
}

export interface Call {
  readonly ms: number
  /** What the server's process worked meanwhile, which other programs do not disturb; undefined where it cannot be seen. */
  readonly cpuMs: number | undefined
  readonly claimed: number
}

export interface Side {
  readonly call: (capacity: number) => Promise<Call>
  /** A call that leaves nothing. After a vacuum the first call makes its plans anew. */
  readonly rehearse: () => Promise<void>
  /** Back to the state before the calls: the jobs wait again, the turn is the first partition's. */
  readonly restore: () => Promise<void>
  readonly close: () => Promise<void>
}

export const partitions = (count: number): ReadonlyArray<string> =>
  Array.from({ length: count }, (_, index) => `p${String(index).padStart(5, "0")}`)

const worker = "bench"
const kinds = ["job", "blocked"]
const leaseMs = 30_000

/** Ready for the claims of `sideOf`, any number of them. */
export const prepare = async (database: Database, ground: Ground): Promise<() => Promise<void>> => {
  const { client } = database
  await client.query("alter table headgate.job set (autovacuum_enabled = off)")
  await client.query("vacuum analyze headgate.job")
  for (const policy of ground.policies ?? []) await client.query(policy)
  for (const [index, jobs] of ground.jobs.entries()) await fill(client, `${index}-`, jobs)
  const release = ground.churned === undefined ? undefined : await churn(database, ground.jobs[0]!, ground.churned)
  if (ground.isStale !== true) await database.settle()
  return async () => {
    await release?.()
    await database.drop()
  }
}

const fill = async (client: Pg.Client, prefix: string, jobs: Jobs): Promise<void> => {
  const laneId = await laneOf(client, jobs)
  const running = jobs.isRunning === true
  await client.query(
    `insert into headgate.job (scheduled_at_ms, enqueued_at_ms, retention_ms, lane_id, schema_version, max_attempts,
      crash_limit, priority, id, kind, queue, state, partition_key, fingerprint, payload,
      lease_id, lease_expires_at_ms, worker, claimed_at_ms, fence)
    select $4 + n % $9 * ($3 / $9) + n / $9, $4 + n, 0, $1, 1, 25, 3, $5, '01H' || $2 || lpad(n::text, 19, '0'), $6, 'default',
      case when $7 then 'running' else 'available' end, ($8::text[])[1 + n % cardinality($8::text[])], md5(n::text),
      convert_to('{"n":' || n || '}', 'UTF8'), case when $7 then gen_random_uuid() end,
      case when $7 then 4102444800000 end, case when $7 then 'other' end, case when $7 then 1 end, 0
    from generate_series(1, $3) n`,
    [
      laneId,
      prefix,
      jobs.count,
      jobs.isAhead === true ? 1000 : 1_000_000_000,
      jobs.isAhead === true ? 1 : 0,
      jobs.kind ?? "job",
      running,
      jobs.partitions ?? [""],
      jobs.scatter ?? 1
    ]
  )
}

const laneOf = async (client: Pg.Client, jobs: Jobs): Promise<unknown> => {
  const shape = [jobs.kind ?? "job", jobs.pinnedTo ?? "", jobs.partitions !== undefined, jobs.classes ?? []]
  await client.query(
    `insert into headgate.lane (queue, kind, version, suspect, worker, is_partitioned, classes)
    values ('default', $1, 1, false, $2, $3, $4) on conflict do nothing`,
    shape
  )
  const { rows } = await client.query<{ id: number }>(
    "select id from headgate.lane where kind = $1 and worker = $2 and is_partitioned = $3 and classes = $4",
    shape
  )
  return rows[0]?.id
}

/** Jobs come, run and are done, ahead of those that wait; no vacuum may remove them. */
const churn = async (database: Database, like: Jobs, count: number): Promise<() => Promise<void>> => {
  const holder = await open(database.url)
  await holder.query("begin isolation level repeatable read")
  await holder.query("select 1 from headgate.job limit 1")
  await fill(database.client, "c-", { ...like, count, isAhead: true })
  await database.client.query(
    `update headgate.job set state = 'running', lease_id = $1, lease_expires_at_ms = 0, worker = 'churn'
    where id like '01Hc-%'`,
    [randomUUID()]
  )
  await database.client.query("delete from headgate.job where worker = 'churn'")
  return () => holder.end()
}

const columns = `j.id, j.fence, j.kind, j.schema_version, j.queue, j.partition_key, j.payload, j.priority, j.attempt,
  j.max_attempts, j.crash_attempt, j.streak, j.enqueued_at_ms, j.scheduled_at_ms, j.claimed_at_ms, j.timeout_ms,
  j.deadline_at_ms, j.retention_ms, j.headers,
  j.has_steps or j.in_progress_step is not null or j.cursor_step is not null, null::text`

const plainText = `update headgate.job j set state = 'running', fence = j.fence + 1, lease_id = $1,
    lease_expires_at_ms = headgate.now_ms() + $2, worker = $3, claimed_at_ms = headgate.now_ms()
  where j.id = any(array(
    select r.id from headgate.job r
    where r.lane_id = $4 and r.partition_key = '' and r.keys = '' and r.state = 'available'
    order by r.priority desc, r.scheduled_at_ms, r.id limit $5 for no key update skip locked))
  returning ${columns}`

const gateText = "select * from headgate.admit($1, $2, $3, $4, $5, $6, $7, $8)"

/** A session of its own, under the settings that the store gives its sessions: one plan for all values, by index. */
export const sideOf = async (database: Database, kind: "gate" | "plain", isStale: boolean): Promise<Side> => {
  const client = await open(database.url)
  // What the disk takes for a commit is no part of a claim.
  await client.query("set synchronous_commit = off")
  for (
    const setting of [
      "plan_cache_mode = force_generic_plan",
      "enable_seqscan = off",
      "enable_bitmapscan = off",
      "jit = off"
    ]
  ) {
    await client.query(`set ${setting}`)
  }
  const pid = String((await client.query<{ pid: string }>("select pg_backend_pid() as pid")).rows[0]?.pid)
  const text = kind === "gate" ? gateText : plainText
  const valuesOf = kind === "gate"
    ? (capacity: number) => [worker, randomUUID(), ["default"], kinds, [1, 1], capacity, leaseMs, null]
    : (capacity: number) => [randomUUID(), leaseMs, worker, 1, capacity]
  const call: Side["call"] = async (capacity) => {
    const values = valuesOf(capacity)
    const cpuBefore = cpuMillis(pid)
    const startedAt = performance.now()
    const { rows } = await client.query<Array<string | null>>({ name: kind, text, values, rowMode: "array" })
    const ms = performance.now() - startedAt
    await asleep()
    const cpuAfter = cpuMillis(pid)
    return {
      ms,
      cpuMs: cpuBefore === undefined || cpuAfter === undefined ? undefined : cpuAfter - cpuBefore,
      claimed: rows.filter((row) => row[1] !== null).length
    }
  }
  return {
    call,
    rehearse: async () => {
      await client.query("begin")
      await call(1)
      await client.query("rollback")
    },
    restore: async () => {
      await database.client.query(
        `update headgate.job set state = 'available', lease_id = null, lease_expires_at_ms = null, worker = null
        where state = 'running' and worker = $1`,
        [worker]
      )
      await database.client.query("update headgate.queue_turn set partition_key = '', remaining = 0")
      if (!isStale) {
        await database.client.query("vacuum (index_cleanup on) headgate.job, headgate.bucket, headgate.queue_turn")
      }
    },
    close: () => client.end()
  }
}

/** Answers arrive as they are on the wire: what the client makes of them is no part of a claim. */
const open = async (url: string): Promise<Pg.Client> => {
  const client = new Pg.Client({ connectionString: url, types: { getTypeParser: () => (text: string) => text } })
  client.on("error", () => undefined)
  await client.connect()
  return client
}

/** The process has answered and accounts for its time when it goes to sleep. */
const asleep = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 1))

/** The run time of a process of this machine. */
const cpuMillis = (pid: string): number | undefined => {
  try {
    return Number(Fs.readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[0]) / 1_000_000
  } catch {
    return undefined
  }
}
