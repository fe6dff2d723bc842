/**
 * OpenTelemetry for a program that enqueues or runs jobs: `Otel.layer` beneath its producers and workers. Everything is
 * handed on to `NodeSdk` of `@effect/opentelemetry`, but for the sampling of traces: what is not kept must cost nothing.
 */
import * as NodeSdk from "@effect/opentelemetry/NodeSdk"
import type { Resource } from "@effect/opentelemetry/Resource"
import { Invalid } from "@headgate/core/Refusals"
import { BatchSpanProcessor, type Sampler, type SpanExporter } from "@opentelemetry/sdk-trace-base"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import type { LazyArg } from "effect/Function"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"
import * as Durations from "./Durations.ts"
import { sampledTracer } from "./SampledTracer.ts"
import { Sampling } from "./Sampling.ts"

/** All that `NodeSdk` takes, and: */
export interface Options extends NodeSdk.Configuration {
  /** `service.name` of the resource. Default: `OTEL_SERVICE_NAME`. */
  readonly serviceName?: string | undefined
  /** Gets the spans in batches. For anything else give a `spanProcessor`. Without either nothing is traced. */
  readonly spanExporter?: SpanExporter | undefined
  /**
   * The part of all traces that is kept, 0 to 1, where neither a parent nor the span that enqueued the job decides.
   * Default: what `OTEL_TRACES_SAMPLER` says, all without. A sampler in `tracerConfig` takes the place of all this.
   */
  readonly sampleRatio?: number | undefined
}

/**
 * Traces, metrics and logs, as far as the options name where they go: `spanExporter` or `spanProcessor`, `metricReader`,
 * `logRecordProcessor`. Register a context manager, where an instrumentation needs one, before the layer is built.
 */
export const layer = <E = never, R = never>(
  options: LazyArg<Options> | Effect.Effect<Options, E, R>
): Layer.Layer<Resource, E | Invalid | Config.ConfigError, R> =>
  Layer.unwrap(Effect.gen(function*() {
    const given = yield* Effect.isEffect(options) ? options : Effect.sync(options)
    const config = configurationOf(given)
    const ratio = given.tracerConfig?.sampler === undefined ? yield* ratioOf(given) : undefined
    const isSampled = processors(config).length > 0 && ratio !== undefined
    return endingWell(isSampled ? sampledLayer(config, ratio) : NodeSdk.layer(() => config))
  }))

/** What cannot be exported at the end is lost, and no fault of the program that ends. */
const endingWell = <A>(layer: Layer.Layer<A>): Layer.Layer<A> =>
  Layer.effectContext(Effect.gen(function*() {
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer((exit) =>
      Effect.catchCause(
        Scope.close(scope, exit),
        (cause) => Effect.logWarning("The last telemetry could not be exported", cause)
      )
    )
    return yield* Layer.buildWithScope(layer, scope)
  }))

/**
 * The histogram `messaging.process.duration`, in seconds: attempts by queue, kind and outcome. It costs about a microsecond
 * an attempt, so it is a layer of its own, beneath workers and above the `Telemetry` that they have besides.
 */
export const layerDurations: Layer.Layer<never> = Durations.layer

/** The sampling of `layer` for a provider that is set up elsewhere: there it is asked for each span. `ratio` is 0 to 1. */
export const sampler = (ratio: number): Sampler => new Sampling(ratio).sampler

const sampledLayer = (config: NodeSdk.Configuration, ratio: number): Layer.Layer<Resource> => {
  const sampling = new Sampling(ratio, config.tracerConfig?.idGenerator)
  const tracerConfig = { ...config.tracerConfig, sampler: sampling.sampler, idGenerator: sampling.ids }
  return Layer.effect(Tracer.Tracer, Effect.map(Tracer.Tracer, (inner) => sampledTracer(inner, sampling))).pipe(
    Layer.provideMerge(NodeSdk.layer(() => ({ ...config, tracerConfig })))
  )
}

const configurationOf = ({ serviceName, spanExporter, ...config }: Options): NodeSdk.Configuration => ({
  ...config,
  ...serviceName === undefined ? {} : { resource: { ...config.resource, serviceName } },
  ...spanExporter === undefined ? {} : { spanProcessor: [new BatchSpanProcessor(spanExporter), ...processors(config)] }
})

const processors = ({ spanProcessor = [] }: NodeSdk.Configuration) => [spanProcessor].flat()

/** Undefined: a sampler that the SDK makes by itself. */
const ratioOf = ({ sampleRatio }: Options): Effect.Effect<number | undefined, Invalid | Config.ConfigError> => {
  if (sampleRatio !== undefined) return checked(sampleRatio)
  return Effect.gen(function*() {
    const name = Option.getOrElse(yield* Config.option(Config.String("OTEL_TRACES_SAMPLER")), () => ALWAYS)
    if (name === ALWAYS) return 1
    if (name !== "parentbased_traceidratio") return undefined
    return yield* checked(yield* Config.Number("OTEL_TRACES_SAMPLER_ARG").pipe(Config.withDefault(1)))
  })
}

const checked = (ratio: number): Effect.Effect<number, Invalid> =>
  ratio >= 0 && ratio <= 1
    ? Effect.succeed(ratio)
    : Effect.fail(new Invalid({ field: "sampleRatio", message: `sampleRatio is 0 to 1, not ${ratio}` }))

const ALWAYS = "parentbased_always_on"
