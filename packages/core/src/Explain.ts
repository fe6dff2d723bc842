/**
 * "Why is it not running?", for one job and for the whole store, answered by the same rules that admit jobs. One cause
 * is named: the first that the gate would meet. What was held over time is kept as intervals, found by a sweep over the
 * first jobs in the queues; a hold shorter than a sweep's pause may leave none.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { SaturationStrategy } from "./ConcurrencyLimit.ts"
import type { JobId } from "./Ids.ts"
import type { NotFound, StoreUnavailable } from "./Refusals.ts"
import type { State } from "./State.ts"

export const BlockedBy = Schema.Literals([
  "rate_class",
  "concurrency_limit",
  "fairness",
  "quarantine",
  "schedule",
  "queue_paused",
  "paused",
  "sticky_worker",
  "no_worker",
  "unknown_kind",
  "version"
])
export type BlockedBy = typeof BlockedBy.Type

/** A budget that does not reach for the job and what comes before it in its group. */
export const RateClassDetail = Schema.Struct({
  class: Schema.String,
  key: Schema.String,
  /** In the bucket now; negative while an overdraft is paid back. */
  tokens: Schema.Number,
  /** What the job costs. */
  needed: Schema.Number,
  limit: Schema.Number,
  windowMs: Schema.Number,
  burst: Schema.Number,
  /** The bucket is pushed back until then. */
  closedUntilMs: Schema.NullOr(Schema.Number),
  /** Jobs before it in its group; with `isAtLeast` there may be more. */
  ahead: Schema.Number,
  isAtLeast: Schema.Boolean
})

/** All slots are taken. `holders`: the oldest ten. */
export const ConcurrencyLimitDetail = Schema.Struct({
  limit: Schema.String,
  /** The slot: a partition or a derived key; empty for a limit of a queue or kind. */
  key: Schema.String,
  inUse: Schema.Number,
  max: Schema.Number,
  strategy: SaturationStrategy,
  holders: Schema.Array(Schema.String)
})

/** Others come first. */
export const FairnessDetail = Schema.Struct({
  /** In its own group, from 1: the jobs of one kind, partition and set of keys. With `isAtLeast` it may be further back. */
  position: Schema.Number,
  isAtLeast: Schema.Boolean,
  /** How many groups of the queue have ready work. */
  groups: Schema.Number,
  isGroupsAtLeast: Schema.Boolean,
  /** It crashed before, and each worker that could take it runs such a job already. */
  suspectWaits: Schema.Boolean
})

/** `crashes` of `limit`; of all jobs with that content, or of the job itself when `fingerprint` is null. */
export const QuarantineDetail = Schema.Struct({
  crashes: Schema.Number,
  limit: Schema.Number,
  fingerprint: Schema.NullOr(Schema.String)
})

/** `dueAtMs` null: pending, until an operator promotes it. */
export const ScheduleDetail = Schema.Struct({
  dueAtMs: Schema.NullOr(Schema.Number),
  /** Of the attempt after which it is retried; null when that left no error. */
  lastErrorTag: Schema.NullOr(Schema.String)
})

export const PausedDetail = Schema.Struct({
  switch: Schema.Literals(["queue", "kind", "rate_class", "concurrency_limit", "partition"]),
  name: Schema.String
})

/** Pinned to a worker that is gone, does not serve the job's kind or queue, or is full. */
export const StickyWorkerDetail = Schema.Struct({
  worker: Schema.String,
  isAlive: Schema.Boolean,
  serves: Schema.Boolean,
  /** At its last heartbeat; null when it is not alive. */
  running: Schema.NullOr(Schema.Number),
  capacity: Schema.NullOr(Schema.Number),
  /** From then on any worker may have it. */
  fallsBackAtMs: Schema.NullOr(Schema.Number)
})

export const NoWorkerDetail = Schema.Struct({
  queue: Schema.String,
  /** Of all queues, without those that take no work. */
  liveWorkers: Schema.Number,
  /** Live ones that serve the queue and were told to take no work, by `quiet`. */
  quietWorkers: Schema.Number,
  /** Live ones that serve the queue and are about to end. */
  drainingWorkers: Schema.Number
})
export const UnknownKindDetail = Schema.Struct({ kind: Schema.String, queue: Schema.String })
export const VersionDetail = Schema.Struct({
  kind: Schema.String,
  needed: Schema.Number,
  /** Of the live workers that serve its queue. */
  highestLive: Schema.Number
})

/** What the gate will archive it for as soon as it, or a sweep, meets the job. */
export const EndsDetail = Schema.Struct({ endsAs: Schema.Literals(["deadline", "queue_timeout"]) })

/** What holds a job, and how it stands with that. */
export const Cause = Schema.Union([
  Schema.Struct({ blockedBy: Schema.Literal("rate_class"), detail: RateClassDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("concurrency_limit"), detail: ConcurrencyLimitDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("fairness"), detail: FairnessDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("quarantine"), detail: QuarantineDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("schedule"), detail: ScheduleDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("queue_paused"), detail: PausedDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("paused"), detail: PausedDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("sticky_worker"), detail: StickyWorkerDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("no_worker"), detail: NoWorkerDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("unknown_kind"), detail: UnknownKindDetail }),
  Schema.Struct({ blockedBy: Schema.Literal("version"), detail: VersionDetail }),
  Schema.Struct({ blockedBy: Schema.Null, detail: Schema.NullOr(EndsDetail) })
])
export type Cause = typeof Cause.Type

export type AdmissionExplain = Cause & {
  readonly state: State
  /** Nothing holds it, and it is the first of its group: the next worker that has room and asks gets it in its turn. */
  readonly admissible: boolean
  /**
   * Store time until it may start, as long as nothing changes and workers have room; null where nobody can know. For a
   * rate class, what shares the bucket and comes first is counted in.
   */
  readonly estimatedAdmissionMs: number | null
  /** The answer in one sentence. */
  readonly text: string
}

/** Work that one policy holds. */
export interface HeldByPolicy {
  readonly blockedBy: Exclude<BlockedBy, "fairness" | "schedule">
  /** The class, limit, queue, kind, worker or fingerprint. */
  readonly name: string
  /** The bucket, slot or partition; empty where the policy has but one. */
  readonly key: string
  /** Waiting jobs (of a closed fingerprint: quarantined ones); with `isAtLeast` there may be more. */
  readonly waiting: number
  readonly isAtLeast: boolean
  /** For `paused`: what is switched off. */
  readonly switch: string | undefined
}

/** A time in which one policy held the job; `untilMs` undefined: it still does. */
export interface HoldInterval {
  readonly fromMs: number
  readonly untilMs: number | undefined
  readonly blockedBy: BlockedBy
  /** Which one of that sort: the class with its key, the limit, the switch, the worker... */
  readonly policy: string
}

export class Explain extends Context.Service<Explain, {
  readonly job: (id: JobId) => Effect.Effect<AdmissionExplain, NotFound | StoreUnavailable>
  /**
   * Every switch that is off, closed fingerprints, lanes that no live worker may take from, empty buckets and full slots
   * with ready work: at most 100 of each sort, found among the first groups of each queue.
   */
  readonly fleet: Effect.Effect<ReadonlyArray<HeldByPolicy>, StoreUnavailable>
  /** The newest 20, oldest first. */
  readonly holds: (id: JobId) => Effect.Effect<ReadonlyArray<HoldInterval>, NotFound | StoreUnavailable>
}>()("@headgate/core/Explain") {}
