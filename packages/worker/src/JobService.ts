/** The `Job` service of one attempt: facts about it, and the ways to end it on purpose. */
import { storedError } from "@headgate/core/ErrorText"
import type { WorkerId } from "@headgate/core/Ids"
import type { ActualCost, Job, JobFacts } from "@headgate/core/Job"
import { type Charge, MAX_CHARGE } from "@headgate/core/Leases"
import { refuseInteger, wholeMillis } from "@headgate/core/Millis"
import { MAX_SKIP_REASON_BYTES } from "@headgate/core/OnError"
import * as Outcome from "@headgate/core/Outcome"
import type { ForeignTransaction, Invalid } from "@headgate/core/Refusals"
import { streakBackoffMs } from "@headgate/core/Retry"
import type { StepRefusal } from "@headgate/core/Step"
import { cutUtf8, toStorableText } from "@headgate/core/Text"
import { traceContext } from "@headgate/core/TraceContext"
import type { Transactional } from "@headgate/core/Transactional"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type { LocalAttempt } from "./Attempt.ts"
import { completeWith } from "./Completion.ts"
import { extendLease } from "./LeaseExtension.ts"
import type { StepStores } from "./StepStores.ts"
import { trackedOf } from "./TrackedReports.ts"

type JobShape = Job["Service"]

/** One is made for every attempt, and few handlers ask: what it answers is made when asked for. */
export class JobOfAttempt implements JobShape {
  private readonly attempt: LocalAttempt
  private readonly worker: WorkerId
  private readonly stores: StepStores
  private known: JobFacts | undefined = undefined

  constructor(attempt: LocalAttempt, worker: WorkerId, stores: StepStores) {
    this.attempt = attempt
    this.worker = worker
    this.stores = stores
  }

  get facts(): JobFacts {
    return this.known ??= factsOf(this.attempt, this.worker)
  }

  get interruption(): JobShape["interruption"] {
    return Effect.sync(() => {
      const { ending } = this.attempt
      return ending?._tag === "Interrupted" ? Option.some(ending.reason) : Option.none()
    })
  }

  get revoke(): Effect.Effect<never> {
    return this.choose(Outcome.revoke)
  }

  get release(): Effect.Effect<never> {
    return this.choose(Outcome.released)
  }

  snooze(duration: Duration.Input): Effect.Effect<never> {
    return this.choose(afterPause("duration", duration, (ms) => Outcome.snooze(ms)))
  }

  skip(reason: string): Effect.Effect<never> {
    return this.choose(Outcome.skip(toStorableText(cutUtf8(reason, MAX_SKIP_REASON_BYTES))))
  }

  charge(actual: number | ActualCost): Effect.Effect<void, Invalid> {
    return Effect.suspend(() => {
      const said = typeof actual === "number" ? { actual } : toCharge(actual)
      const refusal = refuseInteger("actual", said.actual, 0, MAX_CHARGE)
      if (refusal !== undefined) return Effect.fail(refusal)
      // The last word on a bucket counts: what speaks of the same or fewer is dropped, so a loop does not pile them up.
      const kept = this.attempt.charges?.filter((earlier) => !covers(said, earlier)) ?? []
      this.attempt.charges = [...kept, said]
      return Effect.void
    })
  }

  rateLimited(options?: { readonly retryAfter?: Duration.Input | undefined }): Effect.Effect<never> {
    if (options?.retryAfter === undefined) {
      return this.choose(Outcome.rateLimited({ delayMs: streakBackoffMs(this.attempt.claim.streak + 1) }))
    }
    return this.choose(afterPause("retryAfter", options.retryAfter, (ms) => Outcome.pushedBack(ms)))
  }

  completeWith<A, E, R>(
    body: Effect.Effect<A, E, R>
  ): Effect.Effect<A, E | StepRefusal | ForeignTransaction, R | Transactional> {
    const completed = completeWith(this.attempt, body)
    return Effect.suspend(() => {
      const { work } = this.attempt
      return work === undefined ? completed : Effect.andThen(work.idle, completed)
    })
  }

  extendLease(duration: Duration.Input): Effect.Effect<void, Invalid> {
    return extendLease(this.attempt, this.stores.leases, duration)
  }

  track<A, E, R>(name: string, effect: Effect.Effect<A, E, R>): Effect.Effect<Fiber.Fiber<A, E>, E | Invalid, R> {
    return Effect.suspend(() => trackedOf(this.attempt, this.stores.progress).track(name, effect))
  }

  private choose(outcome: Outcome.Outcome): Effect.Effect<never> {
    return this.attempt.end({ _tag: "Chosen", outcome })
  }
}

const toCharge = ({ actual, class: named, key }: ActualCost): Charge => ({
  class: typeof named === "string" ? named : named.name,
  key,
  actual
})

const covers = (later: Charge, earlier: Charge): boolean =>
  (later.class === undefined || later.class === earlier.class) &&
  (later.key === undefined || later.key === earlier.key)

/** These have no failure channel: a duration that is none ends the job for good, with the refusal as its error. */
const afterPause = (
  field: string,
  duration: Duration.Input,
  outcome: (ms: number) => Outcome.Outcome
): Outcome.Outcome => {
  const ms = wholeMillis(field, duration)
  return Result.isFailure(ms) ? Outcome.fatal(storedError(ms.failure)) : outcome(ms.success)
}

const factsOf = ({ claim, definition }: LocalAttempt, worker: WorkerId): JobFacts => ({
  id: claim.lease.jobId,
  kind: definition.kind,
  queue: claim.queue,
  partitionKey: claim.partitionKey,
  attempt: claim.attempt,
  maxAttempts: claim.maxAttempts,
  crashAttempt: claim.crashAttempt,
  fence: claim.lease.fence,
  worker,
  deadlineAtMs: claim.deadlineAtMs,
  headers: claim.headers,
  trace: traceContext(claim.headers)
})
