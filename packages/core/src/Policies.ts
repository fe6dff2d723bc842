/**
 * The policies that the gate reads, changed while it is at work. Two may write them: code, whose definitions are applied
 * at every start, and an operator. What an operator set stays until the definition in the code changes; then the code is
 * obeyed once more. A policy that code no longer defines stays until an operator removes it.
 *
 * Each edit is exact: a call of the gate that decides under the policy sees it wholly before the edit or wholly after.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type { ConcurrencyLimit, ConcurrencyLimitConfig, LimitScope, SaturationStrategy } from "./ConcurrencyLimit.ts"
import { MAX_PARTITION_KEY_BYTES, refuseText } from "./EnqueueGuard.ts"
import { refuseName } from "./Kind.ts"
import { refuseInteger } from "./Millis.ts"
import { MAX_QUANTUM, type Queue, type QueueConfig } from "./Queue.ts"
import type { RateClass, RateClassConfig } from "./RateClass.ts"
import { Invalid, type StoreUnavailable } from "./Refusals.ts"

/** A policy defined in code, of whatever payload. */
export type PolicyDefinition = RateClass<never> | ConcurrencyLimit<never> | Queue

/** There is no such policy; nothing changed. */
export class UnknownPolicy extends Schema.TaggedError<UnknownPolicy>()("UnknownPolicy", {
  policy: Schema.Literals(["rate_class", "concurrency_limit", "partition"]),
  name: Schema.String
}) {
  override get message(): string {
    return `there is no ${this.policy} ${this.name}`
  }
}

/** A class that is not there is made. What is left out stays as it is; a new class has the limit as its burst. */
export interface RateClassChange {
  readonly name: string
  readonly limit: number
  readonly windowMs: number
  readonly burst?: number | undefined
  readonly paused?: boolean | undefined
}

/** The whole limit anew; `onSaturated` is `queue` where it is left out, and `paused` stays as it is. */
export interface ConcurrencyLimitChange {
  readonly name: string
  readonly scope: LimitScope
  /** The queue or the kind; empty for scope `key`. */
  readonly subject: string
  readonly max: number
  readonly onSaturated?: SaturationStrategy | undefined
  readonly paused?: boolean | undefined
}

/** What is left out stays as it is, or has the default where there was none. Null clears. */
export interface QueueChange {
  readonly name: string
  readonly weight?: number | undefined
  readonly strict?: boolean | undefined
  readonly quantum?: number | null | undefined
  readonly paused?: boolean | undefined
  readonly maxUnfinishedJobs?: number | null | undefined
}

/** What is left out stays as it is. Null gives the partition the quantum of its queue. */
export interface PartitionChange {
  readonly queue: string
  readonly partitionKey: string
  readonly quantum?: number | null | undefined
  readonly paused?: boolean | undefined
}

export interface RateClassState extends RateClassConfig {
  /** In the bucket of the empty key, now; below zero while it owes. */
  readonly tokens: number
  /** Buckets of other keys in use: what is full again is forgotten in time. At most 10,000 are counted. */
  readonly keyedBuckets: number
  /** Until when the bucket of the empty key admits nothing, since a job was told to come back later. */
  readonly closedUntilMs: number | undefined
}

export interface ConcurrencyLimitState extends ConcurrencyLimitConfig {
  /** The 100 fullest, the fullest first: by partition or key, or the empty key alone. At most 20,000 jobs are counted. */
  readonly slots: ReadonlyArray<{ readonly key: string; readonly running: number }>
}

/** A partition that has a policy of its own, ready work, or jobs that run. */
export interface PartitionState {
  readonly queue: string
  readonly partitionKey: string
  /** Its own; undefined: the queue's, or by what each partition has in flight. */
  readonly quantum: number | undefined
  readonly paused: boolean
  /** Ready jobs; with `isAtLeast` (from 1000 on) there may be more. */
  readonly waiting: number
  readonly isAtLeast: boolean
  /** Jobs that run; of the whole queue at most 20,000 are counted. */
  readonly inFlight: number
  /** Jobs it may still give in a turn that was cut short, before others have theirs. */
  readonly deficit: number
  /** At least 2 jobs in flight, and more than twice the mean of the others that run jobs or are on this page. */
  readonly noisy: boolean
}

/** Numbers that hold for the whole store. */
export interface FleetSettings {
  /** Crashes of jobs with one fingerprint before it is closed: 1 to 1000. Default 3. */
  readonly strikeLimit: number
}

export interface PolicyPage {
  /** The name (of a partition: the key) after which the page begins. */
  readonly after?: string | undefined
  /** 1 to 200. Default 50. */
  readonly limit?: number | undefined
}

export interface PartitionPage extends PolicyPage {
  readonly queue: string
}

export interface PolicyList<A> {
  readonly items: ReadonlyArray<A>
  /** `after` of the next page; undefined on the last one. */
  readonly next: string | undefined
}

