/**
 * What a worker knows of an attempt that does not come to its end. Telemetry hears it as `JobStuck`, and the worker's
 * `onStuck` is called with it.
 */
import type { JobId, WorkerId } from "./Ids.ts"
import type { InterruptionReason } from "./Leases.ts"

/**
 * Why a handler should have stopped: it was interrupted for this reason, it ended its own attempt (`ended`: a snooze, a
 * completion), or it has answered and what it registered with its scope does not end (`finalizers`).
 */
export type StuckReason = InterruptionReason | "ended" | "finalizers"

export interface StuckEvidence {
  /**
   * `stalled`: it made no progress for the task's `stallTimeout`, and is interrupted now. `not_stopping`: it was told to
   * stop, and has not within the worker's `handlerGrace`. Its attempt then ends without it and its slot stays taken,
   * except in a shutdown that it is deaf to: there the job stays its own until the process ends.
   */
  readonly stage: "stalled" | "not_stopping"
  readonly reason: StuckReason
  readonly jobId: JobId
  readonly kind: string
  readonly queue: string
  readonly worker: WorkerId
  /** Failures before this attempt. */
  readonly attempt: number
  readonly fence: number
  /** Since its handler started. */
  readonly runningForMs: number
  /** Without progress where it is stalled, else since it was told to stop or has answered. */
  readonly stuckForMs: number
  /** The steps whose bodies run. */
  readonly steps: ReadonlyArray<string>
  /** The handler's fiber, or that of its scope's finalizers, then those it forked as its children: ten at most. */
  readonly fibers: ReadonlyArray<FiberEvidence>
  /**
   * How late the worker's own timer was at worst in the last ten seconds. It fires once a second at least: what blocked
   * the event loop for longer shows, less a second at most.
   */
  readonly loopLagMs: number
  /** Slots of the worker that are taken by handlers which do not stop, this one among them, of how many. */
  readonly zombies: number
  readonly concurrency: number
}

export interface FiberEvidence {
  readonly id: number
  /** A suspended fiber waits for something, if only for its next turn. */
  readonly status: "running" | "suspended"
  /** False inside an uninterruptible region, a finalizer among them. */
  readonly isInterruptible: boolean
  /** The span it is in. */
  readonly span: string | undefined
  /** The `Effect.fn` calls it is in, innermost first, each with where it was called if known: ten at most. */
  readonly stack: ReadonlyArray<string>
}
