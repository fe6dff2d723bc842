/**
 * W5: how fast one process runs workflows of ten recorded steps that do nothing, one or many at once. Each step begins
 * when the record of the one before it is durable. A queue's figure includes the workflow itself: its enqueue in one
 * batch, its claim and its settlement. As many workflows as are measured run before, since a process that runs for
 * days runs compiled code.
 */
import { ask, type Child, spawn } from "../Children.ts"
import { type Measurement, speed } from "../Measurement.ts"
import { type Database, holdsAny } from "../Server.ts"
import { type Setting, stepsOfWorkflow, type System } from "../System.ts"

export interface StepsOptions {
  readonly workflows: number
  readonly profile: string | undefined
}

export const steps = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  { profile, workflows }: StepsOptions
): Promise<ReadonlyArray<Measurement>> => {
  const child = spawn({
    system: system.name,
    setting: setting.name,
    url: database.url,
    role: { type: "flow", count: workflows, warmup: workflows },
    profile: profile === undefined ? undefined : `${profile}.cpuprofile`
  })
  children.push(child)
  await child.next("connected")
  await database.settle()
  const cost = await database.meter()
  const { count, cpuMicros, elapsedMs } = await ask(child, "start", "done")
  const spent = await cost()
  if (count !== workflows * stepsOfWorkflow || await holdsAny(database.client, system.unfinished)) {
    throw new Error(`${system.name}: ran ${count} steps of ${workflows} workflows, or left some unfinished`)
  }
  return speed(`steps, ${setting.concurrency} at once`, "step", count, elapsedMs, cpuMicros, spent)
}
