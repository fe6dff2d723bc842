/** The end of a job, typed: what `Task.result` and `Task.await` answer. */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type { CodecError } from "./Codec.ts"
import { JobId } from "./Ids.ts"
import { Inspect, type JobSummary } from "./Inspect.ts"
import { wholeMillis } from "./Millis.ts"
import { Invalid, type NotFound, StoreUnavailable } from "./Refusals.ts"
import { isTerminal } from "./State.ts"
import type { TaskDefinition } from "./TaskDefinition.ts"

/**
 * The job ended otherwise than by success or by one of its task's own errors: cancelled, quarantined, past its deadline,
 * undecodable, or archived by an error outside the task's schema. `message` is the stored error's, or the reason.
 */
export class JobEnded extends Schema.TaggedError<JobEnded>()("JobEnded", {
  id: Schema.String,
  state: Schema.String,
  reason: Schema.optionalKey(Schema.String),
  message: Schema.String
}) {}

export interface AwaitOptions {
  /** Time between two looks at the job, at least 10 ms. Default 200 ms. */
  readonly pollInterval?: Duration.Input | undefined
}

/** The stored result of a completed job; none while it is unfinished, or when it was stored without one. */
export const resultOf = Effect.fnUntraced(function*(
  definition: TaskDefinition,
  id: string
): Effect.fn.Return<Option.Option<unknown>, NotFound | StoreUnavailable | CodecError | Invalid, Inspect> {
  const inspect = yield* Inspect
  yield* isOfTask(definition, yield* inspect.job(JobId.make(id)))
  const stored = yield* inspect.result(JobId.make(id))
  if (stored === undefined) return Option.none()
  return Option.some(yield* Effect.fromResult(definition.success.decode(stored.bytes)))
})

/** Looks at the job until it has ended. An outage of the store is waited out. */
export const awaitEnd = Effect.fnUntraced(function*(
  definition: TaskDefinition,
  id: string,
  options: AwaitOptions = {}
): Effect.fn.Return<unknown, unknown, Inspect> {
  const inspect = yield* Inspect
  const again = Schedule.spaced(yield* Effect.fromResult(wholeMillis("pollInterval", options.pollInterval ?? 200, 10)))
  const patiently = <A, E>(read: Effect.Effect<A, E, Inspect>) =>
    Effect.retry(read, { schedule: again, while: (error) => error instanceof StoreUnavailable })
  const job = yield* Effect.repeat(patiently(inspect.job(JobId.make(id))), {
    schedule: again,
    until: ({ state }) => isTerminal(state)
  })
  yield* isOfTask(definition, job)
  if (job.state === "completed") return Option.getOrUndefined(yield* patiently(resultOf(definition, id)))
  const failure = yield* patiently(inspect.failure(job.id))
  const isItsError = job.reason === "exhausted" || job.reason === "fatal" || job.reason === "skipped"
  if (isItsError && failure?.encoded !== undefined) {
    const error = definition.error.decode(failure.encoded)
    if (Result.isSuccess(error)) return yield* Effect.fail(error.success)
  }
  return yield* ended(job, failure?.message)
})

/** Another task's result could pass for this one's, where their schemas agree. */
const isOfTask = ({ aliases, kind }: TaskDefinition, job: JobSummary): Effect.Effect<void, Invalid> =>
  job.kind === kind || aliases.includes(job.kind)
    ? Effect.void
    : new Invalid({ field: "id", message: `job ${job.id} is of kind ${job.kind}, not ${kind}` })

const ended = ({ id, reason, state }: JobSummary, message: string | undefined): JobEnded =>
  new JobEnded({
    id,
    state,
    ...(reason === undefined ? {} : { reason }),
    message: message ?? reason ?? `the job is ${state}`
  })
