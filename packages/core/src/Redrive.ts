/**
 * Brings dead letters back: archived jobs that a filter selects, or that are named, become available again. A redrive is
 * a stored operation with an author and a reason. A worker's duty carries it out in bounded batches, each of which goes
 * on where the last one committed, so it outlives whoever runs it and moves no job twice. What comes back is as after
 * `Control.retry` (counters anew; checkpoint and effect keys kept) and passes the gate like any other work.
 *
 * Only what was archived before the redrive began is moved: a job that fails again stays where it is then.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { JobId } from "./Ids.ts"
import type { Invalid, NotFound, StoreUnavailable, WrongState } from "./Refusals.ts"
import type { TerminalReason } from "./State.ts"

/** Archived jobs that meet every condition given; at least one must be. */
export interface RedriveFilter {
  readonly kind?: string | undefined
  readonly queue?: string | undefined
  readonly partitionKey?: string | undefined
  /** Why they were archived: `exhausted`, `fatal`, `skipped`, `deadline`, `queue_timeout`, `discarded`. */
  readonly reason?: TerminalReason | undefined
  /** The tag of the error of their latest attempt, as `Inspect.failure` tells it. */
  readonly errorTag?: string | undefined
  /** One of their tags. */
  readonly tag?: string | undefined
  /** Archived at that time or later, in epoch milliseconds. */
  readonly archivedFromMs?: number | undefined
  /** Archived before that time, in epoch milliseconds. */
  readonly archivedBeforeMs?: number | undefined
}

/** By condition, or 1 to 10,000 jobs by id, in that order. */
export type RedriveSelection =
  | { readonly filter: RedriveFilter; readonly ids?: undefined }
  | { readonly ids: ReadonlyArray<JobId>; readonly filter?: undefined }

/** Who does it and why: 1 to 256 and 1 to 2000 bytes. */
export interface Signature {
  readonly actor: string
  readonly note: string
}

/**
 * `keep`: the stored one, and a job whose deadline has passed is skipped. `clear`: none. `afterMs`: that long after the
 * job came back, 1 ms to 100 years.
 */
export type RedriveDeadline = "keep" | "clear" | { readonly afterMs: number }

export interface RedriveOptions {
  /** 1 to 128 bytes; a redrive that is known by it already is answered, and nothing is started. Default: a new one. */
  readonly id?: string | undefined
  /** In stages of 1, 10, 100, 1000, then always 10,000 jobs, each judged before the next begins. Default true. */
  readonly staged?: boolean | undefined
  /** A staged redrive pauses when more than this share of a stage failed, 0 to 1. Default 0.5. */
  readonly maxFailureRatio?: number | undefined
  /** Longest wait for the jobs of a stage to end, 1 s to 7 days. Default 5 minutes. */
  readonly stageWaitMs?: number | undefined
  /** Most jobs a batch, which is one statement: 1 to 1000. Default 100. */
  readonly batch?: number | undefined
  /** Most jobs a second, over the batches: 1 to 10,000. Default 1000. */
  readonly perSecond?: number | undefined
  /** Default `keep`. */
  readonly deadline?: RedriveDeadline | undefined
}

export type RedriveRequest = RedriveSelection & Signature & RedriveOptions

/** `paused`: it stopped by itself, and waits for `resume` or `cancel`. */
export type RedriveState = "running" | "paused" | "cancelled" | "done"

/** `failures`: too large a share of a stage failed. `unanswered`: no job of a stage came to an end in time. */
export type RedrivePause = "failures" | "unanswered"

/** Jobs that were selected and stay archived, or were gone. */
export interface RedriveSkipped {
  /** Another job holds their unique key. */
  readonly keyTaken: number
  readonly deadlinePassed: number
  /** Their content crashes workers: see `Quarantine.release`. */
  readonly fingerprintClosed: number
  /** No longer archived, archived again since the redrive began, or no such job. */
  readonly notArchived: number
  /** Another transaction was at them at that moment. */
  readonly held: number
}

