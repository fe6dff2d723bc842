/**
 * What telemetry hears. Plain data, made only when somebody listens; nothing to install is the no-op.
 */
import * as Context from "effect/Context"
import type { RedriveStep } from "./Duties.ts"
import type { EndedAtGate } from "./Gate.ts"
import type { InterruptionReason } from "./Leases.ts"
import type { OutcomeName } from "./Outcome.ts"
import type { State } from "./State.ts"
import type { StuckEvidence } from "./Stuck.ts"
import type { WorkerCommand } from "./WorkerControl.ts"

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
  /** A death handler failed as often as it may for this death: it is kept as failed until an operator retries it. */
  | {
    readonly _tag: "DeathHandlerGaveUp"
    readonly key: string
    readonly jobId: string
    readonly kind: string
    readonly error: string
  }
  /** A step of a redrive brought archived jobs back, or the redrive ended or paused by itself. */
  | ({ readonly _tag: "JobsRedriven" } & RedriveStep)
  | ({ readonly _tag: "JobStuck" } & StuckEvidence)
  /** An operator told this worker, by `WorkerControl`, and it has taken it up. */
  | {
    readonly _tag: "WorkerTold"
    readonly worker: string
    readonly command: WorkerCommand
    readonly actor: string | undefined
  }
  /** The worker's process stayed above its `memoryLimit`: the worker drains and ends. */
  | { readonly _tag: "MemoryLimitReached"; readonly worker: string; readonly bytes: number; readonly limit: number }
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
