/**
 * What a handler may know of, and do with, the attempt it runs in. Given to each attempt by the worker.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import type * as Option from "effect/Option"
import type * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type { Codec, CodecError } from "./Codec.ts"
import type { JobId, WorkerId } from "./Ids.ts"
import type { InterruptionReason } from "./Leases.ts"
import type { ProgressUpdate } from "./Progress.ts"
import type { ForeignTransaction, Invalid } from "./Refusals.ts"
import { codecOf, type Cursor, type Once, type Step, type StepRefusal } from "./Step.ts"
import type { TraceContext } from "./TraceContext.ts"
import type { Transactional } from "./Transactional.ts"

export interface JobFacts {
  readonly id: JobId
  readonly kind: string
  readonly queue: string
  readonly partitionKey: string
  /** Failures before this attempt: 0 on the first. */
  readonly attempt: number
  readonly maxAttempts: number
  readonly crashAttempt: number
  /** Rises with each attempt: a ready-made fencing token for systems that take one. */
  readonly fence: number
  readonly worker: WorkerId
  /** Epoch milliseconds on the store's clock. */
  readonly deadlineAtMs: number | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly trace: Option.Option<TraceContext>
}

/** What the attempt cost one rate class, or with `key` one bucket of it. */
export interface ActualCost {
  /** The class or its name. One that the job is not charged to is passed over. */
  readonly class: string | { readonly name: string }
  readonly key?: string | undefined
  readonly actual: number
}

