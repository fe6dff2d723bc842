/**
 * Named units of progress inside one attempt, as handlers ask for them. A finished step is durable before it answers,
 * and a later attempt gets the recorded answer back without running the body again. Given to each attempt by the
 * worker; the types here say where steps may run.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import { Codec, type CodecError } from "./Codec.ts"
import { type DuplicateStep, type ForeignTransaction, Invalid } from "./Refusals.ts"
import { isStorableText, utf8Length } from "./Text.ts"
import type { Transactional } from "./Transactional.ts"

/** What a step may refuse: an identity used twice, a value that cannot be coded, a bad name or an oversized result. */
export type StepRefusal = DuplicateStep | CodecError | Invalid

/** One call of a step. Inside a loop each call needs its own `key` (at most 256 bytes). */
export interface StepCall<A> {
  readonly name: string
  readonly key: string | undefined
  /** Undefined: the task's own, if it has one. */
  readonly timeout: Duration.Input | undefined
  /** Undefined for a step that answers nothing. */
  readonly result: Codec<A> | undefined
}

/** What a step without a result schema answers. `void` alone would accept, and lose, any value. */
export type Nothing = void | undefined

export interface SleepOptions {
  readonly key?: string | undefined
}

export interface StepOptions extends SleepOptions {
  /**
   * How long the body may take, at least 1 ms; what the step waits for at the store is not counted. A cursor's time
   * starts anew with each saved position. Past it the attempt is interrupted and has timed out, with the error
   * `StepTimeout`. Default: the task's `stepTimeout`.
   */
  readonly timeout?: Duration.Input | undefined
}

export interface StepResultOptions<A> extends StepOptions {
  /** The result is stored with the step and comes back on resume. */
  readonly result: Schema.Codec<A, unknown>
}

export const MAX_STEP_NAME_BYTES = 128
export const MAX_STEP_KEY_BYTES = 256
/** Of one step result or cursor position, encoded. */
export const MAX_STEP_RESULT_BYTES = 1_048_576

/** `name`, or `name[key]`. Names are those of kinds without brackets and commas, so that no two calls share an identity. */
export const stepIdentity = (name: string, key: string | undefined): Result.Result<string, Invalid> => {
  const refusal = refuseStepName(name) ?? (key === undefined ? undefined : refuseStepKey(key))
  if (refusal !== undefined) return Result.fail(refusal)
  return Result.succeed(key === undefined ? name : `${name}[${key}]`)
}

/** The name in an identity. */
export const stepName = (identity: string): string => {
  const bracket = identity.indexOf("[")
  return bracket === -1 ? identity : identity.slice(0, bracket)
}

export const refuseStepName = (name: string): Invalid | undefined => {
  if (STEP_NAME.test(name)) return undefined
  return new Invalid({
    field: "step",
    message:
      `a step name is 1 to ${MAX_STEP_NAME_BYTES} of A-Z a-z 0-9 _ - < > / . : +, the first a letter, digit or _`,
    limit: MAX_STEP_NAME_BYTES,
    actual: utf8Length(name)
  })
}

const refuseStepKey = (key: string): Invalid | undefined => {
  const actual = utf8Length(key)
  if (actual >= 1 && actual <= MAX_STEP_KEY_BYTES && isStorableText(key)) return undefined
  const message = `a step key is 1 to ${MAX_STEP_KEY_BYTES} bytes of text without NUL or half a surrogate pair`
  return new Invalid({ field: "key", message, limit: MAX_STEP_KEY_BYTES, actual })
}

const STEP_NAME = /^[A-Za-z0-9_][A-Za-z0-9_\-<>/.:+]{0,127}$/

export class Step extends Context.Service<Step, {
  readonly run: <A, E, R>(call: StepCall<A>, body: Effect.Effect<A, E, R>) => Effect.Effect<A, E | StepRefusal, R>
  readonly sleep: (name: string, key: string | undefined, duration: Duration.Input) => Effect.Effect<void, StepRefusal>
}>()("@headgate/core/Step") {
  /** Runs `body` once per job, however often the job is attempted, unless its process dies before the record is durable. */
  static run<A extends Nothing, E, R>(
    name: string,
    body: Effect.Effect<A, E, R>,
    options?: StepOptions
  ): Effect.Effect<void, E | StepRefusal, R | Step>
  static run<A, E, R>(
    name: string,
    body: Effect.Effect<A, E, R>,
    options: StepResultOptions<A>
  ): Effect.Effect<A, E | StepRefusal, R | Step>
  static run<A, E, R>(
    name: string,
    body: Effect.Effect<A, E, R>,
    options?: Partial<StepResultOptions<A>>
  ): Effect.Effect<A, E | StepRefusal, R | Step> {
    const call = stepCall(name, options)
    return Effect.flatMap(Step, (step) => step.run(call, body))
  }

  /** Puts the job down until `duration` from now. It holds no slot and no lease meanwhile, and survives restarts. */
  static sleep(
    name: string,
    duration: Duration.Input,
    options?: SleepOptions
  ): Effect.Effect<void, StepRefusal, Step> {
    return Effect.flatMap(Step, (step) => step.sleep(name, options?.key, duration))
  }
}

