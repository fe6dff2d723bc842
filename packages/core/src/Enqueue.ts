/** From a typed payload and options in the caller's terms to the stored form of a job. */
import * as DateTime from "effect/DateTime"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { Codec, CodecError } from "./Codec.ts"
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

export const envelopeOf = Effect.fnUntraced(function*<P, S, E, Steps extends string>(
  kind: string,
  version: number,
  codec: Codec<P>,
  task: TaskOptions<P, S, E, Steps>,
  payload: P,
  options: EnqueueOptions = {}
): Effect.fn.Return<Envelope, Invalid | CodecError> {
  const ids = yield* IdGen
  const refusal = refuseBoth("delay", options.delay, "at", options.at) ??
    refuseBoth("deadline", options.deadline, "deadlineAt", options.deadlineAt)
  if (refusal !== undefined) return yield* refusal
  const bytes = yield* Effect.fromResult(codec.encode(payload))
  const uniqueKey = options.uniqueKey ?? (yield* derived("uniqueKey", task.uniqueKey, payload))
  const queue = options.queue ?? task.queue
  const deadline = options.deadline ?? (options.deadlineAt === undefined ? task.deadline : undefined)
  return Envelope.make({
    id: options.id ?? ids.next(),
    kind,
    payload: bytes,
    schemaVersion: version,
    queue: queue === undefined ? undefined : queueName(queue),
    rates: task.rates === undefined ? undefined : yield* Effect.fromResult(ratesOf(task.rates, payload)),
    limits: task.limits === undefined ? undefined : yield* Effect.fromResult(limitsOf(task.limits, payload)),
    partitionKey: options.partitionKey ?? (yield* derived("partitionKey", task.partitionKey, payload)),
    uniqueKey: typeof uniqueKey === "string" ? yield* keyBytes(uniqueKey) : uniqueKey,
    uniqueExcludeKind: options.uniqueAcrossKinds,
    uniqueReplace: options.uniqueReplace,
    uniqueDebounceMs: yield* millis("uniqueDebounce", options.uniqueDebounce),
    fingerprint: options.fingerprint,
    priority: options.priority ?? task.priority,
    maxAttempts: options.maxAttempts ?? task.maxAttempts,
    crashLimit: options.crashLimit ?? task.crashLimit,
    delayMs: yield* millis("delay", options.delay, zeroOrMillis),
    scheduledAtMs: yield* epochMillis("at", options.at),
    timeoutMs: yield* millis("timeout", options.timeout ?? task.timeout),
    deadlineInMs: yield* millis("deadline", deadline),
    deadlineAtMs: yield* epochMillis("deadlineAt", options.deadlineAt),
    queueTimeoutMs: yield* millis("queueTimeout", options.queueTimeout ?? task.queueTimeout),
    retentionMs: yield* millis("retention", options.retention ?? task.retention, zeroOrMillis),
    headers: yield* traceHeaders(options.headers),
    tags: options.tags,
    pending: options.pending,
    stickyWorker: options.stickyWorker,
    stickyFallbackMs: yield* millis("stickyFallback", options.stickyFallback)
  })
})

const derived = <P, A>(
  field: string,
  of: ((payload: P) => A) | undefined,
  payload: P
): Effect.Effect<A | undefined, Invalid> =>
  of === undefined ? Effect.undefined : Effect.fromResult(called(field, of, payload))

/** Half of a surrogate pair has no UTF-8 of its own: different keys would become one. */
const keyBytes = (key: string): Effect.Effect<Uint8Array, Invalid> =>
  HALF_PAIR.test(key)
    ? Effect.fail(new Invalid({ field: "uniqueKey", message: "uniqueKey holds half of a surrogate pair" }))
    : Effect.succeed(new TextEncoder().encode(key))

const HALF_PAIR = /\p{Surrogate}/u

const refuseBoth = (field: string, one: unknown, other: string, another: unknown): Invalid | undefined =>
  one === undefined || another === undefined
    ? undefined
    : new Invalid({ field, message: `${field} and ${other} exclude each other` })

const millis = (
  field: string,
  input: Duration.Input | undefined,
  check: typeof zeroOrMillis = wholeMillis
): Effect.Effect<number | undefined, Invalid> =>
  input === undefined ? Effect.undefined : Effect.fromResult(check(field, input))

const epochMillis = (
  field: string,
  input: DateTime.DateTime.Input | undefined
): Effect.Effect<number | undefined, Invalid> => {
  if (input === undefined) return Effect.undefined
  const time = DateTime.make(input)
  return Option.isSome(time)
    ? Effect.succeed(DateTime.toEpochMillis(time.value))
    : new Invalid({ field, message: `${field} is not a point in time` })
}
