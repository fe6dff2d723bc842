/**
 * The limit of what Postgres gives a Node process: a bare table, named statements, a claim and a completion a thousand
 * jobs at a time, and no guarantee beyond that. Every ratio is a ratio to one of its settings: see `bases`.
 */
import * as Pg from "pg"
import { sleep } from "../Process.ts"
import { type Setting, stepsOfWorkflow, type System, type Worker, type Workflows } from "../System.ts"

const batch = 1000
const callers = 16
const pollMs = 5

const draining = (
  name: string,
  workloads: Setting["workloads"],
  loops: number,
  isKept: boolean,
  onlyInFull: Setting["workloads"] = []
): Setting => ({
  name,
  workloads,
  concurrency: batch * loops,
  isKept,
  options: { batch, loops, finish: isKept ? "update" : "delete" },
  onlyInFull
})

const idling = (name: string, listens: boolean): Setting => ({
  name,
  workloads: ["W3"],
  concurrency: batch,
  isKept: false,
  options: { loops: 1, listens, ...listens ? {} : { pollMs } }
})

const stepping = (name: string, concurrency: number, isGrouped: boolean): Setting => ({
  name,
  workloads: ["W5"],
  concurrency,
  isKept: true,
  options: { connections: isGrouped ? 1 : concurrency, insertsOneStatement: isGrouped ? "all waiting steps" : "a step" }
})

/** What ratios are ratios to. */
export const bases: ReadonlyArray<string> = ["update", "notify", "1 at once", "grouped, 32 at once"]

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
    create index job_ready on job (id) where state = 'available';
    create table step (workflow text not null, name text not null, result jsonb not null,
      recorded_at timestamptz not null default now(), primary key (workflow, name))`)
  await client.end()
}

const fill: System["fill"] = async (url, _setting, count) => {
  const client = await connect(url)
  await client.query("insert into job (payload) select jsonb_build_object('n', n) from generate_series(1, $1) n", [
    count
  ])
  await client.end()
}

const fillFinished: System["fillFinished"] = async (client, _url, _setting, count) => {
  await client.query(
    `insert into job (state, claimed_at, finished_at, payload)
    select 'completed', now(), now(), jsonb_build_object('n', n) from generate_series(1, $1) n`,
    [count]
  )
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

const connectWorker: System["connectWorker"] = async (url, setting, tally): Promise<Worker> => {
  const finish = setting.isKept ? complete : remove
  const clients = await Promise.all(Array.from({ length: Number(setting.options["loops"]) }, () => connect(url)))
  const listener = setting.options["listens"] === true ? await listen(url) : undefined
  const run = { isOn: false }
  let loops: Promise<unknown> = Promise.resolve()
  const loop = async (client: Pg.Client): Promise<void> => {
    while (run.isOn) {
      const heard = listener?.heard()
      const askedAt = performance.now()
      const { rows } = await client.query<{ id: string; payload: unknown }>({ ...claim, values: [batch] })
      if (rows.length === 0) {
        await Promise.race([heard ?? sleep(pollMs), sleep(1000)])
        continue
      }
      tally.claimed(performance.now() - askedAt)
      for (const row of rows) handle(row.payload)
      tally.handled(rows.length)
      await client.query({ ...finish, values: [rows.map((row) => row.id)] })
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
      await listener?.client.end()
    }
  }
}

/** `heard` resolves at the first announcement after it was called. */
const listen = async (url: string) => {
  const client = await connect(url)
  let waiting: Array<() => void> = []
  client.on("notification", () => {
    for (const resolve of waiting) resolve()
    waiting = []
  })
  await client.query("listen job")
  return { client, heard: () => new Promise<void>((resolve) => waiting.push(resolve)) }
}

const connectProducer: System["connectProducer"] = async (url, setting) => {
  const pool = new Pg.Pool({ connectionString: url, max: callers, idleTimeoutMillis: 0 })
  const one = setting.options["listens"] === true
    ? {
      name: "enqueue",
      text:
        "with stored as (insert into job (payload) values ($1) returning id) select pg_notify('job', '') from stored"
    }
    : { name: "enqueue", text: "insert into job (payload) values ($1) returning id" }
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

const connectWorkflows: System["connectWorkflows"] = async (url, setting): Promise<Workflows> => {
  const clients = await Promise.all(Array.from({ length: Number(setting.options["connections"]) }, () => connect(url)))
  const isGrouped = clients.length < setting.concurrency
  const group = grouped(clients[0]!)
  let started = 0
  const workflow = async (client: Pg.Client, id: string): Promise<void> => {
    for (let n = 0; n < stepsOfWorkflow; n++) {
      const step: Step = [id, `step-${n}`, JSON.stringify(n)]
      await (isGrouped ? group(step) : client.query({ ...record, values: step }))
    }
  }
  return {
    run: async (count) => {
      const last = started + count
      const flow = async (index: number): Promise<void> => {
        while (started < last) await workflow(clients[index] ?? clients[0]!, `workflow-${started++}`)
      }
      await Promise.all(Array.from({ length: setting.concurrency }, (_, index) => flow(index)))
      const { rows } = await clients[0]!.query<{ count: string }>(
        "select count(*) from step where split_part(workflow, '-', 2)::int >= $1",
        [last - count]
      )
      return Number(rows[0]?.count)
    },
    close: async () => {
      await Promise.all(clients.map((client) => client.end()))
    }
  }
}

type Step = [workflow: string, name: string, result: string]

const record = { name: "record", text: "insert into step (workflow, name, result) values ($1, $2, $3)" }

const recordAll = {
  name: "record-all",
  text: `insert into step (workflow, name, result)
    select w, s, r::jsonb from unnest($1::text[], $2::text[], $3::text[]) as rows(w, s, r)`
}

/**
 * While one insert is on its way, the steps that end meanwhile wait for the next, which takes them all. Never more than
 * one of a workflow: it starts its next step when the insert of its last one has been answered, and so is durable.
 */
const grouped = (client: Pg.Client): (step: Step) => Promise<void> => {
  let waiting: Array<{ readonly step: Step; readonly done: () => void; readonly fail: (error: unknown) => void }> = []
  let isSending = false
  const send = async (): Promise<void> => {
    isSending = true
    while (waiting.length > 0) {
      // What became runnable in the same turn comes along.
      await new Promise(setImmediate)
      const taken = waiting
      waiting = []
      const column = (index: 0 | 1 | 2) => taken.map(({ step }) => step[index])
      try {
        await client.query({ ...recordAll, values: [column(0), column(1), column(2)] })
        for (const { done } of taken) done()
      } catch (error) {
        for (const { fail } of taken) fail(error)
      }
      await new Promise(setImmediate)
    }
    isSending = false
  }
  return (step) =>
    new Promise((done, fail) => {
      waiting.push({ step, done, fail })
      if (!isSending) void send()
    })
}

export const raw: System = {
  name: "raw",
  settings: [
    draining("update", ["W1", "W2", "W4", "W7"], 1, true, ["W7"]),
    draining("delete", ["W2", "W9"], 1, false, ["W9"]),
    draining("update, two loops", ["W2"], 2, true, ["W2"]),
    draining("delete, two loops", ["W2"], 2, false, ["W2"]),
    idling("notify", true),
    idling(`poll ${pollMs} ms`, false),
    stepping("1 at once", 1, false),
    stepping("32 at once", 32, false),
    stepping("grouped, 32 at once", 32, true)
  ],
  install,
  fill,
  fillFinished,
  unfinished: "job where state <> 'completed'",
  running: "job where state = 'running'",
  finished: "job where state = 'completed'",
  connectProducer,
  connectWorker,
  connectWorkflows
}
