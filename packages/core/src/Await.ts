/** The end of a job, typed: what `Task.result` and `Task.await` answer. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type { CodecError } from "./Codec.ts"
import type { JobId } from "./Ids.ts"
import { Inspect, type JobSummary } from "./Inspect.ts"
import type { NotFound, StoreUnavailable } from "./Refusals.ts"
import { isTerminal } from "./State.ts"
import type { TaskDefinition } from "./Task.ts"

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
  /** Time between two looks at the job. Default 200 ms. */
  readonly pollInterval?: Duration.Input | undefined
}

/** The stored result of a completed job; none while it is unfinished, or when it was stored without one. */
export const resultOf = Effect.fnUntraced(function*(
  definition: TaskDefinition,
  id: JobId
): Effect.fn.Return<Option.Option<unknown>, NotFound | StoreUnavailable | CodecError, Inspect> {
  const inspect = yield* Inspect
  const stored = yield* inspect.result(id)
  return stored === undefined
    ? Option.none()
    : Option.some(yield* Effect.fromResult(definition.success.decode(stored.bytes)))
})

/** Looks at the job until it has ended. An outage of the store is waited out. */
export const awaitEnd = Effect.fnUntraced(function*(
  definition: TaskDefinition,
  id: JobId,
  options: AwaitOptions = {}
): Effect.fn.Return<unknown, unknown, Inspect> {
  const inspect = yield* Inspect
  const again = Schedule.spaced(
    Duration.max(Duration.fromInputUnsafe(options.pollInterval ?? 200), Duration.millis(10))
  )
  const look = Effect.retry(inspect.job(id), { schedule: again, while: (error) => error._tag === "StoreUnavailable" })
  const job = yield* Effect.repeat(look, { schedule: again, until: ({ state }) => isTerminal(state) })
  if (job.state === "completed") return Option.getOrUndefined(yield* resultOf(definition, id))
  const failure = yield* inspect.failure(id)
  if (job.state === "archived" && failure?.encoded !== undefined) {
    const error = definition.error.decode(failure.encoded)
    if (Result.isSuccess(error)) return yield* Effect.fail(error.success)
  }
  return yield* ended(job, failure?.message)
})

const ended = ({ id, reason, state }: JobSummary, message: string | undefined): JobEnded =>
  new JobEnded({
    id,
    state,
    ...(reason === undefined ? {} : { reason }),
    message: message ?? reason ?? `the job is ${state}`
  })
