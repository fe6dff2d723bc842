/**
 * A task is a typed definition: what a kind of job is called, what goes in, what comes out, how it may fail and how it
 * is retried. A value, defined once and shared by the code that enqueues and the code that runs.
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type { SqlError } from "effect/sql/SqlError"
import { awaitEnd, type AwaitOptions, type JobEnded, resultOf } from "./Await.ts"
import { Codec, type CodecError } from "./Codec.ts"
import type { ConcurrencyLimit } from "./ConcurrencyLimit.ts"
import { type Death, type DeathHandler, type DeathOptions, onDeath } from "./DeathHandler.ts"
import { type EnqueueOptions, envelopes } from "./Enqueue.ts"
import type { Envelope } from "./Envelope.ts"
import { type Handler, handlerKey, type Registration } from "./Handler.ts"
import type { JobId } from "./Ids.ts"
import type { Inspect } from "./Inspect.ts"
import { type AttemptServices, Job } from "./Job.ts"
import type { OnErrors } from "./OnError.ts"
import { type EnqueueRefusal, Producer } from "./Producer.ts"
import { describeProduced, inProducerSpan } from "./ProducerSpan.ts"
import type { Queue } from "./Queue.ts"
import type { RateClass } from "./RateClass.ts"
import type { ForeignTransaction, Invalid, NotFound, StoreUnavailable } from "./Refusals.ts"
import type { RetryPolicy } from "./Retry.ts"
import { Cursor, type CursorOptions, Once, type OnceOptions, type SavePosition, Step } from "./Step.ts"
import type { Nothing, SleepOptions, StepOptions, StepRefusal, StepResultOptions } from "./Step.ts"
import { defineTask, type TaskDefinition } from "./TaskDefinition.ts"
import type { Transactional } from "./Transactional.ts"
import type { Upcasts } from "./Upcast.ts"

/** A step set that earlier builds declared, and what became of its names. A name left out keeps its name. */
export interface StepMapping {
  readonly from: ReadonlyArray<string>
  /** Old name to its new name, to the names it was split into, or to null when it was removed. */
  readonly to: Readonly<Record<string, string | ReadonlyArray<string> | null>>
}

export interface TaskOptions<P, S, E, Steps extends string> {
  readonly payload: Schema.Codec<P, unknown>
  /** What the handler answers; nothing by default. */
  readonly success?: Schema.Codec<S, unknown> | undefined
  /** The typed failures, stored with the attempt and given back to whoever awaits the job; none by default. */
  readonly error?: Schema.Codec<E, unknown> | undefined
  /** How payloads become bytes, in place of JSON by the payload schema. */
  readonly codec?: Codec<P> | undefined
  /** Version of the payload's shape, 1 to 2^31-1. Default 1. A worker is never given a version above its own. */
  readonly version?: number | undefined
  /**
   * From the JSON of version n to the JSON of version n + 1, by n. A payload with a gap in the chain is parked as
   * `undecodable`. With a `codec` of your own they go from bytes to bytes.
   */
  readonly upcast?: Upcasts | undefined
  /** Other kinds this task also answers to, for renames. */
  readonly aliases?: ReadonlyArray<string> | undefined
  /** The names its steps may use; the compiler checks them. A changed set needs a mapping. */
  readonly steps?: ReadonlyArray<Steps> | undefined
  readonly stepMappings?: ReadonlyArray<StepMapping> | undefined
  /** A name, or a definition that a worker applies at its start. Default `default`. */
  readonly queue?: string | Queue | undefined
  /** The budgets a job is charged to: all of them admit it, or none. A worker applies the definitions at its start. */
  readonly rates?: ReadonlyArray<RateClass<P>> | undefined
  /** The limits of scope `key` its jobs count in; limits of other scopes are only applied at a worker's start. */
  readonly limits?: ReadonlyArray<ConcurrencyLimit<P>> | undefined
  /** Whose turn a job takes inside its queue: usually a tenant. Default `""`. */
  readonly partitionKey?: ((payload: P) => string) | undefined
  readonly uniqueKey?: ((payload: P) => string | Uint8Array) | undefined
  readonly priority?: number | undefined
  /** Default: exponential from 1 s to 1 h, 20 % jitter. */
  readonly retry?: RetryPolicy | undefined
  /** Failures before the job is archived. Default 25. */
  readonly maxAttempts?: number | undefined
  /** Crashes before the job is quarantined. Default 3. */
  readonly crashLimit?: number | undefined
  /** Bounds one attempt. */
  readonly timeout?: Duration.Input | undefined
  /**
   * Bounds the body of each step, at least 1 ms; see the step's own option `timeout`, which replaces it. Above `timeout` it
   * is met only by jobs that were enqueued with a longer one. Refused where `steps` is empty. Default none.
   */
  readonly stepTimeout?: Duration.Input | undefined
  /**
   * Bounds the time in which an attempt makes no progress, at least 1 ms: starts or ends no step, saves no position,
   * reports no progress and puts no output. Waiting for the store is not counted. Past it the attempt is interrupted and
   * has timed out, with the error `ProgressStalled`. Above `timeout` it is met only by jobs that were enqueued with a
   * longer one. Default none.
   */
  readonly stallTimeout?: Duration.Input | undefined
  /** Bounds the job, counted from the later of enqueue and due time. */
  readonly deadline?: Duration.Input | undefined
  /** Bounds the wait for an attempt. */
  readonly queueTimeout?: Duration.Input | undefined
  /** How long the completed job is kept. Default 1 day; zero deletes it at success. */
  readonly retention?: Duration.Input | undefined
  /** False for errors that are no failures: the job goes back without consuming an attempt. Default: all are failures. */
  readonly isFailure?: ((error: E) => boolean) | undefined
  /**
   * What becomes of the job, for every tag of `error`: an entry of `OnError`, or a function of the error to one. None may
   * be missing. In place of `isFailure`, never beside it.
   */
  readonly onError?: NoInfer<OnErrors<E>> | undefined
}

