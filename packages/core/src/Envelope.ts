/**
 * A job as its producer hands it to a store. A plain object, since one is made for every job; checked by
 * `validateEnqueue` before anything is written. Counters, lease and times of a stored job are the store's and appear in
 * claims and inspection.
 */
import type { State } from "./State.ts"
import { sortedTags } from "./Tags.ts"

/** What one job costs against one shared budget. `key` tells budgets of one class apart (`""` is the class itself). */
export interface Rate {
  readonly class: string
  /** At most 256 bytes without control characters. */
  readonly key: string
  /** 1 or more; 0 is the wire's way to say nothing and counts as 1. */
  readonly weight: number
}

/** The slot of a concurrency limit of scope `key` that the job takes while it runs. */
export interface LimitSlot {
  readonly limit: string
  /** At most 256 bytes without control characters. */
  readonly key: string
}

/** The schedule and the tick that made the job. */
export interface PeriodicOrigin {
  readonly scheduleId: string
  readonly tickMs: number
}

export interface Envelope {
  /** 1 to 128 bytes without control characters; not `.` or `..`, which no URL can carry. */
  readonly id: string
  readonly kind: string
  /** 1..2^31-1. */
  readonly schemaVersion: number
  /** Opaque to the store, at most 1 MiB. */
  readonly payload: Uint8Array
  /** Follows the rule of kinds; `""` means `default`. */
  readonly queue: string
  /** At most 256 bytes; `""` is the default partition. */
  readonly partitionKey: string
  /** 1 to 128 visible ASCII characters, stored untouched; computed from kind and payload when undefined. */
  readonly fingerprint: string | undefined
  /** At most 8, none twice with the same key. */
  readonly rates: ReadonlyArray<Rate>
  /** At most 8, none twice. */
  readonly limits: ReadonlyArray<LimitSlot>
  /** -32,768..32,767; higher runs first inside a queue. */
  readonly priority: number
  /** 1..1,000. */
  readonly maxAttempts: number
  /** 1..1,000. */
  readonly crashLimit: number
  /** Epoch milliseconds on the store's clock; excludes `delayMs`. */
  readonly scheduledAtMs: number | undefined
  /** From the store's now; 0 is at once. */
  readonly delayMs: number | undefined
  /** Bounds one attempt. */
  readonly timeoutMs: number | undefined
  /** Bounds the wait for an attempt. */
  readonly queueTimeoutMs: number | undefined
  /** Bounds the job: epoch milliseconds on the store's clock; excludes `deadlineInMs`. */
  readonly deadlineAtMs: number | undefined
  /** From the later of enqueue and due time. */
  readonly deadlineInMs: number | undefined
  /** How long the completed job is kept; 0 deletes it at success. */
  readonly retentionMs: number
  /** The caller's bytes; at most one unfinished job holds a key. */
  readonly uniqueKey: Uint8Array | undefined
  /** The key is shared by all kinds. */
  readonly uniqueExcludeKind: boolean
  /** States in which the holder excludes others; all that are not terminal when undefined. */
  readonly uniqueStates: ReadonlyArray<State> | undefined
  /** A holder excludes others only so long after it was enqueued; for ever when undefined. */
  readonly uniqueWindowMs: number | undefined
  /** Bits of UNIQUE_REPLACE_*: what a duplicate writes over the waiting holder. */
  readonly uniqueReplace: number
  /** A duplicate moves the waiting holder's due time to so long from the store's now. */
  readonly uniqueDebounceMs: number | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly tags: ReadonlyArray<string>
  /** Stored as `pending`: nothing but an operator or a coordinator makes it run. */
  readonly pending: boolean
  /** Name of the only worker that may run it. */
  readonly stickyWorker: string | undefined
  /** Others may run it so long after it was due, and before that while the named worker is not alive; never when undefined. */
  readonly stickyFallbackMs: number | undefined
  readonly periodicOrigin: PeriodicOrigin | undefined
}

/** What must be said of a job; the rest has defaults. */
export type EnvelopeInput =
  & Pick<Envelope, "id" | "kind" | "payload">
  & { readonly [K in Exclude<keyof Envelope, "id" | "kind" | "payload">]?: Envelope[K] | undefined }

export const DEFAULT_QUEUE = "default"

/** Schema version 1, priority 0, 25 attempts (about 13 hours under the default retry policy), 3 crashes, kept one day. */
export const envelopeDefaults = {
  schemaVersion: 1,
  queue: DEFAULT_QUEUE,
  partitionKey: "",
  priority: 0,
  maxAttempts: 25,
  crashLimit: 3,
  retentionMs: 86_400_000
} as const

