/** Producer processes: as fast as they can, one job at each order, or at a steady pace. */
import { cpuSince, type Process, sharedMs, sleep } from "../Process.ts"
import type { Role } from "../Protocol.ts"

export const produce = async (self: Process, role: Extract<Role, { type: "produce" }>): Promise<void> => {
  const producer = await self.system.connectProducer(self.url, self.setting)
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
  self.onOrder(async (order) => {
    if (order !== "start") {
      await producer.close()
      return self.leave()
    }
    await self.profiler.start()
    const cpu = process.cpuUsage()
    const startedAt = performance.now()
    await send(role.count, role.batch)
    const elapsedMs = performance.now() - startedAt
    self.report({ type: "done", count: role.count, elapsedMs, cpuMicros: cpuSince(cpu) })
    await self.profiler.stop()
  })
}

export const send = async (self: Process): Promise<void> => {
  const producer = await self.system.connectProducer(self.url, self.setting)
  let sent = 0
  self.onOrder(async (order) => {
    if (order !== "start") {
      await producer.close()
      return self.leave()
    }
    const atMs = sharedMs()
    await producer.enqueue(sent++)
    self.report({ type: "sent", atMs })
  })
}

export const trickle = async (self: Process, role: Extract<Role, { type: "trickle" }>): Promise<void> => {
  const producer = await self.system.connectProducer(self.url, self.setting)
  const state = { isOn: false, sent: 0 }
  let loop: Promise<void> = Promise.resolve()
  const run = async (): Promise<void> => {
    let dueAt = performance.now()
    while (state.isOn) {
      await producer.enqueueBatch(state.sent, role.batch)
      state.sent += role.batch
      dueAt += role.everyMs
      await sleep(Math.max(0, dueAt - performance.now()))
    }
  }
  const pause = async (): Promise<void> => {
    state.isOn = false
    await loop
  }
  self.onOrder(async (order) => {
    if (order === "start") {
      state.isOn = true
      loop = run()
      return
    }
    await pause()
    if (order === "pause") return self.report({ type: "done", count: state.sent, elapsedMs: 0, cpuMicros: 0 })
    await producer.close()
    return self.leave()
  })
}
