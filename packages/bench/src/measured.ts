/** A measured process: connects one system, says so, and follows its parent's orders. Started by `Children`. */
import * as Fs from "node:fs"
import { Session } from "node:inspector/promises"
import type { Assignment, Order, Report } from "./Protocol.ts"
import type { Setting, System } from "./System.ts"
import { systems } from "./systems/index.ts"

/** How often a count that changed is reported. */
const tickMs = 4

const assignment: Assignment = JSON.parse(process.argv[2] ?? "")

const report = (message: Report): void => {
  process.send?.(message)
}

const cpuSince = (start: NodeJS.CpuUsage): number => {
  const { system, user } = process.cpuUsage(start)
  return system + user
}

const work = async (system: System, setting: Setting): Promise<void> => {
  let handled = 0
  let reported = 0
  let cpu = process.cpuUsage()
  let starts = 0
  const worker = await system.connectWorker(assignment.url, setting, (jobs) => {
    handled += jobs
  })
  const timer = setInterval(() => {
    if (handled === reported) return
    reported = handled
    report({ type: "handled", jobs: handled, cpuMicros: cpuSince(cpu) })
  }, tickMs)
  onOrder(async (order) => {
    switch (order) {
      case "start":
        handled = reported = 0
        if (++starts === 2) await startProfile()
        cpu = process.cpuUsage()
        return worker.start()
      case "pause":
        await worker.pause()
        return report({ type: "paused" })
      case "close":
        clearInterval(timer)
        await stopProfile()
        await worker.pause()
        await worker.close()
        return process.disconnect()
    }
  })
}

const produce = async (
  system: System,
  setting: Setting,
  role: Extract<Assignment["role"], { type: "produce" }>
): Promise<void> => {
  const producer = await system.connectProducer(assignment.url, setting)
  const send = (count: number, batch: number) => {
    let next = 0
    const caller = async (): Promise<void> => {
      while (next < count) {
        const first = next
        next += batch
        await (batch === 1 ? producer.enqueue(first) : producer.enqueueBatch(first, Math.min(batch, count - first)))
      }
    }
    return Promise.all(Array.from({ length: role.callers }, caller))
  }
  await send(role.warmup, role.batch)
  onOrder(async (order) => {
    if (order !== "start") {
      await producer.close()
      return process.disconnect()
    }
    await startProfile()
    const cpu = process.cpuUsage()
    const startedAt = performance.now()
    await send(role.count, role.batch)
    report({ type: "produced", elapsedMs: performance.now() - startedAt, cpuMicros: cpuSince(cpu) })
    await stopProfile()
  })
}

const onOrder = (obey: (order: Order) => Promise<void>): void => {
  process.on("message", (order: Order) => {
    obey(order).catch((error: unknown) => {
      console.error(error)
      process.exit(1)
    })
  })
}

let session: Session | undefined

const startProfile = async (): Promise<void> => {
  if (assignment.profile === undefined) return
  session = new Session()
  session.connect()
  await session.post("Profiler.enable")
  await session.post("Profiler.setSamplingInterval", { interval: 200 })
  await session.post("Profiler.start")
}

const stopProfile = async (): Promise<void> => {
  if (session === undefined || assignment.profile === undefined) return
  const { profile } = await session.post("Profiler.stop")
  Fs.writeFileSync(assignment.profile, JSON.stringify(profile))
  session = undefined
}

const main = async (): Promise<void> => {
  const system = await systems[assignment.system]?.()
  const setting = system?.settings.find(({ name }) => name === assignment.setting)
  if (system === undefined || setting === undefined) throw new Error(`No system ${assignment.system}`)
  await (assignment.role.type === "work" ? work(system, setting) : produce(system, setting, assignment.role))
  report({ type: "connected" })
}

await main()