export const Envelope = {
  /** Fills in the defaults and puts tags in canonical order. Checks nothing. */
  make: (input: EnvelopeInput): Envelope => ({
    id: input.id,
    kind: input.kind,
    schemaVersion: input.schemaVersion ?? envelopeDefaults.schemaVersion,
    payload: input.payload,
    queue: input.queue ?? envelopeDefaults.queue,
    partitionKey: input.partitionKey ?? envelopeDefaults.partitionKey,
    fingerprint: input.fingerprint,
    rates: input.rates ?? NO_RATES,
    limits: input.limits ?? NO_LIMITS,
    priority: input.priority ?? envelopeDefaults.priority,
    maxAttempts: input.maxAttempts ?? envelopeDefaults.maxAttempts,
    crashLimit: input.crashLimit ?? envelopeDefaults.crashLimit,
    scheduledAtMs: input.scheduledAtMs,
    delayMs: input.delayMs,
    timeoutMs: input.timeoutMs,
    queueTimeoutMs: input.queueTimeoutMs,
    deadlineAtMs: input.deadlineAtMs,
    deadlineInMs: input.deadlineInMs,
    retentionMs: input.retentionMs ?? envelopeDefaults.retentionMs,
    uniqueKey: input.uniqueKey,
    uniqueExcludeKind: input.uniqueExcludeKind ?? false,
    uniqueStates: input.uniqueStates,
    uniqueWindowMs: input.uniqueWindowMs,
    uniqueReplace: input.uniqueReplace ?? 0,
    uniqueDebounceMs: input.uniqueDebounceMs,
    headers: input.headers ?? NO_HEADERS,
    tags: input.tags === undefined ? NO_TAGS : sortedTags(input.tags),
    pending: input.pending ?? false,
    stickyWorker: input.stickyWorker,
    stickyFallbackMs: input.stickyFallbackMs,
    periodicOrigin: input.periodicOrigin
  })
}

/**
 * Whether they are known to be the same in all but id and payload, as most of one batch are: what was looked at in one
 * needs no second look in the other.
 */
export const isLike = (a: Envelope, b: Envelope): boolean =>
  a.kind === b.kind && a.queue === b.queue && a.schemaVersion === b.schemaVersion &&
  a.partitionKey === b.partitionKey && a.fingerprint === b.fingerprint && a.rates === b.rates &&
  a.limits === b.limits && a.priority === b.priority && a.maxAttempts === b.maxAttempts &&
  a.crashLimit === b.crashLimit && a.scheduledAtMs === b.scheduledAtMs && a.delayMs === b.delayMs &&
  a.timeoutMs === b.timeoutMs && a.queueTimeoutMs === b.queueTimeoutMs && a.deadlineAtMs === b.deadlineAtMs &&
  a.deadlineInMs === b.deadlineInMs && a.retentionMs === b.retentionMs && a.uniqueKey === b.uniqueKey &&
  a.uniqueExcludeKind === b.uniqueExcludeKind && a.uniqueStates === b.uniqueStates &&
  a.uniqueWindowMs === b.uniqueWindowMs && a.uniqueReplace === b.uniqueReplace &&
  a.uniqueDebounceMs === b.uniqueDebounceMs && a.headers === b.headers && a.tags === b.tags &&
  a.pending === b.pending && a.stickyWorker === b.stickyWorker && a.stickyFallbackMs === b.stickyFallbackMs &&
  a.periodicOrigin === b.periodicOrigin

/** The queue a job lands in: an empty name means `default`. */
export const enqueueQueue = (queue: string): string => queue === "" ? DEFAULT_QUEUE : queue

export interface JobContent {
  readonly kind: string
  readonly fingerprint: string
  readonly queue: string
}

/** Whether a repeated id names the same job: equal kind, fingerprint and queue, an omitted queue being `default`. */
export const sameJobContent = (a: JobContent, b: JobContent): boolean =>
  a.kind === b.kind && a.fingerprint === b.fingerprint && enqueueQueue(a.queue) === enqueueQueue(b.queue)

const NO_RATES: ReadonlyArray<Rate> = []
const NO_LIMITS: ReadonlyArray<LimitSlot> = []
const NO_TAGS: ReadonlyArray<string> = []
const NO_HEADERS: Readonly<Record<string, string>> = {}
