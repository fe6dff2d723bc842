/**
 * Keeps a worker's leases alive while its event loop is busy, and says which were lost. A store that can renew from
 * another thread does; the worker only tracks what it holds.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import type { LeaseRef, WorkerId } from "./Ids.ts"
import type { LostLease } from "./Leases.ts"
import type { StoreUnavailable } from "./Refusals.ts"
import type { WorkerOrders, WorkerStanding } from "./WorkerControl.ts"

export interface HeartbeatOptions {
  readonly worker: WorkerId
  readonly queues: ReadonlyArray<string>
  readonly kinds: ReadonlyArray<{ readonly kind: string; readonly version: number }>
  /** Handlers at a time, as operators see it. */
  readonly capacity: number
  /** Most leases held at a time, buffered claims and unsettled ones among them. Default: `capacity`. */
  readonly maxLeases?: number | undefined
  readonly leaseMs: number
  /** Renewal stops once the event loop has been blocked this long, so that a wedged process loses its work. */
  readonly maxBlockedMs: number
  /**
   * A process whose worker was told to terminate, and whose event loop is blocked still so much later, is killed. Left
   * out, it never is: it is no process of the worker's own, or the store can do nothing about a blocked one.
   */
  readonly killAfterMs?: number | undefined
}

/** Times are the process's monotonic clock, in milliseconds (`monotonicMs`). */
export interface HeartbeatSession {
  /** Starts renewing. `sentAt` is when the claiming call was sent: the lease counts from no later than that. */
  readonly track: (lease: LeaseRef, sentAt: number) => TrackedLease
  /** Leases that the store reported lost. A lease that only ran out locally shows in `validUntil` alone. */
  readonly lost: Queue.Dequeue<LostLease>
  /** Each change of whether the store accepts the beats: undefined when it does, else why not. Absent: it cannot tell. */
  readonly beats?: Queue.Dequeue<StoreUnavailable | undefined> | undefined
  /** What operators tell this worker, each time it has changed. Absent: they cannot. */
  readonly orders?: Queue.Dequeue<WorkerOrders> | undefined
  /** What the next beats say of the worker. */
  readonly stand?: ((standing: WorkerStanding) => void) | undefined
}

export interface TrackedLease {
  /** Until when this process may believe it owns the job: one lease after its last accepted renewal was sent. */
  readonly validUntil: () => number
  /** An accepted write sent at `sentAt` extended the lease: by one lease, or by `ms`. Never shortens it. */
  readonly extended: (sentAt: number, ms?: number) => void
  /** Stops renewing. */
  readonly end: () => void
}

export class Heartbeat extends Context.Service<Heartbeat, {
  /** Registers the worker and renews its leases until the scope closes; closing removes it from the registry. */
  readonly start: (options: HeartbeatOptions) => Effect.Effect<HeartbeatSession, StoreUnavailable, Scope.Scope>
}>()("@headgate/core/Heartbeat") {}

/** Milliseconds on this thread's monotonic clock: no wall-clock change touches it. */
export const monotonicMs = (): number => performance.now()
