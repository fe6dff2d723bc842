/** How long attempts take, by queue, kind and outcome: the histogram that OpenTelemetry has for processed messages. */
import { type Event, Telemetry } from "@headgate/core/Events"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"

type Ended = Extract<Event, { readonly _tag: "JobEnded" }>

const durations = Metric.histogram("messaging.process.duration", {
  description: "Time from the start of an attempt until its handler has ended",
  attributes: { unit: "s", "messaging.system": "headgate", "messaging.operation.name": "attempt" },
  boundaries: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600]
})

/** Listens beside the telemetry that is there already. */
export const layer: Layer.Layer<never> = Layer.effect(
  Telemetry,
  Effect.gen(function*() {
    const others = yield* Telemetry
    const context = yield* Effect.context<never>()
    const known = new Map<string, Metric.Histogram<number>>()
    const of = ({ kind, outcome, queue }: Ended): Metric.Histogram<number> => {
      const name = `${queue}\n${kind}\n${outcome}`
      const found = known.get(name)
      if (found !== undefined) return found
      const made = Metric.withAttributes(durations, {
        "messaging.destination.name": queue,
        "headgate.job.kind": kind,
        "headgate.attempt.outcome": outcome
      })
      known.set(name, made)
      return made
    }
    return Telemetry.of({
      isListening: true,
      emit: (event) => {
        if (event._tag === "JobEnded") of(event).updateUnsafe(event.durationMs / 1000, context)
        if (others.isListening) others.emit(event)
      }
    })
  })
)
