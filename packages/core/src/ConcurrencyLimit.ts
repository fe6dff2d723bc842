/**
 * A concurrency limit bounds how many jobs run at once in the whole fleet: of a queue, of each partition of a queue, of a
 * kind, or of each key that jobs name. Slots are counted from the jobs that run, so none is ever lost. A value, applied
 * when a worker starts; what an operator sets later wins until the code changes.
 */
import * as Schema from "effect/Schema"
import { refuseName } from "./Kind.ts"
import { refuseInteger } from "./Millis.ts"
import { Invalid } from "./Refusals.ts"

/** Of `max`. */
export const MAX_CONCURRENT = 1_000_000

/**
 * What a full slot does with a job that wants in. `queue`: it waits. `discard`: it is archived. `cancel_incoming`: it is
 * cancelled. `cancel_running`: the oldest running one is cancelled, and it runs.
 */
export const SaturationStrategy = Schema.Literals(["queue", "discard", "cancel_incoming", "cancel_running"])
export type SaturationStrategy = typeof SaturationStrategy.Type

/** What has a slot of its own: the queue, each partition of it, the kind, or each key. */
export type LimitScope = "queue" | "partition" | "kind" | "key"

/** The stored form. */
export interface ConcurrencyLimitConfig {
  readonly name: string
  readonly scope: LimitScope
  /** The queue (scopes `queue` and `partition`) or the kind; empty for scope `key`, whose jobs name the limit themselves. */
  readonly subject: string
  /** Running jobs a slot: 0 to 1,000,000. */
  readonly max: number
  readonly onSaturated: SaturationStrategy
  /** A paused limit admits none of its jobs. */
  readonly paused: boolean
}

export interface ConcurrencyLimit<in Payload = unknown> extends ConcurrencyLimitConfig {
  readonly _tag: "ConcurrencyLimit"
  /** The slot of a job under scope `key`; without it all jobs that name the limit share the one of the empty key. */
  readonly key: ((payload: Payload) => string) | undefined
  /**
   * This limit, with a slot for each key of one task's payloads. Name the payload's type: it is not inferred here. Throws
   * for another scope than `key`.
   */
  readonly by: <P extends Payload>(key: (payload: P) => string) => ConcurrencyLimit<P>
}

export type ConcurrencyLimitOptions<Payload = unknown> =
  & {
    /** 0 to 1,000,000. */
    readonly max: number
    /** Default `queue`. */
    readonly onSaturated?: SaturationStrategy | undefined
    /** Default false. */
    readonly paused?: boolean | undefined
  }
  & (
    | { readonly scope: "queue" | "partition"; readonly queue: string }
    | { readonly scope: "kind"; readonly kind: string }
    | { readonly scope: "key"; readonly key?: ((payload: Payload) => string) | undefined }
  )

const make = <Payload = unknown>(
  name: string,
  options: ConcurrencyLimitOptions<Payload>
): ConcurrencyLimit<Payload> => {
  const { max, onSaturated = "queue", paused = false, scope } = options
  const subject = scope === "key" ? "" : scope === "kind" ? options.kind : options.queue
  const config = { name, scope, subject, max, onSaturated, paused }
  const refusal = refuseConcurrencyLimit(config)
  if (refusal !== undefined) throw refusal
  return withKey(config, scope === "key" ? options.key : undefined)
}

/** A definition that breaks a rule throws an `Invalid` where it is made. */
export const ConcurrencyLimit = { make }

/** The refusal of the first field that breaks a rule, if one does. */
export const refuseConcurrencyLimit = (config: ConcurrencyLimitConfig): Invalid | undefined =>
  refuseName("name", config.name) ??
    refuseChoice("scope", config.scope, SCOPES) ??
    (config.scope === "key"
      ? refuseSubject(config.subject)
      : refuseName(config.scope === "kind" ? "kind" : "queue", config.subject)) ??
    refuseInteger("max", config.max, 0, MAX_CONCURRENT) ??
    refuseChoice("onSaturated", config.onSaturated, SaturationStrategy.literals)

const SCOPES: ReadonlyArray<LimitScope> = ["queue", "partition", "kind", "key"]

const refuseChoice = (field: string, value: string, choices: ReadonlyArray<string>): Invalid | undefined =>
  choices.includes(value) ? undefined : new Invalid({ field, message: `${field} must be one of ${choices.join(", ")}` })

const refuseSubject = (subject: string): Invalid | undefined =>
  subject === ""
    ? undefined
    : new Invalid({ field: "subject", message: "a limit of scope key has no subject: its jobs name it" })

const withKey = <Payload>(
  config: ConcurrencyLimitConfig,
  key: ((payload: Payload) => string) | undefined
): ConcurrencyLimit<Payload> => ({
  ...config,
  _tag: "ConcurrencyLimit",
  key,
  by: (key) => {
    if (config.scope === "key") return withKey(config, key)
    throw new Invalid({ field: "key", message: `a limit of scope ${config.scope} takes no key of its jobs` })
  }
})
