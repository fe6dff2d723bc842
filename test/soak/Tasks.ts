/** The kinds of jobs of the soak. Each payload says what is to go wrong by the handler's own doing. */
import * as Schema from "effect/Schema"
import { ConcurrencyLimit, RateClass, Retry, Task } from "headgate"

export const Plan = Schema.Struct({
  workMs: Schema.Int,
  /** It fails while it has failed less often than that. */
  failures: Schema.Int,
  /** It dies while its attempts have crashed less often than that. */
  deaths: Schema.Int
})
export type Plan = typeof Plan.Type

/** Whose write it was, and which. */
export const Mark = Schema.Struct({ fence: Schema.Int, nonce: Schema.String })
export type Mark = typeof Mark.Type

export class Injected extends Schema.TaggedError<Injected>()("Injected", { fence: Schema.Int }) {}

export const MAX_ATTEMPTS = 3
/** No worker is killed so often. */
export const CRASH_LIMIT = 1000
export const POISON_CRASH_LIMIT = 2

/** Of the narrow queue and of each of its partitions. */
export const NARROW = { queue: 3, partition: 2 } as const
export const METERED = { limit: 6, windowMs: 1000, burst: 8 } as const

const narrowQueue = ConcurrencyLimit.make("narrow-queue", { scope: "queue", queue: "narrow", max: NARROW.queue })
const narrowPartition = ConcurrencyLimit.make("narrow-partition", {
  scope: "partition",
  queue: "narrow",
  max: NARROW.partition
})
const metered = RateClass.make("metered", { ...METERED, window: METERED.windowMs })

const shared = {
  payload: Plan,
  success: Mark,
  error: Injected,
  maxAttempts: MAX_ATTEMPTS,
  crashLimit: CRASH_LIMIT,
  retry: Retry.fixed("300 millis")
}

export const PAGES = 4

export const Plain = Task.make("plain", shared)
export const Poison = Task.make("poison", { ...shared, crashLimit: POISON_CRASH_LIMIT })
export const Unique = Task.make("unique", shared)
export const Steps = Task.make("steps", { ...shared, steps: ["draw", "pages", "publish", "nap", "announce"] })
/** Ahead of the others, so that somebody else has a lost one soon, and long enough to have it still when a late write comes. */
export const Long = Task.make("long", { ...shared, steps: ["first", "second", "third"], priority: 10 })
export const Complete = Task.make("complete", shared)
export const Parent = Task.make("parent", { ...shared, steps: ["spawn"] })
export const Narrow = Task.make("narrow", { ...shared, queue: "narrow", limits: [narrowQueue, narrowPartition] })
export const Metered = Task.make("metered", { ...shared, queue: "metered", rates: [metered] })

export const tasks = {
  plain: Plain,
  poison: Poison,
  unique: Unique,
  steps: Steps,
  long: Long,
  complete: Complete,
  parent: Parent,
  narrow: Narrow,
  metered: Metered
}
export type Kind = keyof typeof tasks
