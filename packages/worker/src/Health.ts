/** How a worker is, for the probes and dashboards of the program around it. */
import type { Drain } from "./Drain.ts"
import type { InFlight } from "./InFlight.ts"
import type { Outage } from "./Outage.ts"
import type { Standing } from "./Standing.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

export interface WorkerHealth {
  /**
   * `degraded`: a call of the store fails, or handlers do not stop. `stuck`: all slots are taken by such handlers, and
   * nothing is claimed until one of them ends by itself. `quiet`: it was told to take no work for now. `draining`: it
   * takes no more work before its end.
   */
  readonly status: "working" | "degraded" | "stuck" | "quiet" | "draining"
  readonly running: number
  readonly buffered: number
  /** Ended attempts whose end the store has not confirmed. */
  readonly settling: number
  /** Handlers that were told to stop and still run. */
  readonly zombies: number
  readonly concurrency: number
  /** Operations of the store that failed when last tried. */
  readonly failing: ReadonlyArray<string>
}

interface HealthParts {
  readonly settings: WorkerSettings
  readonly inFlight: InFlight
  readonly outage: Outage
  readonly drain: Drain
  readonly standing: Standing
}

export const healthOf = (parts: HealthParts): WorkerHealth => {
  const { inFlight: { buffer, held, running: slots, zombies }, outage, settings } = parts
  const running = slots.size - zombies
  return {
    status: statusOf(parts),
    running,
    buffered: buffer.length,
    settling: Math.max(0, held - buffer.length - running),
    zombies,
    concurrency: settings.concurrency,
    failing: [...outage.failing]
  }
}

const statusOf = ({ drain, inFlight, outage, standing }: HealthParts): WorkerHealth["status"] => {
  if (drain.hasBegun) return "draining"
  if (inFlight.isStuck) return "stuck"
  if (standing.isQuiet) return "quiet"
  return inFlight.zombies > 0 || outage.failing.size > 0 ? "degraded" : "working"
}
