/**
 * Ends an isolated child whose worker died. The event loop of the child may be blocked for good, so a thread of its own
 * watches: when the lifeline closes, the child has a moment to end by itself, then it is killed with its process group.
 */
import { Worker } from "node:worker_threads"

export const watchLifeline = (fd: number): void => {
  const thread = new Worker(WATCH, {
    eval: true,
    workerData: { fd, graceMs: GRACE_MS },
    name: "headgate lifeline",
    env: {},
    execArgv: []
  })
  thread.unref()
}

/** This process and all that it started in its process group, whose leader it is. */
export const killGroup = (): void => {
  try {
    process.kill(-process.pid, "SIGKILL")
  } catch {
    // It was started by hand.
    process.kill(process.pid, "SIGKILL")
  }
}

// Text, so that it needs no file of its own beside a bundled program.
const WATCH = `
  const { Socket } = require("node:net")
  const { fd, graceMs } = require("node:worker_threads").workerData
  const killGroup = ${killGroup}
  new Socket({ fd, readable: true, writable: false })
    .on("error", () => {})
    .on("close", () => setTimeout(killGroup, graceMs))
    .resume()
`
const GRACE_MS = 1000
