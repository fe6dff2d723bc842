/**
 * The limit of what Postgres gives a Node process: a bare table, named statements, a claim and a completion a thousand
 * jobs at a time, and no guarantee beyond that. Every ratio is a ratio to its first setting.
 */
import * as Pg from "pg"
import type { Setting, System, Worker } from "../System.ts"

const batch = 1000
const callers = 16

const setting = (name: string, workloads: Setting["workloads"], loops: number, isKept: boolean): Setting => ({
  name,
  workloads,
  concurrency: batch * loops,
  isKept,
  options: { batch, loops, finish: isKept ? "update" : "delete" }
})

const connect = async (url: string): Promise<Pg.Client> => {
  const client = new Pg.Client({ connectionString: url })
  await client.connect()
  return client
}

const install = async (url: string): Promise<void> => {
  const client = await connect(url)
  await client.query(`
    create table job (id bigint generated always as identity primary key, state text not null default 'available',
      enqueued_at timestamptz not null default now(), claimed_at timestamptz, finished_at timestamptz,
      payload jsonb not null);
    create index job_ready on job (id) where state = 'available'`)
  await client.end()
}

const fill: System["fill"] = async (url, _setting, count) => {
  const client = await connect(url)
  await client.query("insert into job (payload) select jsonb_build_object('n', n) from generate_series(1, $1) n", [
    count
  ])
  await client.end()
}

const claim = {
  name: "claim",
  text: `update job set state = 'running', claimed_at = now() where id = any(array(
      select id from job where state = 'available' order by id limit $1 for update skip locked))
    returning id, payload`
}

const complete = {
  name: "complete",
  text: `update job set state = 'completed', finished_at = now()
    from unnest($1::bigint[]) as done(id) where job.id = done.id`
}

const remove = { name: "remove", text: "delete from job using unnest($1::bigint[]) as done(id) where job.id = done.id" }

const handle = (_payload: unknown): void => {}

const connectWorker: System["connectWorker"] = async (url, setting, onHandled): Promise<Worker> => {
  const finish = setting.isKept ? complete : remove
  const clients = await Promise.all(Array.from({ length: Number(setting.options["loops"]) }, () => connect(url)))
  const run = { isOn: false }
  let loops: Promise<unknown> = Promise.resolve()
  const loop = async (client: Pg.Client): Promise<void> => {
    while (run.isOn) {
      const { rows } = await client.query<{ id: string; payload: unknown }>({ ...claim, values: [batch] })
      if (rows.length === 0) {
        await new Promise((resolve) => setTimeout(resolve, 5))
        continue
      }
      for (const row of rows) handle(row.payload)
      await client.query({ ...finish, values: [rows.map((row) => row.id)] })
      onHandled(rows.length)
    }
  }
  return {
    start: async () => {
      run.isOn = true
      loops = Promise.all(clients.map(loop))
    },
    pause: async () => {
      run.isOn = false
      await loops
    },
    close: async () => {
      await Promise.all(clients.map((client) => client.end()))
    }
  }
}

const connectProducer: System["connectProducer"] = async (url) => {
  const pool = new Pg.Pool({ connectionString: url, max: callers, idleTimeoutMillis: 0 })
  const one = { name: "enqueue", text: "insert into job (payload) values ($1) returning id" }
  const many = {
    name: "enqueue-all",
    text: "insert into job (payload) select p::jsonb from unnest($1::text[]) p returning id"
  }
  return {
    enqueue: async (n) => {
      await pool.query({ ...one, values: [{ n }] })
    },
    enqueueBatch: async (first, count) => {
      const payloads = Array.from({ length: count }, (_, index) => JSON.stringify({ n: first + index }))
      await pool.query({ ...many, values: [payloads] })
    },
    close: () => pool.end()
  }
}

export const raw: System = {
  name: "raw",
  settings: [
    setting("update", ["W1", "W2"], 1, true),
    setting("delete", ["W2"], 1, false),
    setting("update, two loops", ["W2"], 2, true),
    setting("delete, two loops", ["W2"], 2, false)
  ],
  install,
  fill,
  unfinished: "select exists (select from job where state <> 'completed')",
  finished: "select count(*)::int from job where state = 'completed'",
  connectProducer,
  connectWorker
}
