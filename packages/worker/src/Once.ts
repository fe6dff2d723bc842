/**
 * A step whose effects commit with its record. Its effect key is claimed in the same transaction and outlives the job:
 * where the key was claimed before, by whichever job, its result is answered and the body does not run.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import { type ForeignTransaction, Invalid } from "@headgate/core/Refusals"
import type { StepCall, StepRefusal } from "@headgate/core/Step"
import { isStorableText, utf8Length } from "@headgate/core/Text"
import { MAX_EFFECT_KEY_BYTES, Transactional } from "@headgate/core/Transactional"
import * as Effect from "effect/Effect"
import type { AttemptSteps } from "./AttemptSteps.ts"
import { stepTimeoutMs, within } from "./TimeLimits.ts"
import { transact } from "./Transacting.ts"

type OnceCall<A> = StepCall<A> & { readonly effectKey: string | undefined }

export const runOnce = Effect.fnUntraced(function*<A, E, R>(
  steps: AttemptSteps,
  call: OnceCall<A>,
  body: Effect.Effect<A, E, R>
): Effect.fn.Return<A, E | StepRefusal | ForeignTransaction, R | Transactional> {
  const refusal = call.effectKey === undefined ? undefined : refuseEffectKey(call.effectKey)
  if (refusal !== undefined) return yield* refusal
  const timeoutMs = yield* stepTimeoutMs(steps.attempt, call.timeout)
  const { identity, record } = yield* steps.begin(call.name, call.key, "once")
  if (record !== undefined) return yield* steps.recorded(identity, record.result, call)
  const timed = within(steps.attempt, identity, timeoutMs, body)
  return yield* Effect.ensuring(commit(steps, identity, call, timed), Effect.sync(() => steps.abandon(identity)))
})

const commit = Effect.fnUntraced(function*<A, E, R>(
  steps: AttemptSteps,
  identity: string,
  call: OnceCall<A>,
  body: Effect.Effect<A, E, R>
): Effect.fn.Return<A, E | StepRefusal | ForeignTransaction, R | Transactional> {
  yield* steps.mark(identity)
  const transactional = yield* Transactional
  const { attempt } = steps
  const { lease } = attempt.claim
  const position = steps.nextPosition()
  const mark = steps.nextMark(identity)
  const effectKey = call.effectKey ?? `${lease.jobId}${SEPARATOR}${identity}`
  const write = { lease, leaseMs: attempt.leaseMs, step: identity, position, effectKey, mark }
  let sentAt = monotonicMs()
  const done = yield* transact(attempt, body, (body) => {
    sentAt = monotonicMs()
    return transactional.once<A, E | StepRefusal, R>(write, body, (value) => steps.encode(identity, call, value))
  })
  const result = done._tag === "Already" ? done.result : undefined
  steps.stored(sentAt, mark, { step: identity, kind: "once", position, result, wakeAtMs: undefined })
  return done._tag === "Committed" ? done.value : yield* steps.recorded(identity, result, call)
})

const refuseEffectKey = (key: string): Invalid | undefined => {
  const actual = utf8Length(key)
  if (actual >= 1 && actual <= MAX_EFFECT_KEY_BYTES && isStorableText(key) && !key.includes(SEPARATOR)) return undefined
  const message =
    `an effect key is 1 to ${MAX_EFFECT_KEY_BYTES} bytes of text without NUL, U+001F or half a surrogate pair`
  return new Invalid({ field: "effectKey", message, limit: MAX_EFFECT_KEY_BYTES, actual })
}

/** In a key made of a job's id and a step: neither may hold it, nor may a key of the caller's. */
const SEPARATOR = "\u001f"
