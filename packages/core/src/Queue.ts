/**
 * A queue with its policies: its share beside other queues, the turn of its partitions, its bound. A queue needs no
 * definition to be used; without one it has the defaults. A value, applied when a worker starts; what an operator sets
 * later wins until the code changes.
 */
import { refuseName } from "./Kind.ts"
import { refuseInteger } from "./Millis.ts"
import type { Invalid } from "./Refusals.ts"

export const MAX_QUEUE_WEIGHT = 1000

export const MAX_QUANTUM = 10_000

/** The stored form. */
export interface QueueConfig {
  readonly name: string
  /** Its share beside other queues that a worker serves: 1 to 1000. */
  readonly weight: number
  /** Served before all queues that are not strict, the heaviest first. */
  readonly strict: boolean
  /** Jobs of one partition in a round, 1 to 10,000; undefined: by what each partition has in flight. */
  readonly quantum: number | undefined
  /** A paused queue admits nothing; jobs may still be enqueued. */
  readonly paused: boolean
  /** Unfinished jobs it may hold, 0 or more: what would exceed it is refused. Undefined: unbounded. */
  readonly maxUnfinishedJobs: number | undefined
}

export interface Queue extends QueueConfig {
  readonly _tag: "Queue"
}

export interface QueueOptions {
  /** 1 to 1000. Default 1. */
  readonly weight?: number | undefined
  /** Default false. */
  readonly strict?: boolean | undefined
  /** 1 to 10,000. Default: by what each partition has in flight. */
  readonly quantum?: number | undefined
  /** Default false. */
  readonly paused?: boolean | undefined
  /** 0 or more; 0 refuses every enqueue. Default: unbounded. Enqueues of a bounded queue wait for one another. */
  readonly maxUnfinishedJobs?: number | undefined
}

const make = (name: string, options: QueueOptions = {}): Queue => {
  const { maxUnfinishedJobs, paused = false, quantum, strict = false, weight = 1 } = options
  const config = { name, weight, strict, quantum, paused, maxUnfinishedJobs }
  const refusal = refuseQueue(config)
  if (refusal !== undefined) throw refusal
  return { ...config, _tag: "Queue" }
}

/** A definition that breaks a rule throws an `Invalid` where it is made. */
export const Queue = { make }

/** The refusal of the first field that breaks a rule, if one does. */
export const refuseQueue = ({ maxUnfinishedJobs, name, quantum, weight }: QueueConfig): Invalid | undefined =>
  refuseName("name", name) ??
    refuseInteger("weight", weight, 1, MAX_QUEUE_WEIGHT) ??
    (quantum === undefined ? undefined : refuseInteger("quantum", quantum, 1, MAX_QUANTUM)) ??
    (maxUnfinishedJobs === undefined
      ? undefined
      : refuseInteger("maxUnfinishedJobs", maxUnfinishedJobs, 0, Number.MAX_SAFE_INTEGER))
