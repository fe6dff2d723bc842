/**
 * Fence-verified writes of durable progress. Called by the worker's step runtime; fulfilled by a store.
 * Writes of concurrent jobs are given as one batch and share a commit.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { StepWrite } from "./Checkpoint.ts"
import type { LeaseRef } from "./Ids.ts"
import type { LeaseRejected, StoreUnavailable } from "./Refusals.ts"
import type { State } from "./State.ts"

export interface SleepWrite {
  readonly lease: LeaseRef
  readonly step: string
  readonly position: number
  /** A first sleep counts from the store's now; a resumed one keeps the recorded wake time. */
  readonly until: { readonly delayMs: number } | { readonly wakeAtMs: number }
  readonly open: StepWrite["open"]
}

export interface Remap {
  readonly lease: LeaseRef
  readonly stepSet: ReadonlyArray<string>
  readonly version: number
  /** Replaces all records, mark and cursor names of the job. */
  readonly steps: ReadonlyArray<{ readonly from: string; readonly to: ReadonlyArray<string> }>
}

export class Checkpoints extends Context.Service<Checkpoints, {
  /**
   * One answer per write, in order: false means the lease is no longer current and nothing of that write was stored.
   * A batch should hold at most one write of a job; more are applied in their order, one statement each.
   */
  readonly write: (batch: ReadonlyArray<StepWrite>) => Effect.Effect<ReadonlyArray<boolean>, StoreUnavailable>
  /**
   * Stores the wake time and snoozes the job until then, in one statement; the lease ends with it. Answers what the job
   * is now: `scheduled`, or `archived` when it would wake at its deadline or later.
   */
  readonly sleep: (write: SleepWrite) => Effect.Effect<State, LeaseRejected | StoreUnavailable>
  /**
   * Rewrites the stored step names to a new step set, before the handler runs. Repeated, it changes nothing: a job that
   * has the step set already keeps its records.
   */
  readonly remap: (remap: Remap) => Effect.Effect<void, LeaseRejected | StoreUnavailable>
}>()("@headgate/core/Checkpoints") {}
