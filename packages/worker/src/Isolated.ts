/**
 * Isolated execution: the handler of a task runs in a child process, so that a segfault, an exit, an endless loop or a
 * memory leak ends that process and not the worker. The worker's side is `toLayer`, the child's program is `serve`.
 *
 * The command is fixed. The payload goes to the child and its answer comes back by the task's schemas, on file descriptor
 * 3; stdout and stderr stay free for logs. A typed failure is the task's error; a child that ends without an answer is a
 * crash. Interruption (timeout, lost lease, cancel, shutdown) reaches the handler in the child with its reason; what does
 * not stop within `killAfter` is killed, with its process group. A child whose worker dies ends by itself.
 */
import type { LogLine } from "@headgate/core/AttemptLog"
import { CodecError } from "@headgate/core/Codec"
import type { StoredError } from "@headgate/core/ErrorText"
import type { Handler } from "@headgate/core/Handler"
import { Job, Progress } from "@headgate/core/Job"
import type { ProgressUpdate } from "@headgate/core/Progress"
import { Invalid } from "@headgate/core/Refusals"
import type { Task } from "@headgate/core/Task"
import type { TrackedReport } from "@headgate/core/TrackedWork"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { MinimumLogLevel } from "effect/References"
import * as Result from "effect/Result"
import { isSeverity } from "./AttemptLog.ts"
import type { Answer, IsolatedChild } from "./IsolatedChild.ts"
import { UndecodableAnswer } from "./IsolatedCrash.ts"
import { type ChosenEnding, runFrame } from "./IsolatedFrames.ts"
import { refuseSteps } from "./IsolatedLimits.ts"
import { type IsolatedOptions, settingsOf } from "./IsolatedOptions.ts"
import * as IsolatedPool from "./IsolatedPool.ts"
import { Running } from "./StepRuntime.ts"
import { writeTracked } from "./TrackedReports.ts"

export { IsolatedCrash, UndecodableAnswer } from "./IsolatedCrash.ts"
export type { IsolatedOptions } from "./IsolatedOptions.ts"
export { type IsolatedServices, serve } from "./IsolatedServe.ts"

/**
 * The layer that lets a worker run this task in child processes: `Task.toLayer` for a handler that stands elsewhere. A
 * task that declares `steps` or `stepTimeout` is refused: the lease, under which steps are stored, stays with the worker.
 */
export const toLayer = <Kind extends string, P, S, E, Steps extends string>(
  task: Task<Kind, P, S, E, Steps>,
  options: IsolatedOptions
): Layer.Layer<Handler<Kind>, Invalid> =>
  Layer.unwrap(Effect.gen(function*() {
    const refusal = refuseSteps(task.definition)
    if (refusal !== undefined) return yield* refusal
    const settings = yield* Effect.fromResult(settingsOf(options))
    const pool = yield* IsolatedPool.make(task.kind, settings)
    return task.toLayer((payload) => run(task, pool, payload))
  }))

const run = Effect.fnUntraced(function*<Kind extends string, P, S, E, Steps extends string>(
  task: Task<Kind, P, S, E, Steps>,
  pool: IsolatedPool.IsolatedPool,
  payload: P
) {
  const job = yield* Job
  const { payload: bytes, schemaVersion } = yield* task.envelope(payload)
  const logLevel = yield* MinimumLogLevel
  const request = runFrame({ facts: job.facts, schemaVersion, logLevel }, bytes)
  const answer = yield* pool.withChild((child) => ask(child, request))
  return yield* valueOf(task, job, answer)
})

/** One job of one child. Interrupted, it ends when the child has stopped or is gone. */
const ask = Effect.fnUntraced(function*(child: IsolatedChild, request: Buffer) {
  const job = yield* Job
  const report = yield* reporting
  const said = yield* listening
  const fork = Effect.runForkWith(yield* Effect.context<never>())
  return yield* Effect.callback<Answer>((resume) => {
    child.run(request, {
      answer: (answer) => resume(Effect.succeed(answer)),
      progress: report,
      charge: ({ actual }) => void Effect.runFork(Effect.ignore(job.charge(actual))),
      extend: ({ id, ms }) => void fork(Effect.ignore(Effect.map(job.extendLease(ms), () => child.extended(id)))),
      ...said
    })
    return Effect.flatMap(job.interruption, (reason) => child.stop(Option.getOrUndefined(reason)))
  })
})

