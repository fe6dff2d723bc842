/** The Postgres under measurement: a template for each system, a fresh copy for each measurement, and what it cost. */
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import * as Pg from "pg"
import type { System } from "./System.ts"

/** Every measured system runs on a server with these. A server given by `DATABASE_URL` keeps its own. */
export const serverSettings: Readonly<Record<string, string>> = {
  fsync: "on",
  synchronous_commit: "on",
  full_page_writes: "on",
  shared_buffers: "512MB",
  max_wal_size: "4GB",
  checkpoint_timeout: "15min",
  max_connections: "200"
}

const reported = [...Object.keys(serverSettings), "wal_level", "autovacuum"]

export interface Cost {
  /** Transactions that wrote, of the whole server. */
  readonly commits: number
  readonly walBytes: number
  /** CPU of all server processes; undefined where it cannot be seen. */
  readonly cpuMicros: number | undefined
}

export interface Server {
  readonly version: string
  readonly settings: Readonly<Record<string, string>>
  /** A copy of a template; the template is made at the first call that names its system and ground. */
  readonly fresh: (system: System, ground?: Ground) => Promise<Database>
  readonly close: () => Promise<void>
}

/** What a database holds before a measurement begins. */
export interface Ground {
  readonly key: string
  readonly lay: (client: Pg.Client, url: string) => Promise<void>
}

export interface Database {
  readonly url: string
  readonly client: Pg.Client
  /** Brings statistics and dirty pages to the same state before each measurement. */
  readonly settle: () => Promise<void>
  /** Costs between this call and the call of its answer. */
  readonly meter: () => Promise<() => Promise<Cost>>
  readonly drop: () => Promise<void>
}

export const connect = async (url: string): Promise<Server> => {
  const admin = await open(url)
  const version = String(await one(admin, "show server_version"))
  const settings: Record<string, string> = {}
  for (const name of reported) settings[name] = String(await one(admin, `show ${name}`))
  const postmaster = await postmasterPid(admin)
  const run = `bench_${process.pid}_${Date.now().toString(36)}`
  const templates = new Map<string, string>()
  let count = 0
  let laid = 0

  const template = async (system: System, ground: Ground | undefined): Promise<string> => {
    const key = `${system.name} ${ground?.key ?? ""}`
    const known = templates.get(key)
    if (known !== undefined) return known
    const name = `${run}_template_${++laid}`
    await copy(admin, name, ground === undefined ? "template0" : await template(system, undefined))
    templates.set(key, name)
    if (ground === undefined) await system.install(urlOf(url, name))
    else await lay(ground, urlOf(url, name))
    return name
  }

  const fresh = async (system: System, ground?: Ground): Promise<Database> => {
    const source = await template(system, ground)
    const name = `${run}_${++count}`
    await copy(admin, name, source)
    const client = await open(urlOf(url, name))
    return {
      url: urlOf(url, name),
      client,
      settle: async () => {
        await client.query("vacuum analyze")
        await client.query("checkpoint").catch(() => undefined)
      },
      meter: () => meter(client, postmaster),
      drop: async () => {
        await client.end()
        await admin.query(`drop database if exists ${name} with (force)`)
      }
    }
  }

  const close = async (): Promise<void> => {
    for (const name of templates.values()) await admin.query(`drop database if exists ${name} with (force)`)
    await admin.end()
  }

  return { version, settings, fresh, close }
}

/** Copies of files, which other than copies of pages do not grow the log by the size of the database. */
const copy = async (admin: Pg.Client, name: string, source: string): Promise<void> => {
  await admin.query(`create database ${name} template ${source} strategy file_copy`)
}

const lay = async (ground: Ground, url: string): Promise<void> => {
  const client = await open(url)
  await ground.lay(client, url)
  await client.query("vacuum analyze")
  await client.end()
}

export const one = async (client: Pg.Client, sql: string, values: ReadonlyArray<unknown> = []): Promise<unknown> => {
  const { rows } = await client.query<Array<unknown>>({ text: sql, values: [...values], rowMode: "array" })
  return rows[0]?.[0]
}

/** `rows` is what follows `from`. */
export const countOf = async (client: Pg.Client, rows: string): Promise<number> =>
  Number(await one(client, `select count(*) from ${rows}`))

export const holdsAny = async (client: Pg.Client, rows: string): Promise<boolean> =>
  await one(client, `select exists (select from ${rows})`) === true

const open = async (url: string): Promise<Pg.Client> => {
  const client = new Pg.Client({ connectionString: url })
  client.on("error", () => undefined)
  await client.connect()
  return client
}

const urlOf = (adminUrl: string, database: string): string => {
  const url = new URL(adminUrl)
  url.pathname = `/${database}`
  return url.href
}

const meter = async (client: Pg.Client, postmaster: number | undefined): Promise<() => Promise<Cost>> => {
  const lsn = await one(client, "select pg_current_wal_insert_lsn()")
  const commits = Number(await one(client, "select pg_snapshot_xmax(pg_current_snapshot())::text"))
  const cpu = serverCpuMicros(postmaster)
  return async () => {
    const cpuNow = serverCpuMicros(postmaster)
    return {
      commits: Number(await one(client, "select pg_snapshot_xmax(pg_current_snapshot())::text")) - commits,
      walBytes: Number(await one(client, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1)", [lsn])),
      cpuMicros: cpu === undefined || cpuNow === undefined ? undefined : cpuNow - cpu
    }
  }
}

/** Known only when the server runs on this machine and its data may be read. */
const postmasterPid = async (admin: Pg.Client): Promise<number | undefined> => {
  try {
    const directory = String(await one(admin, "show data_directory"))
    const pid = Number(Fs.readFileSync(Path.join(directory, "postmaster.pid"), "utf8").split("\n")[0])
    return serverCpuMicros(pid) === undefined ? undefined : pid
  } catch {
    return undefined
  }
}

const ticksPerSecond = 100

/** Of the server's main process and its children, to the nanosecond, and of the children that ended, in ticks. */
const serverCpuMicros = (postmaster: number | undefined): number | undefined => {
  if (postmaster === undefined || Os.platform() !== "linux") return undefined
  let micros = 0
  for (const entry of Fs.readdirSync("/proc")) {
    if (!/^\d+$/.test(entry)) continue
    const fields = processFields(entry)
    if (fields === undefined) continue
    const isPostmaster = Number(entry) === postmaster
    if (isPostmaster) micros += ticks(fields, 13) + ticks(fields, 14)
    if (isPostmaster || Number(fields[1]) === postmaster) {
      micros += runMicros(entry) ?? ticks(fields, 11) + ticks(fields, 12)
    }
  }
  return micros
}

const ticks = (fields: ReadonlyArray<string>, index: number): number =>
  Number(fields[index]) * (1_000_000 / ticksPerSecond)

const runMicros = (pid: string): number | undefined => {
  try {
    return Number(Fs.readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[0]) / 1000
  } catch {
    return undefined
  }
}

/** The fields after the program's name, which may hold blanks: 1 is the parent, 11 to 14 user and system time. */
const processFields = (pid: string): ReadonlyArray<string> | undefined => {
  try {
    const stat = Fs.readFileSync(`/proc/${pid}/stat`, "utf8")
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")
  } catch {
    return undefined
  }
}
