/** A task as the worker needs it, with its types erased, and the rules a definition must keep. */
import type * as Duration from "effect/Duration"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Codec, type CodecError } from "./Codec.ts"
import { MAX_ATTEMPTS_LIMIT } from "./EnqueueGuard.ts"
import { refuseName } from "./Kind.ts"
import { refuseInteger, wholeMillis, zeroOrMillis } from "./Millis.ts"
import { type ErrorRule, errorRule, refuseOnErrors } from "./OnError.ts"
import { MAX_OPAQUE_SCHEMA_VERSION } from "./Output.ts"
import type { PolicyDefinition } from "./Policies.ts"
import { Invalid } from "./Refusals.ts"
import { defaultRetry, type RetryPolicy } from "./Retry.ts"
import { refuseStepName } from "./Step.ts"
import type { StepMapping, TaskOptions } from "./Task.ts"
import { policiesOf, queueName, refusePolicies } from "./TaskPolicies.ts"
import { payloadDecoder } from "./Upcast.ts"

export interface TaskDefinition {
  readonly kind: string
  readonly aliases: ReadonlyArray<string>
  readonly version: number
  readonly queue: string
  /** Rate classes, limits and the queue, where the task names their definitions. */
  readonly policies: ReadonlyArray<PolicyDefinition>
  readonly retry: RetryPolicy
  /** Sorted; undefined when the task declares none. */
  readonly stepSet: ReadonlyArray<string> | undefined
  /** As declared: the likely order. */
  readonly steps: ReadonlyArray<string>
  readonly stepMappings: ReadonlyArray<StepMapping>
  readonly stepTimeoutMs: number | undefined
  readonly stallTimeoutMs: number | undefined
  readonly decodePayload: (bytes: Uint8Array, version: number) => Result.Result<unknown, CodecError>
  readonly success: Codec<unknown>
  readonly error: Codec<unknown>
  /** Asked about errors that the task's error schema encodes. */
  readonly onError: ErrorRule
}

/** Throws the `Invalid` of the first rule that the definition breaks. */
export const defineTask = <P, S, E, Steps extends string>(
  kind: string,
  options: TaskOptions<P, S, E, Steps>,
  payload: Codec<P>
): TaskDefinition => {
  const {
    aliases = [],
    queue = "default",
    retry = defaultRetry,
    stepMappings = [],
    steps = [],
    version = 1
  } = options
  for (const refusal of refusals(kind, options)) if (refusal !== undefined) throw refusal
  return {
    kind,
    aliases,
    version,
    queue: queueName(queue),
    policies: policiesOf(options),
    retry,
    stepSet: options.steps === undefined ? undefined : [...steps].sort(),
    steps,
    stepMappings,
    stepTimeoutMs: millisOf(options.stepTimeout),
    stallTimeoutMs: millisOf(options.stallTimeout),
    decodePayload: payloadDecoder({
      kind,
      version,
      codec: payload,
      upcasts: options.upcast ?? {},
      isJson: options.codec === undefined
    }),
    success: options.success === undefined ? erased(Schema.Void, kind) : erased(options.success, kind),
    error: options.error === undefined ? erased(Schema.Never, kind) : erased(options.error, kind),
    onError: errorRule<E>(options)
  }
}

/** What would otherwise show one job at a time. */
const refusals = <P, S, E, Steps extends string>(
  kind: string,
  options: TaskOptions<P, S, E, Steps>
): ReadonlyArray<Invalid | undefined> => [
  refuseName("kind", kind),
  ...(options.aliases ?? []).map((alias) => refuseName("aliases", alias)),
  ifGiven(options.version, (version) => refuseInteger("version", version, 1, MAX_OPAQUE_SCHEMA_VERSION)),
  ifGiven(options.queue, (queue) => refuseName("queue", queueName(queue))),
  ...refusePolicies(options),
  ifGiven(options.priority, (priority) => refuseInteger("priority", priority, -32_768, 32_767)),
  ifGiven(options.maxAttempts, (limit) => refuseInteger("maxAttempts", limit, 1, MAX_ATTEMPTS_LIMIT)),
  ifGiven(options.crashLimit, (limit) => refuseInteger("crashLimit", limit, 1, MAX_ATTEMPTS_LIMIT)),
  refuseDuration("timeout", options.timeout, wholeMillis),
  refuseDuration("stepTimeout", options.stepTimeout, wholeMillis),
  options.stepTimeout !== undefined && options.steps?.length === 0
    ? new Invalid({
      field: "stepTimeout",
      message: "stepTimeout bounds nothing: the task declares that it has no steps"
    })
    : undefined,
  refuseDuration("stallTimeout", options.stallTimeout, wholeMillis),
  refuseDuration("deadline", options.deadline, wholeMillis),
  refuseDuration("queueTimeout", options.queueTimeout, wholeMillis),
  refuseDuration("retention", options.retention, zeroOrMillis),
  ...refuseOnErrors(options),
  ...refuseSteps(options.steps ?? [], options.stepMappings ?? [])
]

const refuseSteps = (
  steps: ReadonlyArray<string>,
  mappings: ReadonlyArray<StepMapping>
): ReadonlyArray<Invalid | undefined> => {
  const targets = mappings.flatMap(({ to }) => Object.values(to).flatMap((name) => name ?? []))
  // A mapping may lead to a step set that another one maps on.
  const known = new Set([...steps, ...mappings.flatMap(({ from }) => from)])
  const lost = targets.find((name) => !known.has(name))
  return [
    ...steps.map(refuseStepName),
    ...targets.map(refuseStepName),
    new Set(steps).size === steps.length
      ? undefined
      : new Invalid({ field: "steps", message: "a step is declared twice" }),
    ifGiven(lost, (name) => new Invalid({ field: "stepMappings", message: `${name} is no declared step` }))
  ]
}

const refuseDuration = (
  field: string,
  input: Duration.Input | undefined,
  check: typeof zeroOrMillis
): Invalid | undefined => ifGiven(input, (input) => Result.getOrUndefined(Result.flip(check(field, input))))

/** Of a duration that was checked. */
const millisOf = (input: Duration.Input | undefined): number | undefined =>
  input === undefined ? undefined : Result.getOrThrow(wholeMillis("duration", input))

const ifGiven = <A>(value: A | undefined, refuse: (value: A) => Invalid | undefined): Invalid | undefined =>
  value === undefined ? undefined : refuse(value)

const erased = <A>(schema: Schema.Codec<A, unknown>, kind: string): Codec<unknown> => {
  const { decode, encode } = Codec.json(schema, { kind })
  // SAFETY: encoding checks the value against the schema, so any value may be offered.
  return { decode, encode: encode as (value: unknown) => ReturnType<typeof encode> }
}
