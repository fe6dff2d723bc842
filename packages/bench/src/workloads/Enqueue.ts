/**
 * W1: how fast one process stores jobs: one by one from 16 callers at once, and in batches one after another. With
 * workers attached, they hear of the jobs and do not take them.
 */
import { ask, type Child, spawn } from "../Children.ts"
import { type Measurement, speed } from "../Measurement.ts"
import { countOf, type Database } from "../Server.ts"
import type { Setting, System } from "../System.ts"

export interface EnqueueOptions {
  readonly jobs: number
  readonly batch: number
  readonly callers: number
  readonly profile: string | undefined
}

export const enqueue = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  { batch, callers, jobs, profile }: EnqueueOptions
): Promise<ReadonlyArray<Measurement>> => {
  const common = { system: system.name, setting: setting.name, url: database.url }
  const warmup = Math.max(500, 2 * batch)
  const attached = Array.from(
    { length: setting.attached ?? 0 },
    () => spawn({ ...common, role: { type: "work" } })
  )
  const child = spawn({
    ...common,
    role: { type: "produce", count: jobs, batch, callers, warmup },
    profile: profile === undefined ? undefined : `${profile}.cpuprofile`
  })
  children.push(child, ...attached)
  await Promise.all(children.map((child) => child.next("connected")))
  await database.settle()
  const before = await countOf(database.client, system.unfinished)
  const cost = await database.meter()
  const { cpuMicros, elapsedMs } = await ask(child, "start", "done")
  const spent = await cost()
  const stored = await countOf(database.client, system.unfinished) - before
  if (stored !== jobs) throw new Error(`${system.name}: stored ${stored} of ${jobs} jobs`)
  const metric = batch === 1 ? `enqueue one by one, ${callers} callers` : `enqueue ${batch} at a time`
  return speed(metric, "job", jobs, elapsedMs, cpuMicros, spent)
}
