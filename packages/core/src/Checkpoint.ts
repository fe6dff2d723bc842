/**
 * Durable progress inside one job: which steps are done, which one is under way, and where a cursor stands.
 * Written by `Checkpoints` with the lease's fence, read back with the next claim.
 */
import type { LeaseRef } from "./Ids.ts"

/** How a step was written: a plain step, a cursor loop, a transactional once, or a durable sleep. */
export type StepKind = "step" | "cursor" | "once" | "sleep"

/** A finished step. `step` is its identity: the name, or `name[key]`. `position` orders records within the job. */
export interface StepRecord {
  readonly step: string
  readonly kind: StepKind
  readonly position: number
  /** Encoded result; undefined for a step without one. */
  readonly result: Uint8Array | undefined
  /** For `sleep`: the store time at which the sleep ends. */
  readonly wakeAtMs: number | undefined
}

export interface Checkpoint {
  /** The step names declared by the build that wrote it, sorted; undefined when none were declared. */
  readonly stepSet: ReadonlyArray<string> | undefined
  /** Version of the task that wrote it: a worker of a lower version is never given this job. */
  readonly version: number
  readonly records: ReadonlyArray<StepRecord>
  /** The step whose body may have begun without being recorded. */
  readonly inProgress: string | undefined
  readonly cursor: { readonly step: string; readonly bytes: Uint8Array } | undefined
  readonly crashesByStep: Readonly<Record<string, number>>
}

/** What a claim's checkpoint tells the handler's runtime. */
export type Resume =
  | { readonly _tag: "Fresh" }
  | { readonly _tag: "Resumed"; readonly checkpoint: Checkpoint }
  | { readonly _tag: "Stale"; readonly reason: string }

/**
 * One boundary write of one attempt. All parts commit together, guarded by the lease; an accepted write extends the
 * lease by `leaseMs`.
 */
export interface StepWrite {
  readonly lease: LeaseRef
  readonly leaseMs: number
  /** The step that has just finished. */
  readonly record: StepRecord | undefined
  /** The step whose body is about to run; undefined leaves the mark as it is unless `record` names the marked step. */
  readonly mark: string | undefined
  /** New position of a cursor step. */
  readonly cursor: { readonly step: string; readonly bytes: Uint8Array } | undefined
  /** Sent with the first write of an attempt. */
  readonly open: { readonly stepSet: ReadonlyArray<string> | undefined; readonly version: number } | undefined
}
