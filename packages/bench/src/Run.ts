/** All measurements of a run, interleaved: each round measures every system once before the next round begins. */
import type { Child } from "./Children.ts"
import { Collection, type Measurement } from "./Measurement.ts"
import type { Options } from "./Options.ts"
import { type Measure, planOf } from "./Plan.ts"
import type { Server } from "./Server.ts"
import * as Statements from "./Statements.ts"
import type { System } from "./System.ts"

const defaultTimeoutMs = 120_000

export interface Run {
  readonly collection: Collection
  /** What failed, or was not what it should be. */
  readonly failures: ReadonlyArray<string>
}

export const measureAll = async (
  server: Server,
  systems: ReadonlyArray<System>,
  options: Options,
  say: (line: string) => void
): Promise<Run> => {
  const collection = new Collection()
  const failures: Array<string> = []
  const plan = planOf(systems, options)
  for (let round = 1; round <= options.rounds; round++) {
    for (const measure of plan.filter(({ maxRounds }) => round <= (maxRounds ?? round))) {
      const { processes, setting, workload } = measure.subject
      const title =
        `${round}/${options.rounds} ${workload} ${measure.system.name}: ${setting}, ${processes} process(es)`
      const startedAt = performance.now()
      try {
        const measurements = await measureOnce(server, measure, round, options.showsStatements ? say : undefined)
        collection.add(measure.subject, measurements)
        say(`${title}: ${describe(measurements)} (in ${((performance.now() - startedAt) / 1000).toFixed(1)} s)`)
      } catch (error) {
        const failure = `${title}: FAILED: ${error instanceof Error ? error.message : String(error)}`
        failures.push(failure)
        say(failure)
      }
    }
  }
  return { collection, failures }
}

const measureOnce = async (
  server: Server,
  measure: Measure,
  round: number,
  sayStatements: ((line: string) => void) | undefined
): Promise<ReadonlyArray<Measurement>> => {
  const database = await server.fresh(measure.system, measure.ground)
  const children: Array<Child> = []
  const limit = deadline(measure.timeoutMs ?? defaultTimeoutMs)
  try {
    if (sayStatements !== undefined) await Statements.install(database.client)
    const measurements = await Promise.race([measure.run(database, children, round), limit.passed])
    if (sayStatements !== undefined) sayStatements(await Statements.top(database.client))
    return measurements
  } finally {
    limit.clear()
    await Promise.all(children.map((child) => child.close()))
    await database.drop()
  }
}

const deadline = (millis: number) => {
  let timer: NodeJS.Timeout | undefined
  const passed = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`took more than ${millis / 1000} s`)), millis)
  })
  return { passed, clear: () => clearTimeout(timer) }
}

const describe = (measurements: ReadonlyArray<Measurement>): string => {
  const [first] = measurements
  return first === undefined
    ? ""
    : `${first.metric} ${Number(first.value.toPrecision(4)).toLocaleString("en")} ${first.unit}`
}
