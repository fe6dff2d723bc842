/** From a typed payload and options in the caller's terms to the stored form of a job. */
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import type * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { type Codec, CodecError } from "./Codec.ts"
import { Envelope } from "./Envelope.ts"
import { IdGen } from "./IdGen.ts"
import { wholeMillis, zeroOrMillis } from "./Millis.ts"
import type { Queue } from "./Queue.ts"
import { Invalid } from "./Refusals.ts"
import type { TaskOptions } from "./Task.ts"
import { called, limitsOf, queueName, ratesOf } from "./TaskPolicies.ts"
import { traceHeaders } from "./TraceHeaders.ts"

/** What one job may say for itself; the rest comes from its task. */
export interface EnqueueOptions {
  /** An id of your own: the same id with the same content is stored once, with other content it is `IdConflict`. */
  readonly id?: string | undefined
  /** Of a definition given here only the name counts: a worker applies those that its tasks name. */
  readonly queue?: string | Queue | undefined
  readonly partitionKey?: string | undefined
  /** At most one unfinished job holds a key; the next one is `Duplicate`. */
  readonly uniqueKey?: string | Uint8Array | undefined
  /** The key is shared by all kinds. */
  readonly uniqueAcrossKinds?: boolean | undefined
  /** Bits of UNIQUE_REPLACE_*: what this job, if it is a duplicate, writes over the waiting holder of its key. */
  readonly uniqueReplace?: number | undefined
  /** This job, if it is a duplicate, moves the waiting holder's due time to so long from now. */
  readonly uniqueDebounce?: Duration.Input | undefined
  /** What tells poison apart: 1 to 128 visible ASCII characters. Default: computed from kind and payload. */
  readonly fingerprint?: string | undefined
  /** -32,768 to 32,767; higher runs first inside a queue. */
  readonly priority?: number | undefined
  /** Run no earlier than so long from now. Excludes `at`. */
  readonly delay?: Duration.Input | undefined
  /** Run no earlier than then. Excludes `delay`. */
  readonly at?: DateTime.DateTime.Input | undefined
  readonly maxAttempts?: number | undefined
  readonly crashLimit?: number | undefined
  readonly timeout?: Duration.Input | undefined
  /** A duration counts from the later of enqueue and due time. Excludes `deadlineAt`. */
  readonly deadline?: Duration.Input | undefined
  readonly deadlineAt?: DateTime.DateTime.Input | undefined
  readonly queueTimeout?: Duration.Input | undefined
  readonly retention?: Duration.Input | undefined
  readonly headers?: Readonly<Record<string, string>> | undefined
  readonly tags?: ReadonlyArray<string> | undefined
  /** Stored, but not run before an operator promotes it. */
  readonly pending?: boolean | undefined
  /** The id of the only worker that may run it. */
  readonly stickyWorker?: string | undefined
  /** Others may run it so long after it was due, and before that while the named worker is not alive. Default: never. */
  readonly stickyFallback?: Duration.Input | undefined
}

/** The envelope of one job of a task, made where `context` is the caller's. */
export type EnvelopeOf<P> = (
  context: Context.Context<never>,
  payload: P,
  options?: EnqueueOptions
) => Result.Result<Envelope, Invalid | CodecError>

/**
 * What the task itself says is worked out here, once; what is left runs for every job of a batch, so it is plain code.
 * Inside of it refusals are thrown.
 */