export class Job extends Context.Service<Job, {
  readonly facts: JobFacts
  /** Why this attempt is being interrupted; none while it is not. For finalizers. */
  readonly interruption: Effect.Effect<Option.Option<InterruptionReason>>
  readonly snooze: (duration: Duration.Input) => Effect.Effect<never>
  readonly skip: (reason: string) => Effect.Effect<never>
  readonly revoke: Effect.Effect<never>
  readonly charge: (actual: number | ActualCost) => Effect.Effect<void, Invalid>
  readonly rateLimited: (options?: { readonly retryAfter?: Duration.Input | undefined }) => Effect.Effect<never>
  readonly release: Effect.Effect<never>
  readonly extendLease: (duration: Duration.Input) => Effect.Effect<void, Invalid>
  readonly track: <A, E, R>(
    name: string,
    effect: Effect.Effect<A, E, R>
  ) => Effect.Effect<Fiber.Fiber<A, E>, E | Invalid, R>
  readonly completeWith: <A, E, R>(
    body: Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | StepRefusal | ForeignTransaction, R | Transactional>
}>()("@headgate/core/Job") {
  static readonly facts: Effect.Effect<JobFacts, never, Job> = Effect.suspend(() =>
    Job.use((job) => Effect.succeed(job.facts))
  )
  static readonly interruption: Effect.Effect<Option.Option<InterruptionReason>, never, Job> = Effect.suspend(() =>
    Job.use((job) => job.interruption)
  )
  /** Ends the attempt; the job runs again after `duration`, with no attempt consumed. */
  static snooze(duration: Duration.Input): Effect.Effect<never, never, Job> {
    return Job.use((job) => job.snooze(duration))
  }
  /** Ends the job without success or retry: archived, reason `skipped`. */
  static skip(reason: string): Effect.Effect<never, never, Job> {
    return Job.use((job) => job.skip(reason))
  }
  /** Ends the job and deletes it. */
  static readonly revoke: Effect.Effect<never, never, Job> = Effect.suspend(() => Job.use((job) => job.revoke))
  /**
   * What this attempt really costs its rate classes, in the unit of their weights: a whole number, 0 to 1,000,000,000. When
   * the attempt is settled, its buckets get back, or lose, the difference to the weight charged at admission; 0 gives all
   * of it back. A number alone speaks of every bucket the job is charged to; a later word on a bucket replaces the
   * earlier one. Nothing is corrected when the attempt crashes, loses its lease or ends in a durable sleep: the estimate
   * stays charged, since nobody knows what was used.
   */
  static charge(actual: number | ActualCost): Effect.Effect<void, Invalid, Job> {
    return Job.use((job) => job.charge(actual))
  }
  /**
   * Ends the attempt because a limit elsewhere was met; no attempt is consumed. The job waits for `retryAfter`, or without
   * it for 1 s at least, growing while it repeats. `retryAfter` also closes the job's own buckets, for every job charged
   * to them, for as long (a day at most). What the attempt was charged goes back, unless `charge` said otherwise.
   */
  static rateLimited(
    options?: { readonly retryAfter?: Duration.Input | undefined }
  ): Effect.Effect<never, never, Job> {
    return Job.use((job) => job.rateLimited(options))
  }
  /** Hands the job back untouched: available at once, its place in the queue and all counters kept. */
  static readonly release: Effect.Effect<never, never, Job> = Effect.suspend(() => Job.use((job) => job.release))
  /**
   * Makes the lease last at least `duration` from now, 1 ms to a day, and answers when the store has it. For a handler
   * about to block the event loop, or to be suspended with its process, for longer than the worker would keep the lease.
   * Nothing shortens the lease again before the attempt ends: should the process die, the job waits that long for its
   * next attempt. Timeout and deadline stay as they are. A lease that is lost already ends the attempt.
   */
  static extendLease(duration: Duration.Input): Effect.Effect<void, Invalid, Job> {
    return Job.use((job) => job.extendLease(duration))
  }
  /**
   * Forks work that the attempt waits for: it is settled when its handler and all that it tracks have ended. What fails
   * or dies first decides, as if the handler had, and the rest is interrupted; so is everything when the attempt is
   * interrupted or ended on purpose. Work that was interrupted by itself is no failure.
   *
   * The failure reaches the attempt, wherever the call stands: `E` is in its type so that the compiler asks for it among
   * the task's errors. Operators see what runs, and since when, in `Inspect.tracked`. `name` is theirs: 1 to 128 bytes.
   * Refused inside an open transaction. A step's record does not wait for what its body tracks.
   */
  static track<A, E, R>(
    name: string,
    effect: Effect.Effect<A, E, R>
  ): Effect.Effect<Fiber.Fiber<A, E>, E | Invalid, R | Job> {
    return Effect.flatMap(Job, (job) => job.track(name, effect))
  }
  /** Commits `body`'s writes, its value as the job's result, and the job's success in one transaction, and ends the job. */
  static completeWith<A, E, R>(
    body: Effect.Effect<A, E, R>
  ): Effect.Effect<A, E | StepRefusal | ForeignTransaction, R | Job | Transactional> {
    return Effect.flatMap(Job, (job) => job.completeWith(body))
  }
}

export class Progress extends Context.Service<Progress, {
  readonly report: (update: ProgressUpdate) => Effect.Effect<void, Invalid>
}>()("@headgate/core/Progress") {
  /** Shows operators how far the attempt is. The latest report replaces the one before. */
  static report(update: ProgressUpdate): Effect.Effect<void, Invalid, Progress> {
    return Progress.use((progress) => progress.report(update))
  }
}

export class Output extends Context.Service<Output, {
  readonly put: <A>(codec: Codec<A>, value: A, version: number) => Effect.Effect<void, CodecError | Invalid>
}>()("@headgate/core/Output") {
  /** Publishes a value while the attempt runs. The latest replaces the one before. `version` (1) names its schema. */
  static put<A>(
    schema: Schema.Codec<A, unknown>,
    value: A,
    options?: { readonly version?: number | undefined }
  ): Effect.Effect<void, CodecError | Invalid, Output> {
    return Output.use((output) => output.put(codecOf(schema), value, options?.version ?? 1))
  }
}

/**
 * What the worker gives to every attempt: these stand in a handler's requirements and are met by no layer. The scope is
 * the attempt's own: what a handler acquires is released when it ends.
 */
export type AttemptServices = Job | Step | Cursor | Once | Progress | Output | Scope.Scope