/** How a cursor's body stores its next position. */
export type SavePosition<P> = (position: P) => Effect.Effect<void, CodecError | Invalid>

export interface CursorOptions<P> extends StepOptions {
  readonly schema: Schema.Codec<P, unknown>
  /** Where a fresh run starts. */
  readonly initial: P
}

export class Cursor extends Context.Service<Cursor, {
  readonly run: <A, P, E, R>(
    call: StepCall<A> & { readonly position: Codec<P>; readonly initial: P },
    body: (position: P, save: SavePosition<P>) => Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | StepRefusal, R>
}>()("@headgate/core/Cursor") {
  /**
   * A step that loops: `body` gets the last durable position and saves a new one whenever it has finished a part. An
   * attempt has one open cursor at a time.
   */
  static run<A extends Nothing, P, E, R>(
    name: string,
    options: CursorOptions<P>,
    body: (position: P, save: SavePosition<P>) => Effect.Effect<A, E, R>
  ): Effect.Effect<void, E | StepRefusal, R | Cursor>
  static run<A, P, E, R>(
    name: string,
    options: CursorOptions<P> & StepResultOptions<A>,
    body: (position: P, save: SavePosition<P>) => Effect.Effect<A, E, R>
  ): Effect.Effect<A, E | StepRefusal, R | Cursor>
  static run<A, P, E, R>(
    name: string,
    options: CursorOptions<P> & Partial<StepResultOptions<A>>,
    body: (position: P, save: SavePosition<P>) => Effect.Effect<A, E, R>
  ): Effect.Effect<A, E | StepRefusal, R | Cursor> {
    const call = { ...stepCall<A>(name, options), position: codecOf(options.schema), initial: options.initial }
    return Effect.flatMap(Cursor, (cursor) => cursor.run(call, body))
  }
}

export interface OnceOptions extends StepOptions {
  /** The key claimed with the effect; by default the job's id and the step's identity. A key of your own spans jobs. */
  readonly effectKey?: string | undefined
}

export class Once extends Context.Service<Once, {
  readonly run: <A, E, R>(
    call: StepCall<A> & { readonly effectKey: string | undefined },
    body: Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | StepRefusal | ForeignTransaction, R | Transactional>
}>()("@headgate/core/Once") {
  /**
   * A step whose database writes commit together with its record, or not at all. `body` runs in a transaction of the
   * application's own client and should do nothing but write to it: it may run again after a rollback.
   */
  static run<E, R>(
    name: string,
    body: Effect.Effect<unknown, E, R>,
    options?: OnceOptions
  ): Effect.Effect<void, E | StepRefusal | ForeignTransaction, R | Once | Transactional>
  static run<A, E, R>(
    name: string,
    body: Effect.Effect<A, E, R>,
    options: OnceOptions & StepResultOptions<A>
  ): Effect.Effect<A, E | StepRefusal | ForeignTransaction, R | Once | Transactional>
  static run<A, E, R>(
    name: string,
    body: Effect.Effect<A, E, R>,
    options?: OnceOptions & Partial<StepResultOptions<A>>
  ): Effect.Effect<A | void, E | StepRefusal | ForeignTransaction, R | Once | Transactional> {
    const effectKey = options?.effectKey
    const result = options?.result
    return Effect.flatMap(Once, (once) =>
      result === undefined
        ? once.run({ ...stepCall<void>(name, { ...options, result: undefined }), effectKey }, Effect.asVoid(body))
        : once.run({ ...stepCall<A>(name, { ...options, result }), effectKey }, body))
  }
}

const stepCall = <A>(
  name: string,
  options: StepOptions & { readonly result?: Schema.Codec<A, unknown> | undefined } | undefined
): StepCall<A> => ({
  name,
  key: options?.key,
  timeout: options?.timeout,
  result: options?.result === undefined ? undefined : codecOf(options.result)
})

// Building a codec costs more than using it, and a schema is usually a module constant.
const codecs = new WeakMap<object, unknown>()

/** The JSON codec of a schema, made once per schema. */
export const codecOf = <A>(schema: Schema.Codec<A, unknown>): Codec<A> => {
  const known = codecs.get(schema)
  // SAFETY: the entry was made from this very schema.
  if (known !== undefined) return known as Codec<A>
  const codec = Codec.json(schema)
  codecs.set(schema, codec)
  return codec
}