export const envelopes = <P, S, E, Steps extends string>(
  kind: string,
  version: number,
  codec: Codec<P>,
  task: TaskOptions<P, S, E, Steps>
): EnvelopeOf<P> => {
  const own = {
    queue: task.queue === undefined ? undefined : queueName(task.queue),
    timeoutMs: millis("timeout", task.timeout),
    deadlineInMs: millis("deadline", task.deadline),
    queueTimeoutMs: millis("queueTimeout", task.queueTimeout),
    retentionMs: millis("retention", task.retention, zeroOrMillis)
  }
  const envelope = (context: Context.Context<never>, payload: P, options: EnqueueOptions): Envelope => {
    refuseBoth("delay", options.delay, "at", options.at)
    refuseBoth("deadline", options.deadline, "deadlineAt", options.deadlineAt)
    return Envelope.make({
      payload: Result.getOrThrow(codec.encode(payload)),
      id: options.id ?? Context.get(context, IdGen).next(),
      kind,
      schemaVersion: version,
      queue: options.queue === undefined ? own.queue : queueName(options.queue),
      rates: task.rates === undefined ? undefined : Result.getOrThrow(ratesOf(task.rates, payload)),
      limits: task.limits === undefined ? undefined : Result.getOrThrow(limitsOf(task.limits, payload)),
      partitionKey: options.partitionKey ?? derived("partitionKey", task.partitionKey, payload),
      uniqueKey: keyBytes(options.uniqueKey ?? derived("uniqueKey", task.uniqueKey, payload)),
      uniqueExcludeKind: options.uniqueAcrossKinds,
      uniqueReplace: options.uniqueReplace,
      uniqueDebounceMs: millis("uniqueDebounce", options.uniqueDebounce),
      fingerprint: options.fingerprint,
      priority: options.priority ?? task.priority,
      maxAttempts: options.maxAttempts ?? task.maxAttempts,
      crashLimit: options.crashLimit ?? task.crashLimit,
      delayMs: millis("delay", options.delay, zeroOrMillis),
      scheduledAtMs: epochMillis("at", options.at),
      timeoutMs: millis("timeout", options.timeout) ?? own.timeoutMs,
      deadlineInMs: millis("deadline", options.deadline) ??
        (options.deadlineAt === undefined ? own.deadlineInMs : undefined),
      deadlineAtMs: epochMillis("deadlineAt", options.deadlineAt),
      queueTimeoutMs: millis("queueTimeout", options.queueTimeout) ?? own.queueTimeoutMs,
      retentionMs: millis("retention", options.retention, zeroOrMillis) ?? own.retentionMs,
      headers: traceHeaders(context, options.headers),
      tags: options.tags,
      pending: options.pending,
      stickyWorker: options.stickyWorker,
      stickyFallbackMs: millis("stickyFallback", options.stickyFallback)
    })
  }
  return (context, payload, options = NO_OPTIONS) => {
    try {
      return Result.succeed(envelope(context, payload, options))
    } catch (error) {
      if (error instanceof Invalid || error instanceof CodecError) return Result.fail(error)
      throw error
    }
  }
}

const derived = <P, A>(field: string, of: ((payload: P) => A) | undefined, payload: P): A | undefined =>
  of === undefined ? undefined : Result.getOrThrow(called(field, of, payload))

/** Half of a surrogate pair has no UTF-8 of its own: different keys would become one. */
const keyBytes = (key: string | Uint8Array | undefined): Uint8Array | undefined => {
  if (typeof key !== "string") return key
  if (HALF_PAIR.test(key)) {
    throw new Invalid({ field: "uniqueKey", message: "uniqueKey holds half of a surrogate pair" })
  }
  return encoder.encode(key)
}

const refuseBoth = (field: string, one: unknown, other: string, another: unknown): void => {
  if (one === undefined || another === undefined) return
  throw new Invalid({ field, message: `${field} and ${other} exclude each other` })
}

const millis = (
  field: string,
  input: Duration.Input | undefined,
  check: typeof zeroOrMillis = wholeMillis
): number | undefined => input === undefined ? undefined : Result.getOrThrow(check(field, input))

const epochMillis = (field: string, input: DateTime.DateTime.Input | undefined): number | undefined => {
  if (input === undefined) return undefined
  const time = DateTime.make(input)
  if (Option.isSome(time)) return DateTime.toEpochMillis(time.value)
  throw new Invalid({ field, message: `${field} is not a point in time` })
}

const HALF_PAIR = /\p{Surrogate}/u
const NO_OPTIONS: EnqueueOptions = {}
const encoder = new TextEncoder()
