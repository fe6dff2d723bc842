/** W1: how fast one process stores jobs: one by one from 16 callers at once, and in batches one after another. */
import { type Child, spawn } from "../Children.ts"
import { type Measurement, measurements } from "../Measurement.ts"
import type { Database } from "../Server.ts"
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
  const child = spawn({
    system: system.name,
    setting: setting.name,
    url: database.url,
    role: { type: "produce", count: jobs, batch, callers, warmup: Math.max(500, 2 * batch) },
    profile: profile === undefined ? undefined : `${profile}.cpuprofile`
  })
  children.push(child)
  await child.next("connected")
  await database.settle()
  const cost = await database.meter()
  const produced = child.next("produced")
  child.order("start")
  const { cpuMicros, elapsedMs } = await produced
  const spent = await cost()
  const metric = batch === 1 ? `enqueue one by one, ${callers} callers` : `enqueue ${batch} at a time`
  return measurements(metric, jobs, elapsedMs, cpuMicros, spent)
}