/**
 * A stage and what is known of its jobs. Failed are those that are archived, quarantined or undecodable again, and those
 * that have failed an attempt and are unfinished when the wait ends.
 */
export interface RedriveStage {
  readonly size: number
  readonly moved: number
  readonly ended: number
  readonly failed: number
}

export interface Redriving extends Signature {
  readonly id: string
  readonly state: RedriveState
  readonly pausedFor: RedrivePause | undefined
  /** Undefined when the jobs were named. */
  readonly filter: RedriveFilter | undefined
  /** How many jobs were named; undefined with a filter. */
  readonly named: number | undefined
  readonly staged: boolean
  readonly maxFailureRatio: number
  readonly stageWaitMs: number
  readonly batch: number
  readonly perSecond: number
  readonly deadline: RedriveDeadline
  readonly createdAtMs: number
  readonly startedAtMs: number | undefined
  readonly endedAtMs: number | undefined
  readonly moved: number
  readonly skipped: RedriveSkipped
  /** Of the jobs of a staged redrive, how many were seen to end; and how many of those, or of the late ones, failed. */
  readonly ended: number
  readonly failed: number
  /** The stage under way; undefined when it is not staged. */
  readonly stage: RedriveStage | undefined
}

/** One line of the log, which is only ever appended to. `actor` is undefined for what it did by itself. */
export interface RedriveEvent {
  readonly atMs: number
  readonly event: "created" | "stage" | "paused" | "resumed" | "cancelled" | "done"
  readonly actor: string | undefined
  readonly note: string
}

export interface RedriveDetail extends Redriving {
  /** Oldest first; the newest 200. */
  readonly events: ReadonlyArray<RedriveEvent>
}

export type RedriveResult = "moved" | "waiting" | keyof RedriveSkipped

export interface RedrivenJob {
  readonly jobId: JobId
  /** `waiting`: named, and not yet looked at. */
  readonly result: RedriveResult
}

export interface RedrivePreview {
  /** At most 10,000 are counted. */
  readonly matching: number
  /** More may match: counting stopped there, or after 100,000 archived jobs that were looked at. */
  readonly approximate: boolean
  /** The first 20, in the order in which they would be moved: by the time they were archived. */
  readonly sample: ReadonlyArray<JobId>
}

export interface RedrivePage {
  /** `next` of the page before. */
  readonly after?: number | undefined
  /** 1 to 200. Default 50. */
  readonly limit?: number | undefined
}

export interface RedriveList<A> {
  readonly items: ReadonlyArray<A>
  /** `after` of the next page; undefined on the last one. */
  readonly next: number | undefined
}

type Refusal = NotFound | WrongState | Invalid | StoreUnavailable

export class Redrive extends Context.Service<Redrive, {
  /** What a redrive would find now. Changes nothing. */
  readonly preview: (selection: RedriveSelection) => Effect.Effect<RedrivePreview, Invalid | StoreUnavailable>
  /** Answers when it is stored; a worker's duty begins within about a second. */
  readonly start: (request: RedriveRequest) => Effect.Effect<Redriving, Invalid | StoreUnavailable>
  readonly get: (id: string) => Effect.Effect<RedriveDetail, NotFound | StoreUnavailable>
  /** The newest first. Kept for 90 days after their end. */
  readonly list: (
    page?: RedrivePage & { readonly state?: RedriveState | undefined }
  ) => Effect.Effect<RedriveList<Redriving>, Invalid | StoreUnavailable>
  /** What became of each job it came to, in that order. */
  readonly jobs: (
    id: string,
    page?: RedrivePage
  ) => Effect.Effect<RedriveList<RedrivenJob>, NotFound | Invalid | StoreUnavailable>
  /** No further job is moved once it answers; what was moved stays so. Cancelling again changes nothing. */
  readonly cancel: (id: string, by: Signature) => Effect.Effect<Redriving, Refusal>
  /** Lets a paused one go on where it stopped, staged from one job on again. */
  readonly resume: (id: string, by: Signature) => Effect.Effect<Redriving, Refusal>
}>()("@headgate/core/Redrive") {}