/**
 * What a handler may fail with beside the task's own errors: refusals of steps and of jobs it enqueues, SQL faults of its
 * own queries, and an outage of the store, which consumes no attempt. Where the compiler says that an error is not
 * assignable to this, the task's `error` does not declare it.
 */
export type AttemptRefusal = StepRefusal | EnqueueRefusal | SqlError

export interface Task<Kind extends string, P, S, E, Steps extends string> {
  readonly kind: Kind
  readonly definition: TaskDefinition

  /** Stores one job. Inside an open transaction of the application's client it joins it. */
  readonly enqueue: (
    payload: P,
    options?: EnqueueOptions
  ) => Effect.Effect<JobId, EnqueueRefusal | CodecError, Producer>
  /** Stores up to 10,000 jobs, all or none. */
  readonly enqueueAll: (
    payloads: Iterable<P>,
    options?: EnqueueOptions | ((payload: P, index: number) => EnqueueOptions)
  ) => Effect.Effect<ReadonlyArray<JobId>, EnqueueRefusal | CodecError, Producer>
  /**
   * Waits for the job's end and answers as its handler did: with the result, or with the task's own error. Every other
   * end is `JobEnded`; a job that its success deletes (retention zero) is `NotFound`.
   */
  readonly await: (
    id: string,
    options?: AwaitOptions
  ) => Effect.Effect<S, E | JobEnded | NotFound | CodecError | Invalid, Inspect>
  /** The stored result; none while the job is unfinished, or when it has none. */
  readonly result: (
    id: string
  ) => Effect.Effect<Option.Option<S>, NotFound | StoreUnavailable | CodecError | Invalid, Inspect>
  /** The stored form of a job, unsent: to enqueue jobs of several tasks as one batch through `Producer`. */
  readonly envelope: (payload: P, options?: EnqueueOptions) => Effect.Effect<Envelope, Invalid | CodecError>

  /** The layer that lets a worker run this task. What the handler needs beside the attempt's services is taken here. */
  readonly toLayer: <R>(
    handler: (payload: P) => Effect.Effect<S, E | AttemptRefusal, R>
  ) => Layer.Layer<Handler<Kind>, never, Exclude<R, AttemptServices>>

  /**
   * The layer that lets a worker call `handler` for each job of this task that was archived, once the archive is durable:
   * at least once, under a key that stays the same, and again after it fails. Throws an `Invalid` for an option out of
   * its bounds.
   */
  readonly onDeath: <R>(
    handler: (death: Death<P, E>) => Effect.Effect<unknown, unknown, R>,
    options?: DeathOptions
  ) => Layer.Layer<DeathHandler<Kind>, never, Exclude<R, Scope.Scope>>

