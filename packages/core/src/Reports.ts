/**
 * What a running attempt says about itself while it runs: progress and tracked work for operators, and a latest output.
 * All are fence-verified, and refuse a writer that no longer owns the job.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { LeaseRef } from "./Ids.ts"
import type { ProgressUpdate } from "./Progress.ts"
import type { LeaseRejected, StoreUnavailable } from "./Refusals.ts"
import type { TrackedReport } from "./TrackedWork.ts"

export class ProgressStore extends Context.Service<ProgressStore, {
  /** The latest update replaces the one before. The caller has validated it. */
  readonly report: (lease: LeaseRef, update: ProgressUpdate) => Effect.Effect<void, LeaseRejected | StoreUnavailable>
  /** As above, of the work that the attempt tracks. */
  readonly track: (lease: LeaseRef, tracked: TrackedReport) => Effect.Effect<void, LeaseRejected | StoreUnavailable>
}>()("@headgate/core/ProgressStore") {}

export class OutputStore extends Context.Service<OutputStore, {
  /** The latest output replaces the one before. */
  readonly put: (
    lease: LeaseRef,
    output: { readonly version: number; readonly bytes: Uint8Array }
  ) => Effect.Effect<void, LeaseRejected | StoreUnavailable>
}>()("@headgate/core/OutputStore") {}
