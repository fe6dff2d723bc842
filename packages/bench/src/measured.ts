/** A measured process: connects one system, says so, and follows its parent's orders. Started by `Children`. */
import type { Process } from "./Process.ts"
import { Profiler } from "./Profiler.ts"
import type { Assignment, Order } from "./Protocol.ts"
import { flow } from "./roles/Flow.ts"
import { produce, send, trickle } from "./roles/Produce.ts"
import { work } from "./roles/Work.ts"
import { systems } from "./systems/index.ts"

const processOf = async (assignment: Assignment): Promise<Process> => {
  const system = await systems[assignment.system]?.()
  const setting = system?.settings.find(({ name }) => name === assignment.setting)
  if (system === undefined || setting === undefined) throw new Error(`No system ${assignment.system}`)
  let last = Promise.resolve()
  return {
    url: assignment.url,
    system,
    setting,
    profiler: new Profiler(assignment.profile),
    report: (message) => void process.send?.(message),
    onOrder: (obey) => {
      process.on("message", (order: Order) => {
        last = last.then(() => obey(order)).catch((error: unknown) => {
          console.error(error)
          process.exit(1)
        })
      })
    },
    leave: () => process.disconnect()
  }
}

const takeRole = (self: Process, { role }: Assignment): Promise<void> => {
  switch (role.type) {
    case "work":
      return work(self, role)
    case "produce":
      return produce(self, role)
    case "send":
      return send(self)
    case "trickle":
      return trickle(self, role)
    case "flow":
      return flow(self, role)
  }
}

const assignment: Assignment = JSON.parse(process.argv[2] ?? "")
const self = await processOf(assignment)
await takeRole(self, assignment)
self.report({ type: "connected" })
