/**
 * W9: what claims cost while somebody holds an old snapshot, so that no row that died since can be removed, and how long
 * they take to recover. Jobs come at a steady pace all the while and are worked off at once.
 */
import * as Pg from "pg"
import { ask, type Child, spawn } from "../Children.ts"
import { type Measurement, percentile } from "../Measurement.ts"
import { sleep } from "../Process.ts"
import { countOf, type Database, holdsAny } from "../Server.ts"
import type { Setting, System } from "../System.ts"

export interface SnapshotOptions {
  readonly heldMs: number
  /** Claims are judged by windows of this length. */
  readonly windowMs: number
}

const batch = 100
const everyMs = 50
/** A window's p95 at or below this many times the fresh one is recovered. */
const recoveredAt = 2
const recoveryLimitMs = 120_000

export const snapshot = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  { heldMs, windowMs }: SnapshotOptions
): Promise<ReadonlyArray<Measurement>> => {
  const common = { system: system.name, setting: setting.name, url: database.url }
  const worker = spawn({ ...common, role: { type: "work", tellsClaims: true } })
  const producer = spawn({ ...common, role: { type: "trickle", batch, everyMs } })
  children.push(producer, worker)
  await Promise.all(children.map((child) => child.next("connected")))
  worker.order("start")
  producer.order("start")
  await sleep(windowMs)
  const fresh = await claimsOf(worker, 2 * windowMs)
  const release = await hold(database.url)
  await sleep(heldMs - windowMs)
  const held = await claimsOf(worker, windowMs)
  await release()
  const recoveryMs = await recovery(worker, windowMs, recoveredAt * fresh)
  const { count } = await ask(producer, "pause", "done")
  while (await holdsAny(database.client, system.unfinished)) await sleep(10)
  await sleep(50)
  const kept = await countOf(database.client, system.finished)
  if (worker.handled() !== count || kept !== (setting.isKept ? count : 0)) {
    throw new Error(`${system.name}: handled ${worker.handled()} of ${count} jobs, ${kept} kept`)
  }
  const churn = `a snapshot held ${Math.round(heldMs / 1000)} s`
  return [
    { metric: `claim p95 under ${churn}, to fresh`, unit: "times", value: held / fresh },
    { metric: "claim p95, fresh", unit: "ms", value: fresh },
    { metric: `claim p95, ${churn}`, unit: "ms", value: held },
    { metric: `recovery from ${churn}`, unit: "s", value: recoveryMs / 1000 }
  ]
}

/** The p95 of the claims of the next so many milliseconds. */
const claimsOf = async (worker: Child, millis: number): Promise<number> => {
  worker.takeClaims()
  await sleep(millis)
  const claims = worker.takeClaims()
  if (claims.length < 20) throw new Error(`only ${claims.length} claims in ${millis} ms`)
  return percentile(claims, 0.95)
}

/** To the end of the first window that is as good as fresh. */
const recovery = async (worker: Child, windowMs: number, enough: number): Promise<number> => {
  const startedAt = performance.now()
  while (performance.now() - startedAt < recoveryLimitMs) {
    if (await claimsOf(worker, windowMs) <= enough) break
  }
  return performance.now() - startedAt
}

const hold = async (url: string): Promise<() => Promise<void>> => {
  const client = new Pg.Client({ connectionString: url })
  await client.connect()
  await client.query("begin isolation level repeatable read")
  await client.query("select count(*) from pg_class")
  return () => client.end()
}
