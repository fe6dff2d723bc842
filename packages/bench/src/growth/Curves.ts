/**
 * What grows, by what: all points of a curve are measured one after another in one database. Vacuum comes only where a
 * curve says so, and no checkpoint does: the log holds rows, not pages.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Task } from "@headgate/core/Task"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import * as Worker from "@headgate/worker/Worker"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Pg from "pg"
import { median } from "../Measurement.ts"
import { sleep } from "../Process.ts"
import { type Cost, type Database, one } from "../Server.ts"
import * as Cycle from "./Cycle.ts"
import * as Ground from "./Ground.ts"
import { plentiful, roomy, type Shape, taskOf } from "./Tasks.ts"

export interface Point {
  readonly name: string
  /** By what was measured; the first point of a curve is what the others are ratios to. */
  readonly values: Readonly<Record<string, number>>
}

export interface Curve {
  readonly name: string
  readonly about: string
  readonly run: (database: Database, told: (point: Point) => void, size: Size) => Promise<void>
}

export interface Size {
  /** Without the largest points. */
  readonly isQuick: boolean
}

const jobs = 2000
const batch = 100
const rounds = 3

const shown = (count: number): string =>
  count >= 1_000_000 ? `${count / 1_000_000}M` : count >= 1000 ? `${count / 1000}k` : String(count)

const flat = (cost: Cycle.CycleCost): Readonly<Record<string, number>> =>
  Object.fromEntries(Cycle.stages.flatMap((stage) => {
    const { buffers, commits, cpuMicros, walBytes } = cost[stage]
    return [
      [`${stage}: CPU us`, cpuMicros],
      [`${stage}: WAL bytes`, walBytes],
      [`${stage}: buffers`, buffers],
      [`${stage}: commits`, commits]
    ]
  }))

const inSession = async (database: Database, use: (session: Cycle.Session) => Promise<void>): Promise<void> => {
  await database.client.query("alter table headgate.job set (autovacuum_enabled = off)")
  const session = Cycle.open(database.url)
  try {
    await use(session)
  } finally {
    await session.dispose()
  }
}

const settle = (database: Database) => database.client.query("vacuum analyze headgate.job")

const cycle = async (session: Cycle.Session, database: Database, shape: Shape, size = batch) => {
  await settle(database)
  return flat(await Cycle.measure(session, database, { task: taskOf(shape), batch: size, jobs, rounds }))
}

/** What a vacuum takes that autovacuum would start by then, for each dead row version. */
const vacuum = async (session: Cycle.Session, database: Database, shape: Shape, rows: number) => {
  const dead = Math.ceil(1000 + 0.02 * rows)
  const costs: Array<Cost> = []
  for (let n = 0; n < rounds; n++) {
    await settle(database)
    await Ground.churn(session, database, taskOf(shape), dead / 2)
    const cost = await database.meter()
    await database.client.query("vacuum headgate.job")
    costs.push(await cost())
  }
  return {
    "vacuum: CPU us a dead row": median(costs.map(({ cpuMicros = Number.NaN }) => cpuMicros)) / dead,
    "vacuum: WAL bytes a dead row": median(costs.map(({ walBytes }) => walBytes)) / dead
  }
}

/** What the removal of a finished job costs once its time is over. */
const evict = async (database: Database) => {
  await database.client.query(
    `update headgate.job set evict_at_ms = 0 where id in (select id from headgate.job where state = 'completed' order by id limit $1)`,
    [jobs / 2]
  )
  await settle(database)
  const cost = await database.meter()
  const evicted = Number(await one(database.client, "select headgate.evict_retained($1)", [jobs / 2]))
  const { cpuMicros = Number.NaN, walBytes } = await cost()
  return { "evict: CPU us": cpuMicros / evicted, "evict: WAL bytes": walBytes / evicted }
}

/** What a row takes on disk, without the room that dead ones have left. */
const sizes = async (database: Database) => {
  await database.client.query("vacuum (full, analyze) headgate.job")
  const { heapBytes, indexBytes, rows } = await Ground.sizeOf(database)
  return { "heap bytes a row": heapBytes / rows, "index bytes a row": indexBytes / rows }
}

