/** What the parent and a measured process tell each other. */
export type Order = "start" | "pause" | "heap" | "close" | { readonly poll: number }

export type Report =
  | { readonly type: "connected" }
  | { readonly type: "handled"; readonly jobs: number; readonly cpuMicros: number }
  | { readonly type: "paused" }
  /** What was ordered is done: `count` of jobs or steps. */
  | { readonly type: "done"; readonly count: number; readonly elapsedMs: number; readonly cpuMicros: number }
  /** A job's enqueue began, or its handler was called, in monotonic milliseconds that all processes share. */
  | { readonly type: "sent"; readonly atMs: number }
  | { readonly type: "started"; readonly atMs: number }
  | { readonly type: "claims"; readonly ms: ReadonlyArray<number> }
  | { readonly type: "heap"; readonly bytes: number }
  | { readonly type: "polled" }

export type Role =
  /** Tells of each start of a job with `tellsStarts`, of each claim's time with `tellsClaims`. */
  | { readonly type: "work"; readonly tellsStarts?: boolean; readonly tellsClaims?: boolean }
  /** `warmup` jobs first, then `count`, one by one from `callers` at once or `batch` at a time. */
  | {
    readonly type: "produce"
    readonly count: number
    readonly batch: number
    readonly callers: number
    readonly warmup: number
  }
  /** One job at each order to start. */
  | { readonly type: "send" }
  /** `batch` jobs every `everyMs`, from the order to start to the order to pause. */
  | { readonly type: "trickle"; readonly batch: number; readonly everyMs: number }
  /** `warmup` workflows first, then `count`. */
  | { readonly type: "flow"; readonly count: number; readonly warmup: number }

export interface Assignment {
  readonly system: string
  readonly setting: string
  readonly url: string
  /** Where to write a CPU profile of what follows the second start of a worker, or the first of others. */
  readonly profile?: string | undefined
  readonly role: Role
}
