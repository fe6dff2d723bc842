/** The measured processes as their parent sees them. All end with the measurement, in time or by force. */
import * as ChildProcess from "node:child_process"
import type { Assignment, Order, Report } from "./Protocol.ts"

export interface Child {
  readonly order: (order: Order) => void
  /** Resolves at the next report of this type; rejects when the process ends before. */
  readonly next: <T extends Report["type"]>(type: T) => Promise<Extract<Report, { type: T }>>
  /** The jobs handled since the latest start, and the CPU time since then. */
  readonly handled: () => number
  readonly hasEnded: () => boolean
  readonly cpuMicros: () => number
  readonly forget: () => void
  /** The claims' times that came in since the latest call. */
  readonly takeClaims: () => ReadonlyArray<number>
  readonly close: () => Promise<void>
  readonly kill: () => void
}

export const spawn = (assignment: Assignment): Child => {
  const script = new URL("./measured.ts", import.meta.url)
  const child = ChildProcess.fork(script, [JSON.stringify(assignment)], {
    execArgv: [
      "--conditions=headgate-source",
      "--disable-warning=ExperimentalWarning",
      "--disable-warning=DeprecationWarning",
      "--expose-gc"
    ]
  })
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve))
  let handled = 0
  let cpuMicros = 0
  let claims: Array<number> = []
  child.on("message", (report: Report) => {
    if (report.type === "handled") handled = report.jobs
    if (report.type === "claims") claims.push(...report.ms)
    if ("cpuMicros" in report) cpuMicros = report.cpuMicros
  })
  const next: Child["next"] = (type) =>
    new Promise((resolve, reject) => {
      const listen = (report: Report) => {
        if (!isOf(type)(report)) return
        child.off("message", listen)
        resolve(report)
      }
      child.on("message", listen)
      void ended.then((code) => reject(new Error(`A process of ${assignment.system} ended with ${code}`)))
    })
  return {
    order: (order) => {
      child.send(order)
    },
    next,
    handled: () => handled,
    hasEnded: () => child.exitCode !== null || child.signalCode !== null,
    cpuMicros: () => cpuMicros,
    forget: () => {
      handled = 0
    },
    takeClaims: () => {
      const taken = claims
      claims = []
      return taken
    },
    close: async () => {
      if (child.exitCode === null && child.connected) child.send("close")
      const timer = setTimeout(() => child.kill("SIGKILL"), 15_000)
      await ended
      clearTimeout(timer)
    },
    kill: () => {
      child.kill("SIGKILL")
    }
  }
}

/** Gives the order and waits for the report that answers it. */
export const ask = <T extends Report["type"]>(
  child: Child,
  order: Order,
  type: T
): Promise<Extract<Report, { type: T }>> => {
  const answer = child.next(type)
  child.order(order)
  return answer
}

/** Throws when one of them is no more: nobody need wait for its jobs. */
export const handledBy = (children: ReadonlyArray<Child>): number => {
  if (children.some((child) => child.hasEnded())) throw new Error("A worker process ended")
  return children.reduce((sum, child) => sum + child.handled(), 0)
}

const isOf = <T extends Report["type"]>(type: T) => (report: Report): report is Extract<Report, { type: T }> =>
  report.type === type
