/**
 * What telemetry hears. Plain data, made only when somebody listens; nothing to install is the no-op.
 */
import * as Context from "effect/Context"
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
  | { readonly _tag: "JobQuarantined"; readonly jobId: string; readonly kind: string; readonly crashAttempt: number }
  | { readonly _tag: "JobsExpired"; readonly jobIds: ReadonlyArray<string> }
  | { readonly _tag: "JobsEvicted"; readonly count: number }
  /** A handler was told to stop and has not, `graceMs` later. */
  | {
    readonly _tag: "HandlerStuck"
    readonly jobId: string
    readonly kind: string
    readonly reason: InterruptionReason
  }
  /** A loop of the worker met a store fault and tries again. Told once per outage. */
  | { readonly _tag: "StoreUnreachable"; readonly operation: string; readonly message: string }
  | { readonly _tag: "StoreReachable"; readonly operation: string }

export interface Telemetry {
  /** False spares the making of events. */
  readonly isListening: boolean
  readonly emit: (event: Event) => void
}

export const NoopTelemetry: Telemetry = { isListening: false, emit: () => {} }

export const Telemetry: Context.Reference<Telemetry> = Context.Reference<Telemetry>("@headgate/core/Telemetry", {
  defaultValue: () => NoopTelemetry
})
