/**
 * The admission decision: given the fleet's policy now and a worker's free capacity, what may it run? Evaluated inside
 * the store, in the statement that claims the work and writes its lease. Called by the worker; fulfilled by a store.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { AdmitRequest, Claim } from "./Claim.ts"
import type { JobId } from "./Ids.ts"
import type { StoreUnavailable } from "./Refusals.ts"

export interface Admission {
  /** In the order they should start. All are owned by the caller from now on. */
  readonly claims: ReadonlyArray<Claim>
  /** Jobs that this call ended instead of admitting them. The caller tells it, as the sweep tells what it ends. */
  readonly ended: ReadonlyArray<EndedAtGate>
  /** The gate stopped at a work budget, not for want of work: ask again at once. */
  readonly more: boolean
}

/**
 * `deadline`, `queue_timeout` (too late), `fingerprint` (quarantined), `discarded`, `cancelled_incoming` (its limit was
 * full), or `superseded`: it ran, and a newer job took its place.
 */
export interface EndedAtGate {
  readonly jobId: JobId
  readonly reason: "deadline" | "queue_timeout" | "fingerprint" | "discarded" | "cancelled_incoming" | "superseded"
}

export class Gate extends Context.Service<Gate, {
  /** Claims at most `capacity` admissible jobs. A refused job is never locked. Fails only when the store is out of reach. */
  readonly admit: (request: AdmitRequest) => Effect.Effect<Admission, StoreUnavailable>
  /** Hands back, uncharged, whatever a call with this lease id claimed: for calls whose answer was lost. */
  readonly abandon: (leaseId: AdmitRequest["leaseId"]) => Effect.Effect<number, StoreUnavailable>
}>()("@headgate/core/Gate") {}
