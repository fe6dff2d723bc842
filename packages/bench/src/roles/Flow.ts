/** A process that runs workflows. */
import { cpuSince, type Process } from "../Process.ts"
import type { Role } from "../Protocol.ts"

export const flow = async (self: Process, role: Extract<Role, { type: "flow" }>): Promise<void> => {
  if (self.system.connectWorkflows === undefined) throw new Error(`${self.system.name} has no workflows`)
  const workflows = await self.system.connectWorkflows(self.url, self.setting)
  await workflows.run(role.warmup)
  self.onOrder(async (order) => {
    if (order !== "start") {
      await workflows.close()
      return self.leave()
    }
    await self.profiler.start()
    const cpu = process.cpuUsage()
    const startedAt = performance.now()
    const count = await workflows.run(role.count)
    const elapsedMs = performance.now() - startedAt
    self.report({ type: "done", count, elapsedMs, cpuMicros: cpuSince(cpu) })
    await self.profiler.stop()
  })
}
