/** A scenario as it stands in its file. The shape, the defaults and the meaning are those of `conformance/README.md`. */
import type { OutcomeName } from "@headgate/core/Outcome"
import type { State } from "@headgate/core/State"

export interface Scenario {
  readonly promise: string
  readonly why?: string
  readonly given?: ReadonlyArray<Step>
  readonly when: ReadonlyArray<Step>
  readonly then: ReadonlyArray<JobAssertion | CheckpointAssertion>
}

/** One operation, by its name, and what is expected of its answer. */
export type Step = Partial<Arguments> & {
  readonly as?: string | ReadonlyArray<string>
  readonly refused?: string
  readonly answers?: Answers
}

/** What each operation is given. */
export interface Arguments {
  readonly advance_ms: number
  readonly enqueue: OneOrMore<NewJob>
  readonly admit: AdmitArguments
  readonly settle: OneOrMore<SettlementArguments>
  readonly abandon: { readonly claim: string }
  readonly renew: { readonly claims: ReadonlyArray<string>; readonly lease_ms?: number }
  readonly checkpoint: CheckpointArguments
  readonly promote_due: Sweep
  readonly reclaim: Sweep
  readonly expire: Sweep
  readonly evict: Sweep
  readonly promote: OnJob
  readonly cancel: OnJob
  readonly retry: OnJob & { readonly deadline_at_ms?: number | null }
  readonly release: OnJob
  readonly delete: OnJob
  readonly reschedule: OnJob & { readonly at_ms?: number; readonly behind?: true }
  readonly edit: OnJob & { readonly payload: string }
  readonly set_rate_class: RateClassArguments
  readonly set_limit: LimitArguments
  readonly set_queue: QueueArguments
  readonly set_partition: { readonly queue?: string; readonly partition: string; readonly quantum?: number }
  readonly pause: Switch
  readonly resume: Switch
  readonly heartbeat: { readonly worker: string; readonly lease_ms?: number }
  readonly quarantine_sweep: Sweep
  readonly release_fingerprint: { readonly fingerprint: string; readonly limit?: number }
  readonly explain: OnJob
}

export type OperationName = keyof Arguments

export interface NewJob {
  readonly id: string
  readonly kind: string
  /** So many copies, whose ids are this one and a number of equal length, from 1. */
  readonly many?: number
  readonly version?: number
  readonly payload?: string
  readonly fingerprint?: string
  readonly queue?: string
  readonly partition?: string
  readonly priority?: number
  readonly pending?: boolean
  readonly scheduled_at_ms?: number
  readonly deadline_at_ms?: number
  readonly queue_timeout_ms?: number
  readonly max_attempts?: number
  readonly crash_limit?: number
  readonly retention_ms?: number
  readonly unique?: {
    readonly key: string
    readonly replace?: ReadonlyArray<"payload" | "scheduled_at" | "priority" | "max_attempts">
    readonly debounce_ms?: number
    readonly exclude_kind?: boolean
  }
  readonly rates?: ReadonlyArray<{ readonly class: string; readonly key?: string; readonly weight?: number }>
  readonly limits?: ReadonlyArray<{ readonly limit: string; readonly key: string }>
  readonly sticky_worker?: string
  readonly sticky_fallback_ms?: number
}

export interface AdmitArguments {
  readonly worker: string
  readonly queues?: ReadonlyArray<string>
  readonly kinds?: Readonly<Record<string, number>>
  readonly capacity?: number
  readonly lease_ms?: number
  readonly quantum?: number
  /** What the worker's own clock is off by. */
  readonly clock_ahead_ms?: number
}

export interface SettlementArguments {
  readonly claim: string
  readonly outcome: OutcomeName
  readonly delay_ms?: number
  readonly result?: string
  readonly error?: string
  readonly reason?: string
  readonly push_back_ms?: number
  readonly push_back_class?: string
  readonly charges?: ReadonlyArray<{ readonly class?: string; readonly key?: string; readonly actual: number }>
}

export interface RateClassArguments {
  readonly name: string
  readonly limit: number
  readonly window_ms: number
  readonly burst: number
  readonly paused?: boolean
}

export interface LimitArguments {
  readonly name: string
  readonly scope: "queue" | "partition" | "kind" | "key"
  readonly queue?: string
  readonly kind?: string
  readonly max: number
  readonly on_saturated?: "queue" | "discard" | "cancel_incoming" | "cancel_running"
}

export interface QueueArguments {
  readonly name: string
  readonly weight?: number
  readonly strict?: boolean
  readonly quantum?: number
  readonly max_unfinished_jobs?: number
}

/** What is paused or resumed: one of these; `queue` beside `partition` is where that is. */
export interface Switch {
  readonly queue?: string
  readonly kind?: string
  readonly class?: string
  readonly limit?: string
  readonly partition?: string
}

export interface CheckpointArguments {
  readonly claim: string
  readonly record?: { readonly step: string; readonly result?: string }
  readonly mark?: string
  readonly cursor?: { readonly step: string; readonly bytes: string }
  readonly lease_ms?: number
}

/** What an answer or a refusal says. */
export interface Answers {
  readonly jobs?: ReadonlyArray<string>
  readonly count?: number
  readonly partitions?: Readonly<Record<string, number>>
  readonly queues?: Readonly<Record<string, number>>
  readonly ended?: Readonly<Record<string, string>>
  readonly released?: number
  readonly blocked_by?: string | null
  readonly policy?: string | null
  readonly admissible?: boolean
  readonly queue?: string
  readonly limit?: number
  readonly current?: number
  readonly incoming?: number
  readonly fingerprint?: string
  readonly status?: string
  readonly existing_id?: string
  readonly replaced?: boolean
  readonly holder_id?: string
  readonly state?: string
  readonly lost?: ReadonlyArray<string>
  readonly rejected?: ReadonlyArray<string>
  readonly cancel?: string
}

export interface JobAssertion {
  readonly job: string
  readonly state?: State | "deleted"
  readonly reason?: string | null
  readonly attempt?: number
  readonly crash_attempt?: number
  readonly fence?: number
  readonly orphaned?: boolean
  readonly kind?: string
  readonly queue?: string
  readonly priority?: number
  readonly payload?: string
  readonly result?: string | null
  readonly scheduled_at_ms?: number
  readonly worker?: string | null
  readonly lease_expires_at_ms?: number | null
}

export interface CheckpointAssertion {
  readonly checkpoint: string
  readonly completed_steps?: ReadonlyArray<string>
  readonly in_progress_step?: string | null
  readonly cursor_step?: string | null
  readonly cursor?: string | null
  readonly crashes_by_step?: Readonly<Record<string, number>>
}

export type OneOrMore<A> = A | ReadonlyArray<A>

export const listOf = <A extends object>(value: OneOrMore<A>): ReadonlyArray<A> =>
  // SAFETY: a list is told from one object by being an array; readonly arrays are not narrowed by `isArray`.
  Array.isArray(value) ? value as ReadonlyArray<A> : [value as A]

interface OnJob {
  readonly job: string
}

interface Sweep {
  readonly limit: number
}