  /** `Step.run`, narrowed to the declared names. */
  readonly step: {
    <A extends Nothing, E2, R>(
      name: Steps,
      body: Effect.Effect<A, E2, R>,
      options?: StepOptions
    ): Effect.Effect<void, E2 | StepRefusal, R | Step>
    <A, E2, R>(
      name: Steps,
      body: Effect.Effect<A, E2, R>,
      options: StepResultOptions<A>
    ): Effect.Effect<A, E2 | StepRefusal, R | Step>
  }
  /** `Step.sleep`, narrowed to the declared names. */
  readonly sleep: (
    name: Steps,
    duration: Duration.Input,
    options?: SleepOptions
  ) => Effect.Effect<void, StepRefusal, Step>
  /** `Cursor.run`, narrowed to the declared names. */
  readonly cursor: {
    <A extends Nothing, Position, E2, R>(
      name: Steps,
      options: CursorOptions<Position>,
      body: (position: Position, save: SavePosition<Position>) => Effect.Effect<A, E2, R>
    ): Effect.Effect<void, E2 | StepRefusal, R | Cursor>
    <A, Position, E2, R>(
      name: Steps,
      options: CursorOptions<Position> & StepResultOptions<A>,
      body: (position: Position, save: SavePosition<Position>) => Effect.Effect<A, E2, R>
    ): Effect.Effect<A, E2 | StepRefusal, R | Cursor>
  }
  /** `Once.run`, narrowed to the declared names. */
  readonly once: {
    <E2, R>(
      name: Steps,
      body: Effect.Effect<unknown, E2, R>,
      options?: OnceOptions
    ): Effect.Effect<void, E2 | StepRefusal | ForeignTransaction, R | Once | Transactional>
    <A, E2, R>(
      name: Steps,
      body: Effect.Effect<A, E2, R>,
      options: OnceOptions & StepResultOptions<A>
    ): Effect.Effect<A, E2 | StepRefusal | ForeignTransaction, R | Once | Transactional>
  }
  /** `Job.completeWith` for this task's success type. */
  readonly completeWith: <E2, R>(
    body: Effect.Effect<S, E2, R>
  ) => Effect.Effect<S, E2 | StepRefusal | ForeignTransaction, R | Job | Transactional>
}

const make = <const Kind extends string, P, S = void, E = never, const Steps extends string = string>(
  kind: Kind,
  options: TaskOptions<P, S, E, Steps>
): Task<Kind, P, S, E, Steps> => {
  const payloadCodec = options.codec === undefined
    ? Codec.json(options.payload, { kind })
    : Codec.guarded(options.codec, { kind })
  const definition = defineTask(kind, options, payloadCodec)
  const envelopeIn = envelopes(kind, definition.version, payloadCodec, options)
  return {
    kind,
    definition,
    envelope: (payload, enqueueOptions) =>
      Effect.withFiber(({ context }) => Effect.fromResult(envelopeIn(context, payload, enqueueOptions))),
    enqueue: (payload, enqueueOptions) =>
      inProducerSpan(
        kind,
        Producer.use((producer) =>
          Effect.withFiber((fiber): Effect.Effect<JobId, EnqueueRefusal | CodecError> => {
            const envelope = envelopeIn(fiber.context, payload, enqueueOptions)
            if (Result.isFailure(envelope)) return Effect.fail(envelope.failure)
            describeProduced(fiber, [envelope.success])
            return Effect.map(producer.enqueue([envelope.success]), ([enqueued]) => enqueued!.id)
          })
        )
      ),
    enqueueAll: (payloads, enqueueOptions) =>
      inProducerSpan(
        kind,
        Producer.use((producer) =>
          Effect.withFiber((fiber): Effect.Effect<ReadonlyArray<JobId>, EnqueueRefusal | CodecError> => {
            const batch: Array<Envelope> = []
            for (const payload of payloads) {
              const each = typeof enqueueOptions === "function" ? enqueueOptions(payload, batch.length) : enqueueOptions
              const envelope = envelopeIn(fiber.context, payload, each)
              if (Result.isFailure(envelope)) return Effect.fail(envelope.failure)
              batch.push(envelope.success)
            }
            if (batch.length === 0) return Effect.succeed([])
            describeProduced(fiber, batch)
            return Effect.map(producer.enqueue(batch), (stored) => stored.map((enqueued) => enqueued.id))
          })
        )
      ),
    // SAFETY: both decode with this task's own schemas, whose types are S and E.
    await: awaitEnd.bind(undefined, definition) as Task<Kind, P, S, E, Steps>["await"],
    // SAFETY: as above.
    result: resultOf.bind(undefined, definition) as Task<Kind, P, S, E, Steps>["result"],
    toLayer: (handler) => toLayer(kind, definition, handler),
    onDeath: (handler, options = {}) => onDeath(kind, definition, handler, options),
    step: Step.run,
    sleep: Step.sleep,
    cursor: Cursor.run,
    once: Once.run,
    completeWith: Job.completeWith
  }
}

/** A definition that breaks a rule throws an `Invalid` where it is made: at start, not one job at a time. */
export const Task = { make }

const toLayer = <Kind extends string, P, S, E, R>(
  kind: Kind,
  definition: TaskDefinition,
  handler: (payload: P) => Effect.Effect<S, E, R>
): Layer.Layer<Handler<Kind>, never, Exclude<R, AttemptServices>> =>
  Layer.effect(
    handlerKey(kind),
    Effect.map(Effect.context<Exclude<R, AttemptServices>>(), (context): Registration => ({
      definition,
      // SAFETY: `decodePayload` of the same definition made the payload, and the worker provides `context` together
      // with the attempt's services, which is all of R.
      run: handler as (payload: unknown) => Effect.Effect<unknown, unknown, AttemptServices>,
      context
    }))
  )
