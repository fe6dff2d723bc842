/**
 * W3: how long a job of an otherwise idle queue waits. One process enqueues a job, another starts it, and only then, a
 * short and uneven while later, comes the next. Time runs from the call that enqueues to the call of the handler.
 */
import { ask, type Child, spawn } from "../Children.ts"
import { type Measurement, percentile } from "../Measurement.ts"
import { sleep } from "../Process.ts"
import { type Database, holdsAny } from "../Server.ts"
import type { Setting, System } from "../System.ts"

export interface LatencyOptions {
  readonly jobs: number
  readonly warmup: number
}

const restMs = () => 20 + 20 * Math.random()

export const latency = async (
  system: System,
  setting: Setting,
  database: Database,
  children: Array<Child>,
  { jobs, warmup }: LatencyOptions
): Promise<ReadonlyArray<Measurement>> => {
  const common = { system: system.name, setting: setting.name, url: database.url }
  const worker = spawn({ ...common, role: { type: "work", tellsStarts: true } })
  const sender = spawn({ ...common, role: { type: "send" } })
  children.push(sender, worker)
  await Promise.all(children.map((child) => child.next("connected")))
  worker.order("start")
  const waits: Array<number> = []
  for (let n = -warmup; n < jobs; n++) {
    const [started, sent] = await Promise.all([worker.next("started"), ask(sender, "start", "sent")])
    if (n >= 0) waits.push(started.atMs - sent.atMs)
    await sleep(restMs())
  }
  while (await holdsAny(database.client, system.unfinished)) await sleep(1)
  if (worker.handled() !== warmup + jobs) {
    throw new Error(`${system.name}: started ${worker.handled()} of ${warmup + jobs} jobs`)
  }
  return [
    { metric: "enqueue to start, p50", unit: "ms", value: percentile(waits, 0.5) },
    { metric: "enqueue to start, p99", unit: "ms", value: percentile(waits, 0.99) }
  ]
}
