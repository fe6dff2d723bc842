/** All measurements of a run, interleaved: each round measures every system once before the next round begins. */
import type { Child } from "./Children.ts"
import { Collection, type Measurement, type Subject } from "./Measurement.ts"
import type { Options } from "./Options.ts"
import type { Database, Server } from "./Server.ts"
import * as Statements from "./Statements.ts"
import type { Setting, System, WorkloadName } from "./System.ts"
import { drain } from "./workloads/Drain.ts"
import { enqueue } from "./workloads/Enqueue.ts"

const measurementTimeoutMs = 120_000

interface Measure {
  readonly subject: Subject
  readonly system: System
  readonly run: (database: Database, children: Array<Child>, round: number) => Promise<ReadonlyArray<Measurement>>
}

export const measureAll = async (
  server: Server,
  systems: ReadonlyArray<System>,
  options: Options,
  say: (line: string) => void
): Promise<Collection> => {
  const collection = new Collection()
  const plan = options.workloads.flatMap((workload) =>
    systems.flatMap((system) => measuresOf(workload, system, options))
  )
  for (let round = 1; round <= options.rounds; round++) {
    for (const measure of plan) {
      const { setting, processes, workload } = measure.subject
      const title =
        `${round}/${options.rounds} ${workload} ${measure.system.name}: ${setting}, ${processes} process(es)`
      try {
        const measurements = await measureOnce(server, measure, round, options.showsStatements ? say : undefined)
        collection.add(measure.subject, measurements)
        say(`${title}: ${measurements[0]?.metric} ${Math.round(measurements[0]?.value ?? 0).toLocaleString("en")}/s`)
      } catch (error) {
        say(`${title}: FAILED: ${error instanceof Error ? error.message : String(error)}`)
      }
    }
  }
  return collection
}

const measureOnce = async (
  server: Server,
  measure: Measure,
  round: number,
  sayStatements: ((line: string) => void) | undefined
): Promise<ReadonlyArray<Measurement>> => {
  const database = await server.fresh(measure.system)
  const children: Array<Child> = []
  const timer = setTimeout(() => children.forEach((child) => child.kill()), measurementTimeoutMs)
  try {
    if (sayStatements !== undefined) await Statements.install(database.client)
    const measurements = await measure.run(database, children, round)
    if (sayStatements !== undefined) sayStatements(await Statements.top(database.client))
    return measurements
  } finally {
    clearTimeout(timer)
    await Promise.all(children.map((child) => child.close()))
    await database.drop()
  }
}

const measuresOf = (workload: WorkloadName, system: System, options: Options): ReadonlyArray<Measure> =>
  system.settings
    .filter((setting) => setting.workloads.includes(workload))
    .filter((setting) => options.setting === undefined || setting.name.includes(options.setting))
    .flatMap((setting) => workload === "W1" ? enqueues(system, setting, options) : drains(system, setting, options))

const drains = (system: System, setting: Setting, options: Options): ReadonlyArray<Measure> =>
  options.processes.map((processes) => ({
    system,
    subject: subjectOf("W2", system, setting, processes, setting.concurrency),
    run: (database, children, round) =>
      drain(system, setting, database, children, {
        jobs: options.jobs,
        warmup: (options.jobs >> 1) * processes,
        processes,
        profile: profileName(options, "W2", system, setting, `${processes}-${round}`)
      })
  }))

const enqueues = (system: System, setting: Setting, options: Options): ReadonlyArray<Measure> =>
  [{ batch: 1, callers: 16, jobs: 10_000 }, { batch: 1000, callers: 1, jobs: 50_000 }].map((shape) => ({
    system,
    subject: subjectOf("W1", system, setting, 1, shape.callers),
    run: (database, children, round) =>
      enqueue(system, setting, database, children, {
        ...shape,
        profile: profileName(options, "W1", system, setting, `${shape.batch}-${round}`)
      })
  }))

const subjectOf = (
  workload: WorkloadName,
  system: System,
  setting: Setting,
  processes: number,
  concurrency: number
): Subject => ({ workload, system: system.name, setting: setting.name, processes, concurrency })

const profileName = (
  { profile }: Options,
  workload: WorkloadName,
  system: System,
  setting: Setting,
  suffix: string
): string | undefined =>
  profile === undefined
    ? undefined
    : `${profile}${workload}-${system.name}-${setting.name.replaceAll(/\W+/g, "_")}-${suffix}`