export class Policies extends Context.Service<Policies, {
  /**
   * Writes the definitions that differ from what code defined last, and answers their names. Code decides about `paused`
   * only when it changes that: a pause by an operator outlasts every start. While two versions of a program take turns
   * at starting, the one that started last is obeyed.
   */
  readonly apply: (
    definitions: Iterable<PolicyDefinition>
  ) => Effect.Effect<ReadonlyArray<string>, Invalid | StoreUnavailable>

  /**
   * Tokens saved up to now are earned at the old rate. Under another window buckets keep their tokens, and no bucket
   * keeps more than the new burst; a bucket never used is a full one.
   */
  readonly setRateClass: (change: RateClassChange) => Effect.Effect<void, Invalid | StoreUnavailable>
  /** Its jobs are no longer limited by it, and its buckets are gone. Code that still defines it makes it anew at start. */
  readonly removeRateClass: (name: string) => Effect.Effect<void, UnknownPolicy | StoreUnavailable>
  readonly rateClasses: (page?: PolicyPage) => Effect.Effect<PolicyList<RateClassState>, Invalid | StoreUnavailable>

  /** A lower maximum cancels nobody: a slot above it empties by itself. */
  readonly setLimit: (change: ConcurrencyLimitChange) => Effect.Effect<void, Invalid | StoreUnavailable>
  /** Its jobs are no longer limited by it. Code that still defines it makes it anew at start. */
  readonly removeLimit: (name: string) => Effect.Effect<void, UnknownPolicy | StoreUnavailable>
  readonly limits: (page?: PolicyPage) => Effect.Effect<PolicyList<ConcurrencyLimitState>, Invalid | StoreUnavailable>

  /** A queue that lags behind its share lags by as many jobs under the new weight. */
  readonly setQueue: (change: QueueChange) => Effect.Effect<void, Invalid | StoreUnavailable>
  /** The queues that have a policy of their own. */
  readonly queues: (page?: PolicyPage) => Effect.Effect<PolicyList<QueueConfig>, Invalid | StoreUnavailable>

  readonly setPartition: (change: PartitionChange) => Effect.Effect<void, Invalid | StoreUnavailable>
  /** The partition is again one like the others of its queue. */
  readonly removePartition: (
    partition: { readonly queue: string; readonly partitionKey: string }
  ) => Effect.Effect<void, UnknownPolicy | StoreUnavailable>

  /** By key. */
  readonly partitions: (page: PartitionPage) => Effect.Effect<PolicyList<PartitionState>, Invalid | StoreUnavailable>

  readonly setSetting: (name: keyof FleetSettings, value: number) => Effect.Effect<void, Invalid | StoreUnavailable>
  readonly settings: Effect.Effect<FleetSettings, StoreUnavailable>
}>()("@headgate/core/Policies") {
  /** Applies the definitions when it is built, for programs that run no worker. */
  static layer(
    ...definitions: ReadonlyArray<PolicyDefinition>
  ): Layer.Layer<never, Invalid | StoreUnavailable, Policies> {
    return Layer.effectDiscard(this.use((policies) => policies.apply(definitions)))
  }
}

/** The definitions without repetition, or the refusal of two that share a name and differ. */
export const distinctDefinitions = (
  definitions: Iterable<PolicyDefinition>,
  declared: (definition: PolicyDefinition) => string
): ReadonlyArray<PolicyDefinition> | Invalid => {
  const found = new Map<string, PolicyDefinition>()
  for (const definition of definitions) {
    const { _tag, name } = definition
    const other = found.get(`${_tag} ${name}`)
    if (other !== undefined && declared(other) !== declared(definition)) {
      return new Invalid({ field: "policies", message: `the ${_tag} ${name} is defined twice, in different ways` })
    }
    found.set(`${_tag} ${name}`, definition)
  }
  return [...found.values()]
}

export const refusePartition = (
  { partitionKey, quantum, queue }: Pick<PartitionChange, "queue" | "partitionKey" | "quantum">
): Invalid | undefined =>
  refuseName("queue", queue) ??
    refuseText("partitionKey", partitionKey, 0, MAX_PARTITION_KEY_BYTES) ??
    (typeof quantum === "number" ? refuseInteger("quantum", quantum, 1, MAX_QUANTUM) : undefined)

export const MAX_STRIKE_LIMIT = 1000

export const refuseSetting = (name: keyof FleetSettings, value: number): Invalid | undefined =>
  name === "strikeLimit"
    ? refuseInteger(name, value, 1, MAX_STRIKE_LIMIT)
    : new Invalid({ field: "name", message: `there is no setting ${String(name)}` })

const MAX_PAGE = 200

export const refusePage = ({ limit = 1 }: PolicyPage): Invalid | undefined => refuseInteger("limit", limit, 1, MAX_PAGE)
