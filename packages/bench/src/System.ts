/**
 * What a job queue must offer to be measured. One file a system; the workloads know nothing but this. The parent
 * process installs and fills, the measured processes produce, work and run workflows.
 */
import type * as Pg from "pg"

export const workloadNames = ["W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9"] as const

export type WorkloadName = typeof workloadNames[number]

/** One way to run a system. Its options are printed with the results. */
export interface Setting {
  readonly name: string
  readonly workloads: ReadonlyArray<WorkloadName>
  /** Jobs or workflows one process may have in hand at once. */
  readonly concurrency: number
  /** Whether finished jobs stay in their table. */
  readonly isKept: boolean
  readonly options: Readonly<Record<string, string | number | boolean>>
  /** Left out of a quick run. */
  readonly onlyInFull?: ReadonlyArray<WorkloadName>
  /** Never more jobs or workflows than these: it is so slow that they tell as much. */
  readonly most?: number
  /** Workers that listen for new work, and take none, while W1 enqueues. */
  readonly attached?: number
}

export interface System {
  readonly name: string
  readonly settings: ReadonlyArray<Setting>
  /** Makes the schema in an empty database. Once a run: the measured databases are copies. */
  readonly install: (url: string) => Promise<void>
  /** Stores jobs for the workers to find, by the system's own bulk enqueue or as that would. */
  readonly fill: (url: string, setting: Setting, count: number) => Promise<void>
  /** Stores finished jobs as a worker leaves them. Of systems that keep them and are measured in W4. */
  readonly fillFinished?: (client: Pg.Client, url: string, setting: Setting, count: number) => Promise<void>
  /** Each of these follows `from` and has a row for every such job: not finished, claimed, finished and kept. */
  readonly unfinished: string
  readonly running: string
  readonly finished: string
  readonly connectProducer: (url: string, setting: Setting) => Promise<Producer>
  readonly connectWorker: (url: string, setting: Setting, tally: Tally) => Promise<Worker>
  /** Of systems that are measured in W5. */
  readonly connectWorkflows?: (url: string, setting: Setting) => Promise<Workflows>
}

export interface Producer {
  readonly enqueue: (n: number) => Promise<void>
  readonly enqueueBatch: (first: number, count: number) => Promise<void>
  readonly close: () => Promise<void>
}

export interface Tally {
  /** Handlers of so many jobs were called. */
  readonly handled: (jobs: number) => void
  /** A claim that found something took so long. Told by systems that are measured in W9. */
  readonly claimed: (ms: number) => void
}

/** Connected when it is given out; claims nothing before `start` and after `pause`. */
export interface Worker {
  readonly start: () => Promise<void>
  readonly pause: () => Promise<void>
  readonly close: () => Promise<void>
  /** Looks at its empty queue so many times, as fast as it can. Of systems that are measured in W8. */
  readonly poll?: (times: number) => Promise<void>
}

export const stepsOfWorkflow = 10

/** Connected when it is given out. Runs workflows of ten steps, the setting's `concurrency` at once. */
export interface Workflows {
  /** Until all are finished and recorded as that; answers how many step bodies ran. */
  readonly run: (count: number) => Promise<number>
  readonly close: () => Promise<void>
}
