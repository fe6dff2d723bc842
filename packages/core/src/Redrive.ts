/**
 * Brings dead letters back: archived jobs that a filter selects, or that are named, become available again. A redrive is
 * a stored operation with an author and a reason. A worker's duty carries it out in bounded batches, each of which goes
 * on where the last one committed, so it outlives whoever runs it and moves no job twice. What comes back is as after
 * `Control.retry` (counters anew; checkpoint and effect keys kept) and passes the gate like any other work.
 *
 * Only what was archived before the redrive began is moved: a job that fails again stays where it is then.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type { DeathReason } from "./DeathCallbacks.ts"
import type { JobId } from "./Ids.ts"
import { wholeMillis } from "./Millis.ts"
import { type IdConflict, type Invalid, type NotFound, StoreUnavailable, type WrongState } from "./Refusals.ts"

/** Archived jobs that meet every condition given; at least one must be. */
export interface RedriveFilter {
  readonly kind?: string | undefined
  readonly queue?: string | undefined
  readonly partitionKey?: string | undefined
  /** Why they were archived. */
  readonly reason?: DeathReason | undefined
  /** The tag of the error of their latest attempt, as `Inspect.failure` tells it. */
  readonly errorTag?: string | undefined
  /** One of their tags. */
  readonly tag?: string | undefined
  /** Archived at that time or later, in epoch milliseconds. */
  readonly archivedFromMs?: number | undefined
  /** Archived before that time, in epoch milliseconds. */
  readonly archivedBeforeMs?: number | undefined
  /**
   * Archived so long ago at most, 1 ms to 100 years, counted back on the store's clock from the preview or the start; in
   * place of `archivedFromMs`. A stored redrive tells it in milliseconds before its `createdAtMs`.
   */
  readonly archivedWithin?: Duration.Input | undefined
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
  /**
   * 1 to 128 bytes. Default: a new one. A redrive of the same filter or ids that is known by it already is answered, and
   * nothing is started; one of others is `IdConflict`.
   */
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

/** How a redrive is carried out, with the defaults for what was left out. */
export interface RedriveSettings {
  readonly staged: boolean
  readonly maxFailureRatio: number
  readonly stageWaitMs: number
  readonly batch: number
  readonly perSecond: number
  readonly deadline: RedriveDeadline
}

export type RedriveRequest = RedriveSelection & Signature & RedriveOptions

/** `paused`: it stopped by itself, and waits for `resume` or `cancel`. */
export type RedriveState = "running" | "paused" | "cancelled" | "done"

/** `failures`: too large a share of a stage failed. `unanswered`: no job of a stage came to an end in time. */
export type RedrivePause = "failures" | "unanswered"

/**
 * What a running redrive waits for. `duty`: no worker has the duty that carries redrives out, as none that does duties is
 * alive; nothing moves until one is. `stage`: a stage is full, and its jobs have not ended.
 */
export type RedriveWait = "duty" | "stage"

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

export interface Redriving extends Signature, RedriveSettings {
  readonly id: string
  readonly state: RedriveState
  readonly pausedFor: RedrivePause | undefined
  /** Undefined when it does not run, or is at work. */
  readonly waitingFor: RedriveWait | undefined
  /** Undefined when the jobs were named. */
  readonly filter: RedriveFilter | undefined
  /** How many jobs were named; undefined with a filter. */
  readonly named: number | undefined
  readonly createdAtMs: number
  readonly startedAtMs: number | undefined
  readonly endedAtMs: number | undefined
  readonly moved: number
  readonly skipped: RedriveSkipped
  /**
   * Of the jobs of a staged redrive, how many were seen to end; and how many of those, or of the late ones, failed.
   * Undefined when it is not staged: then nobody looks at what becomes of them.
   */
  readonly ended: number | undefined
  readonly failed: number | undefined
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
  /** What they died of: the 100 largest groups of the jobs that were counted, the largest first. */
  readonly groups: ReadonlyArray<RedriveGroup>
}

export interface RedriveGroup {
  readonly kind: string
  readonly reason: DeathReason
  /** Of the error of their latest attempt; undefined when that left none. */
  readonly errorTag: string | undefined
  readonly jobs: number
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
  readonly start: (request: RedriveRequest) => Effect.Effect<Redriving, Invalid | IdConflict | StoreUnavailable>
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
}>()("@headgate/core/Redrive") {
  /**
   * Looks at it until it no longer runs: it is `done`, `cancelled`, or `paused` and waits for somebody. An outage of the
   * store is waited out, and so is a missing worker: bound it with `Effect.timeout`.
   */
  static await(
    id: string,
    options: RedriveAwaitOptions = {}
  ): Effect.Effect<RedriveDetail, NotFound | Invalid | StoreUnavailable, Redrive> {
    return Effect.gen(function*() {
      const redrive = yield* Redrive
      const pause = yield* Effect.fromResult(wholeMillis("pollInterval", options.pollInterval ?? 1000, 10))
      const again = Schedule.spaced(pause)
      const look = Effect.retry(redrive.get(id), {
        schedule: again,
        while: (error) => error instanceof StoreUnavailable
      })
      return yield* Effect.repeat(look, { schedule: again, until: ({ state }) => state !== "running" })
    })
  }
}

export interface RedriveAwaitOptions {
  /** Time between two looks, at least 10 ms. Default 1 s. */
  readonly pollInterval?: Duration.Input | undefined
}
