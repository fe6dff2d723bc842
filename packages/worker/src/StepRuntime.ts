/**
 * Steps as handlers get them. A step that an earlier attempt recorded answers from its record. Otherwise its body runs
 * after the mark is durable, and its answer is given after the record is.
 *
 * The services are the same for every attempt and look up the one whose fiber calls them: a job that uses no steps pays
 * for one context entry.
 */
import type { Checkpoint } from "@headgate/core/Checkpoint"
import { Output, Progress } from "@headgate/core/Job"
import { refuseOpenTransaction } from "@headgate/core/OpenTransaction"
import { Cursor, Once, Step, type StepCall, type StepRefusal } from "@headgate/core/Step"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { Attempt } from "./Attempt.ts"
import { AttemptSteps } from "./AttemptSteps.ts"
import { runCursor } from "./Cursor.ts"
import { runOnce } from "./Once.ts"
import { put, report } from "./Reporting.ts"
import { runSleep } from "./Sleep.ts"
import { inStepSpan } from "./StepSpan.ts"
import type { StepStores } from "./StepStores.ts"
import { stepTimeoutMs, within } from "./TimeLimits.ts"

/** The attempt whose fiber it is. */
export const Running: Context.Reference<RunningAttempt | undefined> = Context.Reference<RunningAttempt | undefined>(
  "@headgate/worker/Running",
  { defaultValue: () => undefined }
)

export class RunningAttempt {
  readonly attempt: Attempt
  readonly stores: StepStores
  private readonly checkpoint: Checkpoint | undefined
  private made: AttemptSteps | undefined = undefined

  /** `checkpoint` is what `prepareResume` answered: the claim's own, under the names of this build. */
  constructor(attempt: Attempt, stores: StepStores, checkpoint: Checkpoint | undefined) {
    this.attempt = attempt
    this.stores = stores
    this.checkpoint = checkpoint
  }

  get steps(): AttemptSteps {
    return this.made ??= new AttemptSteps(this.attempt, this.stores, this.checkpoint)
  }
}

const running: Effect.Effect<RunningAttempt> = Effect.flatMap(
  Running,
  (running) => running === undefined ? Effect.die(new Error("this fiber runs no attempt")) : Effect.succeed(running)
)

/** Serve the attempt that `Running` names. */
export const stepServices: Context.Context<Step | Cursor | Once | Progress | Output> = Context.make(Step, {
  run: (call, body) =>
    inStepSpan("step", call.name, call.key, Effect.flatMap(running, ({ steps }) => runStep(steps, call, body))),
  sleep: (name, key, duration) =>
    inStepSpan("sleep", name, key, Effect.flatMap(running, ({ steps }) => runSleep(steps, name, key, duration)))
}).pipe(
  Context.add(Cursor, {
    run: (call, body) =>
      inStepSpan("cursor", call.name, call.key, Effect.flatMap(running, ({ steps }) => runCursor(steps, call, body)))
  }),
  Context.add(Once, {
    run: (call, body) =>
      inStepSpan("once", call.name, call.key, Effect.flatMap(running, ({ steps }) => runOnce(steps, call, body)))
  }),
  Context.add(Progress, {
    report: (update) => Effect.flatMap(running, ({ attempt, stores }) => report(attempt, stores, update))
  }),
  Context.add(Output, {
    put: (codec, value, version) =>
      Effect.flatMap(running, ({ attempt, stores }) => put(attempt, stores, codec, value, version))
  })
)

const runStep = Effect.fnUntraced(function*<A, E, R>(
  steps: AttemptSteps,
  call: StepCall<A>,
  body: Effect.Effect<A, E, R>
): Effect.fn.Return<A, E | StepRefusal, R> {
  yield* refuseOpenTransaction("step")
  const timeoutMs = yield* stepTimeoutMs(steps.attempt, call.timeout)
  const { identity, record } = yield* steps.begin(call.name, call.key, "step")
  if (record !== undefined) return yield* steps.recorded(identity, record.result, call)
  return yield* Effect.onExit(
    answer(steps, identity, call, within(steps.attempt, identity, timeoutMs, body)),
    (exit) => Exit.isSuccess(exit) ? Effect.void : Effect.sync(() => steps.abandon(identity))
  )
})

const answer = Effect.fnUntraced(function*<A, E, R>(
  steps: AttemptSteps,
  identity: string,
  call: StepCall<A>,
  body: Effect.Effect<A, E, R>
): Effect.fn.Return<A, E | StepRefusal, R> {
  yield* steps.mark(identity)
  const value = yield* body
  yield* steps.record(identity, "step", yield* steps.encode(identity, call, value))
  return value
})
