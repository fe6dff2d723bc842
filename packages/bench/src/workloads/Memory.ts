/**
 * W8: what a worker keeps of the jobs and of the empty polls it has had. Its heap is collected and measured at 25 % and
 * at 100 % of each phase, while nothing is in its hands.
 */
import { ask, type Child, handledBy, spawn } from "../Children.ts"
import type { Measurement } from "../Measurement.ts"
import { sleep } from "../Process.ts"
import { type Database, holdsAny } from "../Server.ts"
import type { Setting, System } from "../System.ts"

export interface MemoryOptions {
  readonly jobs: number
  readonly polls: number
}

const megabyte = 1_048_576

export const memory = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  { jobs, polls }: MemoryOptions
): Promise<ReadonlyArray<Measurement>> => {
  const child = spawn({ system: system.name, setting: setting.name, url: database.url, role: { type: "work" } })
  children.push(child)
  await child.next("connected")
  child.order("start")
  const work = async (total: number): Promise<void> => {
    await system.fill(database.url, setting, jobs / 4)
    while (handledBy([child]) < total) await sleep(1)
    while (await holdsAny(database.client, system.unfinished)) await sleep(1)
  }
  const ofJobs = await phase(child, (quarter) => work(quarter * jobs / 4))
  if (child.handled() !== jobs) throw new Error(`${system.name}: handled ${child.handled()} of ${jobs} jobs`)
  const ofPolls = await phase(child, async () => {
    await ask(child, { poll: polls / 4 }, "polled")
  })
  return [
    ...growths(`${jobs.toLocaleString("en")} jobs`, ofJobs),
    ...growths(`${polls.toLocaleString("en")} idle polls`, ofPolls)
  ]
}

/** The heap after each quarter. */
const phase = async (child: Child, run: (quarter: number) => Promise<void>): Promise<ReadonlyArray<number>> => {
  const heaps: Array<number> = []
  for (let quarter = 1; quarter <= 4; quarter++) {
    await run(quarter)
    heaps.push((await ask(child, "heap", "heap")).bytes)
  }
  return heaps
}

const growths = (phase: string, heaps: ReadonlyArray<number>): ReadonlyArray<Measurement> => {
  const first = heaps.at(0) ?? Number.NaN
  const last = heaps.at(-1) ?? Number.NaN
  return [
    { metric: `heap growth over ${phase}`, unit: "MB", value: (last - first) / megabyte },
    { metric: `heap after ${phase}`, unit: "MB", value: last / megabyte }
  ]
}
