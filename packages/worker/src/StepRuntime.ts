/**
 * Steps as handlers get them, one set of services for each attempt. A step that an earlier attempt recorded answers from
 * its record. Otherwise its body runs after the mark is durable, and its answer is given after the record is.
 *
 * Many jobs never use steps, so nothing is read or kept before the first call.
 */
import type { Checkpoint } from "@headgate/core/Checkpoint"
import { Output, Progress } from "@headgate/core/Job"
import { Cursor, Once, Step, type StepCall, type StepRefusal } from "@headgate/core/Step"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { Attempt } from "./Attempt.ts"
import { AttemptSteps } from "./AttemptSteps.ts"
import { runCursor } from "./Cursor.ts"
import { runOnce } from "./Once.ts"
import { outputOf, progressOf } from "./Reporting.ts"
import { runSleep } from "./Sleep.ts"
import type { StepStores } from "./StepStores.ts"

/** `checkpoint` is what `prepareResume` answered: the claim's own, under the names of this build. */
export const attemptServices = (
  attempt: Attempt,
  stores: StepStores,
  checkpoint: Checkpoint | undefined
): Context.Context<Step | Cursor | Once | Progress | Output> => {
  let made: AttemptSteps | undefined
  const steps = () => made ??= new AttemptSteps(attempt, stores, checkpoint)
  return Context.make(Step, {
    run: (call, body) => runStep(steps(), call, body),
    sleep: (name, key, duration) => runSleep(steps(), name, key, duration)
  }).pipe(
    Context.add(Cursor, { run: (call, body) => runCursor(steps(), call, body) }),
    Context.add(Once, { run: (call, body) => runOnce(steps(), call, body) }),
    Context.add(Progress, progressOf(attempt, stores)),
    Context.add(Output, outputOf(attempt, stores))
  )
}

const runStep = Effect.fnUntraced(function*<A, E, R>(
  steps: AttemptSteps,
  call: StepCall<A>,
  body: Effect.Effect<A, E, R>
): Effect.fn.Return<A, E | StepRefusal, R> {
  const { identity, record } = yield* steps.begin(call.name, call.key, "step")
  if (record !== undefined) return yield* steps.recorded(identity, record.result, call)
  return yield* Effect.onExit(
    answer(steps, identity, call, body),
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
