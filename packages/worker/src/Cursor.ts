/** A step that loops: its body starts from the last position that was stored, and stores a new one as it goes. */
import type { Codec } from "@headgate/core/Codec"
import { refuseOpenTransaction } from "@headgate/core/OpenTransaction"
import { Invalid } from "@headgate/core/Refusals"
import type { SavePosition, StepCall, StepRefusal } from "@headgate/core/Step"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type AttemptSteps, describe, encodeWithin } from "./AttemptSteps.ts"
import { between, stepTimeoutMs, within } from "./TimeLimits.ts"

type CursorCall<A, P> = StepCall<A> & { readonly position: Codec<P>; readonly initial: P }
type CursorBody<A, P, E, R> = (position: P, save: SavePosition<P>) => Effect.Effect<A, E, R>

export const runCursor = Effect.fnUntraced(function*<A, P, E, R>(
  steps: AttemptSteps,
  call: CursorCall<A, P>,
  body: CursorBody<A, P, E, R>
): Effect.fn.Return<A, E | StepRefusal, R> {
  yield* refuseOpenTransaction("cursor")
  const timeoutMs = yield* stepTimeoutMs(steps.attempt, call.timeout)
  const { identity, record } = yield* steps.begin(call.name, call.key, "cursor")
  if (record !== undefined) return yield* steps.recorded(identity, record.result, call)
  // A job has room for one position.
  if (steps.openCursor !== undefined) return yield* alreadyOpen(identity, steps.openCursor)
  steps.openCursor = identity
  const timed: CursorBody<A, P, E, R> = (position, save) =>
    within(steps.attempt, identity, timeoutMs, Effect.suspend(() => body(position, save)))
  return yield* Effect.ensuring(answer(steps, identity, call, timed), Effect.sync(() => close(steps, identity)))
})

const answer = Effect.fnUntraced(function*<A, P, E, R>(
  steps: AttemptSteps,
  identity: string,
  call: CursorCall<A, P>,
  body: CursorBody<A, P, E, R>
): Effect.fn.Return<A, E | StepRefusal, R> {
  const position = yield* startOf(steps, identity, call)
  yield* steps.mark(identity)
  const save: SavePosition<P> = Effect.fnUntraced(function*(next) {
    yield* refuseOpenTransaction("position")
    if (steps.openCursor !== identity) return yield* ended(identity)
    const bytes = yield* encodeWithin(call.position, next, "position", `the position of cursor ${identity}`)
    yield* between(steps.attempt, identity, steps.write({ cursor: { step: identity, bytes } }))
  })
  const value = yield* body(position, save)
  const result = yield* steps.encode(identity, call, value)
  steps.openCursor = undefined
  yield* steps.record(identity, "cursor", result)
  return value
})

const startOf = <A, P>(steps: AttemptSteps, identity: string, call: CursorCall<A, P>): Effect.Effect<P> => {
  if (steps.cursor?.step !== identity) return Effect.succeed(call.initial)
  const position = call.position.decode(steps.cursor.bytes)
  return Result.isSuccess(position)
    ? Effect.succeed(position.success)
    : steps.stale(`the stored position of cursor ${identity} does not fit its schema: ${describe(position.failure)}`)
}

const close = (steps: AttemptSteps, identity: string): void => {
  if (steps.openCursor === identity) steps.openCursor = undefined
  steps.abandon(identity)
}

const alreadyOpen = (identity: string, open: string): Invalid =>
  new Invalid({ field: "cursor", message: `cursor ${identity} cannot open while ${open} is open: one at a time` })

const ended = (identity: string): Invalid =>
  new Invalid({ field: "cursor", message: `cursor ${identity} has ended: its position can no longer be saved` })
