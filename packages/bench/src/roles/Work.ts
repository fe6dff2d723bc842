/** A worker process: handles jobs that do nothing, from the order to start to the order to pause. */
import { cpuSince, type Process, sharedMs, sleep } from "../Process.ts"
import type { Role } from "../Protocol.ts"

/** How often a count that changed is reported. */
const tickMs = 4
const claimsEveryMs = 100

export const work = async (self: Process, role: Extract<Role, { type: "work" }>): Promise<void> => {
  const { profiler, report } = self
  let handled = 0
  let reported = 0
  let cpu = process.cpuUsage()
  let starts = 0
  let claims: Array<number> = []
  const worker = await self.system.connectWorker(self.url, self.setting, {
    handled: (jobs) => {
      handled += jobs
      if (role.tellsStarts === true) report({ type: "started", atMs: sharedMs() })
    },
    claimed: (ms) => {
      if (role.tellsClaims === true) claims.push(ms)
    }
  })
  const timers = [
    setInterval(() => {
      if (handled === reported) return
      reported = handled
      report({ type: "handled", jobs: handled, cpuMicros: cpuSince(cpu) })
    }, tickMs),
    setInterval(() => {
      if (claims.length === 0) return
      report({ type: "claims", ms: claims })
      claims = []
    }, claimsEveryMs)
  ]
  self.onOrder(async (order) => {
    switch (order) {
      case "start":
        handled = reported = 0
        if (++starts === 2) await profiler.start()
        cpu = process.cpuUsage()
        return worker.start()
      case "pause":
        await worker.pause()
        return report({ type: "paused" })
      case "heap":
        return report({ type: "heap", bytes: await heapBytes() })
      case "close":
        timers.forEach(clearInterval)
        await profiler.stop()
        await worker.pause()
        await worker.close()
        return self.leave()
      default:
        await worker.poll?.(order.poll)
        return report({ type: "polled" })
    }
  })
}

/** What is still reachable: collected twice, with time between for finalizers and for promises to settle. */
const heapBytes = async (): Promise<number> => {
  if (globalThis.gc === undefined) throw new Error("The process was started without --expose-gc")
  for (let n = 0; n < 2; n++) {
    globalThis.gc()
    await sleep(50)
  }
  globalThis.gc()
  return process.memoryUsage().heapUsed
}