const rowsOf = (isFinished: boolean): Curve["run"] => (database, told, { isQuick }) =>
  inSession(database, async (session) => {
    const shape = { isKept: isFinished }
    for (const count of [1000, 10_000, 100_000, ...isQuick ? [] : [1_000_000]]) {
      await database.client.query("truncate headgate.job")
      await Ground.add(session, database, taskOf(shape), { count, isFinished })
      const size = await sizes(database)
      const costs = await cycle(session, database, shape)
      const later = { ...await vacuum(session, database, shape, count), ...isFinished ? await evict(database) : {} }
      told({ name: shown(count), values: { ...costs, ...later, ...size } })
    }
  })

const partitions: Curve["run"] = (database, told) =>
  inSession(database, async (session) => {
    const rows = 20_000
    for (const count of [1, 10, 100, 1000, 10_000]) {
      await database.client.query("truncate headgate.job")
      await Ground.add(session, database, taskOf({ partitions: count }), { count: rows, partitions: count })
      told({ name: shown(count), values: await cycle(session, database, { partitions: count }) })
    }
  })

const payloads: Curve["run"] = (database, told, { isQuick }) =>
  inSession(database, async (session) => {
    for (const bytes of [100, 1000, 10_000, ...isQuick ? [] : [100_000]]) {
      await database.client.query("truncate headgate.job")
      const shape = { bytes, isKept: true }
      const task = taskOf(shape)
      // Kept jobs stay, and tell what one takes on disk.
      const cost = await Cycle.measure(session, database, { task, batch: 50, jobs: 500, rounds: 2 * rounds })
      told({ name: `${shown(bytes)}B`, values: { ...flat(cost), ...await sizes(database) } })
    }
  })

const batches = (shape: Shape): Curve["run"] => (database, told) =>
  inSession(database, async (session) => {
    await prepare(database)
    await fill(session, shape, 20_000)
    for (const size of [1000, 100, 10, 1]) {
      await settle(database)
      const options = { task: taskOf(shape), batch: size, jobs: size === 1 ? 500 : jobs, rounds }
      told({ name: `${size} at a time`, values: flat(await Cycle.measure(session, database, options)) })
    }
  })

/** Through the door, so that each has a partition and keys of its own. */
const fill = async (session: Cycle.Session, shape: Shape, count: number): Promise<void> => {
  const task = taskOf(shape)
  for (let first = 0; first < count; first += 1000) {
    await session.runPromise(task.enqueueAll(Array.from({ length: 1000 }, (_, n) => task.payloadOf(first + n))))
  }
}

/** Jobs of the same lane that run all the while, as in a large fleet. */
const running = (shape: Shape): Curve["run"] => (database, told) =>
  inSession(database, async (session) => {
    await prepare(database)
    const task = taskOf(shape)
    for (const count of [100, 1000, 10_000]) {
      await database.client.query("truncate headgate.job")
      await fill(session, shape, Math.max(1000, count))
      await database.client.query(
        `update headgate.job set state = 'running', lease_id = gen_random_uuid(), lease_expires_at_ms = 4102444800000,
          worker = 'others', claimed_at_ms = 0, fence = 1
        where id in (select id from headgate.job order by id limit $1)`,
        [count]
      )
      await database.client.query("delete from headgate.job where state = 'available'")
      await fill(session, shape, 5000)
      await settle(database)
      const cost = await Cycle.measure(session, database, { task, batch, jobs: 200, rounds })
      told({ name: `${shown(count)} running`, values: flat(cost) })
    }
  })

const policies: Curve["run"] = async (database, told) =>
  inSession(database, async (session) => {
    await prepare(database)
    const shapes: ReadonlyArray<readonly [string, Shape]> = [
      ["none", {}],
      ["100 partitions", { partitions: 100 }],
      ["a rate class", { isRated: true }],
      ["a limit by key, 100 keys", { limitKeys: 100 }],
      ["all three", { partitions: 100, isRated: true, limitKeys: 100 }]
    ]
    for (const [name, shape] of shapes) {
      await database.client.query("truncate headgate.job")
      await fill(session, shape, 10_000)
      await settle(database)
      const cost = await Cycle.measure(session, database, { task: taskOf(shape), batch, jobs: 200, rounds: 4 * rounds })
      told({ name, values: flat(cost) })
    }
  })

const prepare = async ({ client }: Database): Promise<void> => {
  await client.query(
    "insert into headgate.rate_class (name, rate_limit, window_ms, burst) values ($1, $2, $3, $2)",
    [plentiful.name, plentiful.limit, plentiful.windowMs]
  )
  await client.query(
    "insert into headgate.concurrency_limit (name, scope, subject, max_concurrent) values ($1, 'key', '', $2)",
    [roomy.name, roomy.max]
  )
}