/** Reports what the child says of its progress, one at a time: of what comes meanwhile the latest counts. */
const reporting = Effect.gen(function*() {
  const progress = yield* Progress
  const fork = Effect.runForkWith(yield* Effect.context<never>())
  let next: ProgressUpdate | undefined
  let isBusy = false
  const send = (): void => {
    if (isBusy || next === undefined) return
    const update = next
    next = undefined
    isBusy = true
    fork(Effect.ignore(progress.report(update))).addObserver(() => {
      isBusy = false
      send()
    })
  }
  return (update: ProgressUpdate): void => {
    next = update
    send()
  }
})

/** What the child logs goes to the loggers of its attempt, as if the handler had logged it here, and what it tracks to the store. */
const listening = Effect.gen(function*() {
  const running = yield* Running
  const fork = Effect.runForkWith(yield* Effect.context<never>())
  return {
    log: ({ annotations, level, message }: LogLine): void => {
      if (isSeverity(level)) fork(Effect.annotateLogs(Effect.logWithLevel(level)(message), annotations))
    },
    tracked: (report: TrackedReport): void => {
      if (running !== undefined) Effect.runFork(writeTracked(running.attempt, running.stores.progress, report))
    }
  }
})

const valueOf = <Kind extends string, P, S, E, Steps extends string>(
  task: Task<Kind, P, S, E, Steps>,
  job: Job["Service"],
  answer: Answer
): Effect.Effect<S, E | CodecError | Invalid> => {
  switch (answer._tag) {
    case "Success":
      // SAFETY: decoded with this task's own success schema.
      return decoded("result", task.definition.success.decode(answer.bytes)) as Effect.Effect<S>
    case "Failure":
      // SAFETY: decoded with this task's own error schema.
      return Effect.flatMap(
        decoded("error", task.definition.error.decode(answer.bytes)),
        (error) => Effect.fail(error as E)
      )
    case "Unencodable": {
      const { message, path } = answer
      const where = path === undefined ? {} : { path }
      return Effect.fail(new CodecError({ direction: "encode", message, kind: task.kind, ...where }))
    }
    case "Refused":
      return Effect.fail(new Invalid(answer.refusal))
    case "Defect":
      return Effect.die(thrown(answer.error))
    case "Interrupted":
      return Effect.die(new UndecodableAnswer({ message: "the child stopped the job, though nobody told it to" }))
    case "Ending":
      return chosen(job, answer.ending)
    case "Crash":
      return Effect.die(answer.error)
  }
}

const decoded = (what: string, result: Result.Result<unknown, CodecError>): Effect.Effect<unknown> =>
  Result.isSuccess(result) ? Effect.succeed(result.success) : Effect.die(
    new UndecodableAnswer({
      message: `the ${what} that the child answered does not fit the task's schema: ${faultOf(result.failure)}`
    })
  )

const faultOf = ({ message, path }: CodecError): string => path === undefined ? message : `${message} (at ${path})`

/** What the handler threw in the child, as far as an error can travel. */
const thrown = ({ message, tag, text }: StoredError): Error => {
  const error = new Error(message)
  error.name = tag
  error.stack = text
  return error
}

const chosen = (job: Job["Service"], ending: ChosenEnding): Effect.Effect<never> => {
  switch (ending._tag) {
    case "Snooze":
      return job.snooze(ending.ms ?? Number.NaN)
    case "Skip":
      return job.skip(ending.reason)
    case "Revoke":
      return job.revoke
    case "Release":
      return job.release
    case "RateLimited":
      return job.rateLimited(
        ending.retryAfterMs === undefined ? undefined : { retryAfter: ending.retryAfterMs ?? Number.NaN }
      )
  }
}
