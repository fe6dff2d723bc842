/** A span per step, inside the span of a sampled attempt. Its time includes waiting for the step's record. */
import * as Effect from "effect/Effect"

export type StepSort = "step" | "cursor" | "once" | "sleep"

export const inStepSpan = <A, E, R>(
  sort: StepSort,
  name: string,
  key: string | undefined,
  step: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.withFiber(({ cache }) =>
    cache.tracer === undefined || cache.span?.sampled !== true ? step : Effect.withSpan(step, `${sort} ${name}`, {
      captureStackTrace: false,
      attributes: { "headgate.step.name": name, ...key === undefined ? {} : { "headgate.step.key": key } }
    })
  )
