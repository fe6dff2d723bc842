/**
 * W2, W7: how fast worker processes empty a queue of jobs that do nothing. The processes have connected and drained a
 * small queue before; the clock runs from their release until the database holds no unfinished job. W4 does it beside
 * finished jobs, or stops the workers and the clock while most of the jobs still wait.
 */
import { ask, type Child, handledBy, spawn } from "../Children.ts"
import { type Measurement, speed } from "../Measurement.ts"
import { sleep } from "../Process.ts"
import { countOf, type Database, holdsAny } from "../Server.ts"
import type { Setting, System } from "../System.ts"

export interface DrainOptions {
  readonly metric: string
  readonly jobs: number
  readonly warmup: number
  readonly processes: number
  readonly profile?: string | undefined
  /** Jobs that the database holds already, more than are drained; none are added then. */
  readonly waiting?: number
  /** Finished jobs that the database holds already. */
  readonly finished?: number
  /** Also tell how evenly the jobs fell to the processes. */
  readonly tellsShares?: boolean
}

interface Site {
  readonly system: System
  readonly setting: Setting
  readonly database: Database
  readonly children: ReadonlyArray<Child>
}

export const drain = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  options: DrainOptions
): Promise<ReadonlyArray<Measurement>> => {
  const { jobs, metric, processes, profile, waiting, warmup } = options
  for (let n = 0; n < processes; n++) {
    children.push(spawn({
      system: system.name,
      setting: setting.name,
      url: database.url,
      role: { type: "work" },
      profile: profile === undefined ? undefined : `${profile}-${n}.cpuprofile`
    }))
  }
  await Promise.all(children.map((child) => child.next("connected")))
  const site = { system, setting, database, children }
  const release = waiting === undefined ? untilEmpty : untilPaused
  if (waiting === undefined) await system.fill(database.url, setting, warmup)
  await release(site, warmup)
  const warmed = handledBy(children)
  if (waiting === undefined) {
    await pauseAll(children)
    await system.fill(database.url, setting, jobs)
  }
  await database.settle()
  for (const child of children) child.forget()
  const cost = await database.meter()
  const elapsedMs = await release(site, jobs)
  const spent = await cost()
  const handled = handledBy(children)
  await verify(site, options, warmed, handled)
  const processMicros = children.reduce((sum, child) => sum + child.cpuMicros(), 0)
  return [
    ...speed(metric, "job", handled, elapsedMs, processMicros, spent),
    ...options.tellsShares === true ? [leastShare(children, handled)] : []
  ]
}

/** Milliseconds from the order to start until all is done. */
const untilEmpty = async ({ children, database, system }: Site, jobs: number): Promise<number> => {
  const startedAt = performance.now()
  for (const child of children) child.order("start")
  // The processes say when it is worth asking the database, whose answer counts.
  while (handledBy(children) < jobs) await sleep(1)
  while (await holdsAny(database.client, system.unfinished)) await sleep(1)
  return performance.now() - startedAt
}

/** Milliseconds from the order to start until `jobs` were handled, and whatever else was claimed by then is done as well. */
const untilPaused = async ({ children, database, system }: Site, jobs: number): Promise<number> => {
  const startedAt = performance.now()
  for (const child of children) child.order("start")
  while (handledBy(children) < jobs) await sleep(1)
  await pauseAll(children)
  while (await holdsAny(database.client, system.running)) await sleep(1)
  const elapsedMs = performance.now() - startedAt
  // The last count is still on its way.
  await sleep(50)
  return elapsedMs
}

const pauseAll = (children: ReadonlyArray<Child>): Promise<unknown> =>
  Promise.all(children.map((child) => ask(child, "pause", "paused")))

/** What the processes say they did is what the database shows. */
const verify = async (
  { database: { client }, setting, system }: Site,
  { finished = 0, jobs, waiting }: DrainOptions,
  warmed: number,
  handled: number
): Promise<void> => {
  const done = warmed + handled
  const kept = await countOf(client, system.finished)
  const left = await countOf(client, system.unfinished)
  const expected = {
    kept: setting.isKept ? finished + done : 0,
    left: waiting === undefined ? 0 : waiting - done
  }
  const isShort = handled < jobs || (waiting === undefined && handled !== jobs)
  if (!isShort && kept === expected.kept && left === expected.left) return
  throw new Error(
    `${system.name}: handled ${handled} of ${jobs} jobs, ${kept} finished ones kept instead of ${expected.kept}, ` +
      `${left} unfinished instead of ${expected.left}`
  )
}

/** What the process with the fewest jobs had, beside an even share. */
const leastShare = (children: ReadonlyArray<Child>, handled: number): Measurement => {
  const least = Math.min(...children.map((child) => child.handled()))
  return { metric: "least busy process", unit: "of an even share", value: least / (handled / children.length) }
}
