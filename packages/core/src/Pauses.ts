/**
 * The switches of the gate. What is paused admits nothing; its jobs wait, may still be enqueued, and keep their deadlines.
 * A call of the gate that is under way may still admit; those that begin after the answer do not.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import { refuseName } from "./Kind.ts"
import { refusePartition, type UnknownPolicy } from "./Policies.ts"
import type { Invalid, StoreUnavailable } from "./Refusals.ts"

/** What can be paused. A queue, a kind or a partition needs no policy of its own to be paused. */
export type Pausable =
  | { readonly queue: string; readonly partitionKey?: undefined }
  | { readonly queue: string; readonly partitionKey: string }
  | { readonly kind: string }
  | { readonly rateClass: string }
  | { readonly limit: string }

export interface Paused {
  /** Waiting jobs under this pause whose deadline passes within the hour. */
  readonly deadlinesWithinHour: number
  /** More than 10,000 deadlines of the whole store pass within the hour, and only the first of them were looked at. */
  readonly isApproximate: boolean
}

export class Pauses extends Context.Service<Pauses, {
  /** Pausing twice is the same as once. */
  readonly pause: (what: Pausable) => Effect.Effect<Paused, Invalid | UnknownPolicy | StoreUnavailable>
  /** What is not paused stays so. Idle workers are told at once. */
  readonly resume: (what: Pausable) => Effect.Effect<void, Invalid | UnknownPolicy | StoreUnavailable>
  /** Everything that is paused; at most 1000. */
  readonly paused: Effect.Effect<ReadonlyArray<Pausable>, StoreUnavailable>
}>()("@headgate/core/Pauses") {}

export const refusePausable = (what: Pausable): Invalid | undefined => {
  if ("kind" in what) return refuseName("kind", what.kind)
  if ("rateClass" in what) return refuseName("rateClass", what.rateClass)
  if ("limit" in what) return refuseName("limit", what.limit)
  const { partitionKey, queue } = what
  return partitionKey === undefined ? refuseName("queue", queue) : refusePartition({ queue, partitionKey })
}
