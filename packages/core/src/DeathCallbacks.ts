/**
 * The deaths of jobs, kept for their handlers. A store records a job of a declared kind in the transaction that archives
 * it; a worker claims the record for a limited time, calls the handler, and settles under the claim's fence. What failed
 * too often is kept, for operators to look at and to retry.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { JobId, WorkerId } from "./Ids.ts"
import type { Invalid, StoreUnavailable } from "./Refusals.ts"

/** Why a job is archived. */
export const DeathReason = Schema.Literals([
  "exhausted",
  "fatal",
  "skipped",
  "deadline",
  "queue_timeout",
  "discarded"
])
export type DeathReason = typeof DeathReason.Type

/** What is known of a death without its task. A job that is brought back and dies again has another, with another key. */
export interface DeathFacts {
  /** The same at every call for this death: what the handler does under it, it does once. */
  readonly key: string
  readonly jobId: JobId
  /** As the job was enqueued: an alias of the task, maybe. */
  readonly kind: string
  readonly queue: string
  readonly partitionKey: string
  readonly reason: DeathReason
  /** Of the job's latest attempt; undefined when that left none. For a skipped job the message is what it was skipped for. */
  readonly error: { readonly tag: string; readonly message: string } | undefined
  /** Failures and crashes it was charged with. */
  readonly attempt: number
  readonly crashAttempt: number
  /** Epoch milliseconds on the store's clock. */
  readonly archivedAtMs: number
  readonly tags: ReadonlyArray<string>
  readonly headers: Readonly<Record<string, string>>
  /** Which call this is, from 1. */
  readonly call: number
}

/** A death as it is stored. */
export interface RecordedDeath extends DeathFacts {
  readonly encodedError: Uint8Array | undefined
  readonly payload: Uint8Array
  readonly schemaVersion: number
}

export interface ClaimedDeath {
  readonly death: RecordedDeath
  /** Rises with every claim of this death: a settlement under an older one is refused. */
  readonly fence: number
}

export interface DeathClaims {
  readonly claims: ReadonlyArray<ClaimedDeath>
  /** Their last call was lost with its worker, or their fifth: kept as failed by this claim. */
  readonly givenUp: ReadonlyArray<{ readonly key: string; readonly jobId: JobId; readonly kind: string }>
}

export interface DeathRequest {
  readonly kind: string
  /** The highest version of a payload that this worker can decode. */
  readonly version: number
  /** At most this many claims. */
  readonly most: number
  readonly leaseMs: number
  readonly maxCalls: number
}

/** How a call ended. `given_up` keeps the death as failed; one that is `handed_back` counts as not called. */
export type CallEnd =
  | { readonly _tag: "delivered" | "handed_back" }
  | { readonly _tag: "retry"; readonly delayMs: number; readonly fault: CallFault }
  | { readonly _tag: "given_up"; readonly fault: CallFault }

export interface CallFault {
  readonly tag: string
  readonly message: string
}

export interface CallSettlement {
  readonly key: string
  readonly fence: number
  readonly end: CallEnd
}

export type DeathState = "waiting" | "delivered" | "failed"

export interface DeathSummary
  extends Pick<DeathFacts, "key" | "jobId" | "kind" | "queue" | "partitionKey" | "reason" | "error" | "archivedAtMs">
{
  readonly state: DeathState
  readonly calls: number
  /** When a waiting one may be called; while `worker` calls it, when its claim runs out. */
  readonly dueAtMs: number
  /** When it was delivered or given up. */
  readonly endedAtMs: number | undefined
  readonly worker: string | undefined
  /** Of the latest call that failed. */
  readonly fault: CallFault | undefined
}

export interface DeathQuery {
  /** Default `failed`. */
  readonly state?: DeathState | undefined
  readonly kind?: string | undefined
  /** `next` of the page before. */
  readonly after?: string | undefined
  /** 1 to 200. Default 50. */
  readonly limit?: number | undefined
}

export interface DeathList {
  /** In the order of kind and key. */
  readonly items: ReadonlyArray<DeathSummary>
  /** `after` of the next page; undefined on the last one. */
  readonly next: string | undefined
}

export interface DeathCount {
  readonly kind: string
  readonly state: DeathState
  readonly count: number
}

export interface DeathCounts {
  readonly counts: ReadonlyArray<DeathCount>
  /** A bounded scan stopped early: the true numbers are at least these. */
  readonly approximate: boolean
}

/** One death, or those of a kind. */
export type DeathChoice = { readonly key: string } | { readonly kind: string }

export class DeathCallbacks extends Context.Service<DeathCallbacks, {
  /** What archives jobs of these kinds from now on records them. A kind that was not declared for 30 days is forgotten. */
  readonly declare: (kinds: ReadonlyArray<string>) => Effect.Effect<void, StoreUnavailable>
  /** What is due, oldest first for each kind. No two workers are given the same death at once. */
  readonly claim: (
    worker: WorkerId,
    requests: ReadonlyArray<DeathRequest>
  ) => Effect.Effect<DeathClaims, StoreUnavailable>
  /** Answers whether the claim was current, for each in the order given: what is not is changed by nothing. */
  readonly settle: (
    batch: ReadonlyArray<CallSettlement>
  ) => Effect.Effect<ReadonlyArray<boolean>, StoreUnavailable>

  readonly list: (query?: DeathQuery) => Effect.Effect<DeathList, Invalid | StoreUnavailable>
  /** At most 10,000 rows per state are counted. */
  readonly counts: Effect.Effect<DeathCounts, StoreUnavailable>
  /**
   * Failed deaths are called again, with all their calls before them; one that waits for its next call is called now.
   * Answers how many.
   */
  readonly retry: (choice: DeathChoice) => Effect.Effect<number, StoreUnavailable>
  /** Deaths that nobody calls at this moment are forgotten. Answers how many. */
  readonly remove: (choice: DeathChoice) => Effect.Effect<number, StoreUnavailable>
}>()("@headgate/core/DeathCallbacks") {}
