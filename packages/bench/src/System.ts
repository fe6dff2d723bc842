/**
 * What a job queue must offer to be measured. One file a system; the workloads know nothing but this. The parent
 * process installs and fills, the measured processes produce and work.
 */
export type WorkloadName = "W1" | "W2" | "W6"

/** One way to run a system. Its options are printed with the results. */
export interface Setting {
  readonly name: string
  readonly workloads: ReadonlyArray<WorkloadName>
  /** Jobs one process may have in hand at once. */
  readonly concurrency: number
  /** Whether finished jobs stay in their table. */
  readonly isKept: boolean
  readonly options: Readonly<Record<string, string | number | boolean>>
}

export interface System {
  readonly name: string
  readonly settings: ReadonlyArray<Setting>
  /** Makes the schema in an empty database. Once a run: the measured databases are copies. */
  readonly install: (url: string) => Promise<void>
  /** Stores jobs for the workers to find, by the system's own bulk enqueue. */
  readonly fill: (url: string, setting: Setting, count: number) => Promise<void>
  /** One row, one boolean: whether any job is not finished. */
  readonly unfinished: string
  /** One row, one number: the finished jobs that are kept. */
  readonly finished: string
  readonly connectProducer: (url: string, setting: Setting) => Promise<Producer>
  readonly connectWorker: (url: string, setting: Setting, onHandled: (jobs: number) => void) => Promise<Worker>
}

export interface Producer {
  readonly enqueue: (n: number) => Promise<void>
  readonly enqueueBatch: (first: number, count: number) => Promise<void>
  readonly close: () => Promise<void>
}

/** Connected when it is given out; claims nothing before `start` and after `pause`. */
export interface Worker {
  readonly start: () => Promise<void>
  readonly pause: () => Promise<void>
  readonly close: () => Promise<void>
}
