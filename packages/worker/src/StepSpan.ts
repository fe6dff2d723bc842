/** A span per step, inside the span of a sampled attempt. Its time includes waiting for the step's record. */
import type { StepKind } from "@headgate/core/Checkpoint"
import * as Effect from "effect/Effect"

export const inStepSpan = <A, E, R>(
  kind: StepKind,
  name: string,
  key: string | undefined,
  step: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.withFiber(({ cache }) =>
    cache.tracer === undefined || cache.span?.sampled !== true ? step : Effect.withSpan(step, `${kind} ${name}`, {
      captureStackTrace: false,
      attributes: { "headgate.step.name": name, ...key === undefined ? {} : { "headgate.step.key": key } }
    })
  )
