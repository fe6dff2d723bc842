/**
 * What telemetry hears. Plain data, made only when somebody listens; nothing to install is the no-op.
 */
import * as Context from "effect/Context"
import type { EndedAtGate } from "./Gate.ts"
import type { InterruptionReason } from "./Leases.ts"
import type { OutcomeName } from "./Outcome.ts"
import type { State } from "./State.ts"

export type Event =
  | {
    readonly _tag: "JobStarted"
    readonly jobId: string
    readonly kind: string
    readonly queue: string
    readonly fence: number
  }
  | {
    readonly _tag: "JobEnded"
    readonly jobId: string
    readonly kind: string
    readonly queue: string
    readonly fence: number
    readonly outcome: OutcomeName
    readonly state: State | "deleted"
    readonly durationMs: number
  }
  /** The attempt stopped owning its job before it could settle. */
  | { readonly _tag: "LeaseLost"; readonly jobId: string; readonly kind: string; readonly reason: InterruptionReason }
  | {
    readonly _tag: "JobReclaimed"
    readonly jobId: string
    readonly kind: string
    readonly worker: string
    readonly state: State
  }
  | {
    readonly _tag: "JobQuarantined"
    readonly jobId: string
    readonly kind: string
    readonly crashAttempt: number
    /** By its own crashes, or because its fingerprint is closed. */
    readonly reason: "crash_limit" | "fingerprint"
  }
  /** Jobs of this content crashed too often: none starts any more before an operator releases the fingerprint. */
  | {
    readonly _tag: "FingerprintClosed"
    readonly fingerprint: string
    readonly kind: string
    readonly jobId: string
  }
  | { readonly _tag: "JobsExpired"; readonly jobIds: ReadonlyArray<string> }
  /** The gate ended them instead of admitting them, or for a newer one; `fingerprint` also by the sweep. */
  | { readonly _tag: "JobsTurnedAway"; readonly jobs: ReadonlyArray<EndedAtGate> }
  | { readonly _tag: "JobsEvicted"; readonly count: number }
  /** A handler has not stopped within the worker's `handlerGrace`: its attempt is settled without it, its slot stays taken. */
  | { readonly _tag: "HandlerStuck"; readonly jobId: string; readonly kind: string; readonly reason: StuckReason }
  /** A loop of the worker met a store fault and tries again. Told once per outage. */
  | { readonly _tag: "StoreUnreachable"; readonly operation: string; readonly message: string }
  | { readonly _tag: "StoreReachable"; readonly operation: string }

/**
 * Why a handler should have stopped: it was interrupted for this reason, it ended its own attempt (`ended`: a snooze, a
 * completion), or it has answered and what it registered with its scope does not end (`finalizers`).
 */
export type StuckReason = InterruptionReason | "ended" | "finalizers"

export interface Telemetry {
  /** False spares the making of events. */
  readonly isListening: boolean
  readonly emit: (event: Event) => void
}

export const NoopTelemetry: Telemetry = { isListening: false, emit: () => {} }

export const Telemetry: Context.Reference<Telemetry> = Context.Reference<Telemetry>("@headgate/core/Telemetry", {
  defaultValue: () => NoopTelemetry
})