const snapshots: Curve["run"] = (database, told, { isQuick }) =>
  inSession(database, async (session) => {
    const task = taskOf({})
    await Ground.add(session, database, task, { count: 20_000 })
    await settle(database)
    const release = await Ground.hold(database.url)
    let churned = 0
    try {
      for (const count of [0, 1000, 10_000, ...isQuick ? [] : [100_000]]) {
        if (count > churned) await Ground.churn(session, database, task, count - churned)
        churned = count
        const cost = await Cycle.measure(session, database, { task, batch, jobs: 1000, rounds: 2 })
        told({ name: `${shown(count)} done since`, values: flat(cost) })
      }
    } finally {
      await release()
    }
  })

const seconds = 15

const idleTask = Task.make("idle", { payload: Schema.Void })

const workers: Curve["run"] = async (database, told, { isQuick }) => {
  for (const count of [1, 2, 4, 8, ...isQuick ? [] : [16]]) {
    const store = PostgresStore.layer.pipe(
      Layer.provideMerge(PgClient.layer({ url: Redacted.make(database.url), maxConnections: 2 }))
    )
    const worker = () => Layer.fresh(Worker.Worker.layer()).pipe(Layer.provide(idleTask.toLayer(() => Effect.void)))
    const [first, ...others] = Array.from({ length: count }, worker)
    const runtime = ManagedRuntime.make(Layer.mergeAll(first!, ...others).pipe(Layer.provide(store)))
    await runtime.context()
    await sleep(3000)
    await database.client.query("select pg_stat_statements_reset()")
    const cost = await database.meter()
    await sleep(1000 * seconds)
    const { commits, cpuMicros = Number.NaN, walBytes } = await cost()
    const statements = Number(await one(database.client, "select sum(calls) from pg_stat_statements"))
    const connections = Number(
      await one(database.client, "select count(*) from pg_stat_activity where datname = current_database()")
    )
    await runtime.dispose()
    told({
      name: `${count} idle`,
      values: {
        "statements a second": statements / seconds,
        "commits a second": commits / seconds,
        "WAL bytes a second": walBytes / seconds,
        "CPU us a second": cpuMicros / seconds,
        "connections": connections - 1
      }
    })
  }
}

const listeners: Curve["run"] = async (database, told, { isQuick }) => {
  const notices = 400
  const clients: Array<Pg.Client> = []
  try {
    for (const count of [1, 10, ...isQuick ? [] : [100]]) {
      while (clients.length < count) {
        const client = new Pg.Client({ connectionString: database.url })
        await client.connect()
        await client.query("listen growth")
        clients.push(client)
      }
      const cost = await database.meter()
      for (let n = 0; n < notices; n++) {
        await database.client.query("select pg_notify('growth', $1)", [String(n)])
        await sleep(5)
      }
      const { commits, cpuMicros = Number.NaN, walBytes } = await cost()
      told({
        name: `${count} listening`,
        values: {
          "CPU us a notice": cpuMicros / notices,
          "WAL bytes a notice": walBytes / notices,
          "commits a notice": commits / notices
        }
      })
    }
  } finally {
    await Promise.all(clients.map((client) => client.end()))
  }
}

export const curves: ReadonlyArray<Curve> = [
  { name: "waiting", about: "jobs that wait", run: rowsOf(false) },
  { name: "finished", about: "finished jobs that are kept", run: rowsOf(true) },
  { name: "partitions", about: "partitions of 20,000 waiting jobs", run: partitions },
  { name: "payload", about: "bytes of a payload, jobs kept", run: payloads },
  { name: "batch", about: "jobs in a call, without policies", run: batches({}) },
  {
    name: "gated-batch",
    about: "jobs in a call, under a class, in 100 partitions",
    run: batches({ partitions: 100, isRated: true })
  },
  { name: "policies", about: "policies that never hold anybody", run: policies },
  { name: "running", about: "jobs that run under a limit by key, 100 keys", run: running({ limitKeys: 100 }) },
  {
    name: "running-rated",
    about: "jobs that run under a limit by key, 100 keys, and a class",
    run: running({ limitKeys: 100, isRated: true })
  },
  { name: "snapshot", about: "jobs done since somebody else's snapshot, still held", run: snapshots },
  { name: "workers", about: "idle workers of one process", run: workers },
  { name: "listeners", about: "sessions that listen", run: listeners }
]
