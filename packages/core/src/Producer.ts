/**
 * The door for new jobs. Called by user code (through `Task.enqueue`), by schedules and by the API; fulfilled by a
 * store. Runs on the application's own client: inside an open transaction it joins it.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { Envelope } from "./Envelope.ts"
import type { JobId } from "./Ids.ts"
import type {
  Backpressure,
  Duplicate,
  ForeignTransaction,
  IdConflict,
  Invalid,
  Quarantined,
  StoreUnavailable
} from "./Refusals.ts"
import type { State } from "./State.ts"

export interface Enqueued {
  readonly id: JobId
  /** The job's state now; for `existing` the state of the job that was already there. */
  readonly state: State
  /** `existing`: a job with this id and the same content was there already. */
  readonly status: "created" | "existing"
}

export type EnqueueRefusal =
  | Invalid
  | IdConflict
  | Duplicate
  | Quarantined
  | Backpressure
  | ForeignTransaction
  | StoreUnavailable

export class Producer extends Context.Service<Producer, {
  /**
   * Stores 1 to 10,000 jobs, all or none. One answer per envelope, in order. Enqueues into one queue with a limit of
   * unfinished jobs wait for one another, inside an open transaction to its end: keep such transactions short. A limit
   * is exact under READ COMMITTED, so it refuses jobs of a transaction at a higher isolation level as `Invalid`.
   */
  readonly enqueue: (
    batch: ReadonlyArray<Envelope>
  ) => Effect.Effect<ReadonlyArray<Enqueued>, EnqueueRefusal>
}>()("@headgate/core/Producer") {}
