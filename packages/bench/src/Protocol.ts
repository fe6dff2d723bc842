/** What the parent and a measured process tell each other. */
export type Order = "start" | "pause" | "close"

export type Report =
  | { readonly type: "connected" }
  | { readonly type: "handled"; readonly jobs: number; readonly cpuMicros: number }
  | { readonly type: "paused" }
  | { readonly type: "produced"; readonly elapsedMs: number; readonly cpuMicros: number }

export interface Assignment {
  readonly system: string
  readonly setting: string
  readonly url: string
  /** Where to write a CPU profile of what follows the second start, the measured one. */
  readonly profile: string | undefined
  readonly role:
    | { readonly type: "work" }
    /** `warmup` single enqueues first, then `count` jobs, one by one from `callers` at once or `batch` at a time. */
    | {
      readonly type: "produce"
      readonly count: number
      readonly batch: number
      readonly callers: number
      readonly warmup: number
    }
}
