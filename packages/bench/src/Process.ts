/** What a role of a measured process is given, and what all roles measure with. */
import type { Profiler } from "./Profiler.ts"
import type { Order, Report } from "./Protocol.ts"
import type { Setting, System } from "./System.ts"

export interface Process {
  readonly url: string
  readonly system: System
  readonly setting: Setting
  readonly profiler: Profiler
  readonly report: (message: Report) => void
  /** Orders are obeyed one by one. */
  readonly onOrder: (obey: (order: Order) => Promise<void>) => void
  /** Lets the process end. */
  readonly leave: () => void
}

export const cpuSince = (start: NodeJS.CpuUsage): number => {
  const { system, user } = process.cpuUsage(start)
  return system + user
}

/** The same clock in all processes of this machine. */
export const sharedMs = (): number => Number(process.hrtime.bigint()) / 1_000_000

export const sleep = (millis: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, millis))
