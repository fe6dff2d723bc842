/**
 * W2: how fast worker processes empty a queue of jobs that do nothing. The processes have connected and drained a small
 * queue before; the clock runs from their release until the database holds no unfinished job.
 */
import { type Child, spawn } from "../Children.ts"
import { type Measurement, measurements } from "../Measurement.ts"
import { one } from "../Server.ts"
import type { Database } from "../Server.ts"
import type { Setting, System } from "../System.ts"

export interface DrainOptions {
  readonly jobs: number
  readonly warmup: number
  readonly processes: number
  readonly profile: string | undefined
}

export const drain = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  options: DrainOptions
): Promise<ReadonlyArray<Measurement>> => {
  const { jobs, processes, warmup } = options
  for (let n = 0; n < processes; n++) {
    children.push(spawn({
      system: system.name,
      setting: setting.name,
      url: database.url,
      role: { type: "work" },
      profile: options.profile === undefined ? undefined : `${options.profile}-${n}.cpuprofile`
    }))
  }
  await Promise.all(children.map((child) => child.next("connected")))
  await system.fill(database.url, setting, warmup)
  await release(system, database, children, warmup)
  await Promise.all(children.map((child) => {
    const paused = child.next("paused")
    child.order("pause")
    return paused
  }))
  await system.fill(database.url, setting, jobs)
  await database.settle()
  for (const child of children) child.forget()
  const cost = await database.meter()
  const elapsedMs = await release(system, database, children, jobs)
  const spent = await cost()
  await verify(system, setting, database, children, warmup, jobs)
  const processMicros = children.reduce((sum, child) => sum + child.cpuMicros(), 0)
  return measurements("drain", jobs, elapsedMs, processMicros, spent)
}

/** Milliseconds from the order to start until all is done. */
const release = async (
  system: System,
  database: Database,
  children: ReadonlyArray<Child>,
  jobs: number
): Promise<number> => {
  const startedAt = performance.now()
  for (const child of children) child.order("start")
  // The processes say when it is worth asking the database, whose answer counts.
  while (children.reduce((sum, child) => sum + child.handled(), 0) < jobs) await pause(1)
  while (await one(database.client, system.unfinished)) await pause(1)
  return performance.now() - startedAt
}

const verify = async (
  system: System,
  setting: Setting,
  database: Database,
  children: ReadonlyArray<Child>,
  warmup: number,
  jobs: number
): Promise<void> => {
  const handled = children.reduce((sum, child) => sum + child.handled(), 0)
  const finished = Number(await one(database.client, system.finished))
  const expected = setting.isKept ? warmup + jobs : 0
  if (handled !== jobs || finished !== expected) {
    throw new Error(`${system.name}: handled ${handled} of ${jobs} jobs, ${finished} kept instead of ${expected}`)
  }
}

const pause = (millis: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, millis))
