/**
 * What a program does about a job that was archived. A layer made by `Task.onDeath` adds one context entry per kind, and
 * a worker that is given it calls the handler: after the archive is durable, at least once, and again after a failure.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { CodecError } from "./Codec.ts"
import type { DeathFacts, RecordedDeath } from "./DeathCallbacks.ts"
import { refuseInteger, wholeMillis } from "./Millis.ts"
import { Retry, type RetryPolicy } from "./Retry.ts"
import type { TaskDefinition } from "./TaskDefinition.ts"

/** One job's death, as its task's handler is told of it. */
export interface Death<P, E> extends DeathFacts {
  /** `error` as the task's own, where it is one. */
  readonly failure: E | undefined
  /** As the job had it when it died, decoded when asked for. */
  readonly payload: Effect.Effect<P, CodecError>
}

export interface DeathOptions {
  /**
   * Bounds one call, 1 ms to 1 hour. Default 30 s. A call that its worker did not survive is made again this and 15 s
   * after it began, five times at most.
   */
  readonly timeout?: Duration.Input | undefined
  /** Pauses between calls that fail. Default: exponential from 1 s to 1 h, 20 % jitter. */
  readonly retry?: RetryPolicy | undefined
  /** Calls before the death is kept as failed, for an operator to retry: 1 to 1000. Default 25, over some 14 hours. */
  readonly maxCalls?: number | undefined
  /** Calls at a time in one worker, 1 to 1000. Default 10. */
  readonly concurrency?: number | undefined
}

export interface DeathSettings {
  readonly timeoutMs: number
  readonly retry: RetryPolicy
  readonly maxCalls: number
  readonly concurrency: number
}

/** Marks in the type of a context that it holds the death handler of a kind. */
export interface DeathHandler<Kind extends string> {
  readonly _: unique symbol
  readonly deathOf: Kind
}

export interface DeathRegistration {
  readonly definition: TaskDefinition
  readonly settings: DeathSettings
  readonly run: (death: RecordedDeath) => Effect.Effect<unknown, unknown, Scope.Scope>
  /** Services of the handler's own, captured where its layer was built. */
  readonly context: Context.Context<never>
}

const PREFIX = "@headgate/core/DeathHandler/"

export const deathHandlerKey = <Kind extends string>(
  kind: Kind
): Context.Service<DeathHandler<Kind>, DeathRegistration> =>
  Context.Service<DeathHandler<Kind>, DeathRegistration>(`${PREFIX}${kind}`)

/** Every death handler in a context. */
export const deathHandlersIn = (context: Context.Context<never>): ReadonlyArray<DeathRegistration> => {
  const found: Array<DeathRegistration> = []
  for (const [key, value] of context.mapUnsafe) {
    // SAFETY: only `deathHandlerKey` makes keys of this prefix, and it types their value.
    if (key.startsWith(PREFIX)) found.push(value as DeathRegistration)
  }
  return found
}

/** `Task.onDeath`. Throws the `Invalid` of the first option that breaks its bounds. */
export const onDeath = <Kind extends string, P, E, R>(
  kind: Kind,
  definition: TaskDefinition,
  handler: (death: Death<P, E>) => Effect.Effect<unknown, unknown, R>,
  options: DeathOptions
): Layer.Layer<DeathHandler<Kind>, never, Exclude<R, Scope.Scope>> => {
  const settings = settingsOf(options)
  return Layer.effect(
    deathHandlerKey(kind),
    Effect.map(Effect.context<Exclude<R, Scope.Scope>>(), (context): DeathRegistration => ({
      definition,
      settings,
      // SAFETY: P and E are what this definition decodes, and the worker provides `context` and a scope, which is all of R.
      run: (death) =>
        handler(deathOf(definition, death) as Death<P, E>) as Effect.Effect<unknown, unknown, Scope.Scope>,
      context
    }))
  )
}

const deathOf = (definition: TaskDefinition, recorded: RecordedDeath): Death<unknown, unknown> => {
  const { encodedError, payload, schemaVersion, ...death } = recorded
  return {
    ...death,
    failure: encodedError === undefined ? undefined : Result.getOrUndefined(definition.error.decode(encodedError)),
    payload: Effect.suspend(() => Effect.fromResult(definition.decodePayload(payload, schemaVersion)))
  }
}

const settingsOf = (options: DeathOptions): DeathSettings => {
  const { concurrency = 10, maxCalls = 25, retry = patient, timeout = "30 seconds" } = options
  const timeoutMs = Result.getOrThrow(wholeMillis("timeout", timeout))
  const refusal = refuseInteger("timeout", timeoutMs, 1, MAX_TIMEOUT_MS, " ms") ??
    refuseInteger("maxCalls", maxCalls, 1, MAX_CALLS) ??
    refuseInteger("concurrency", concurrency, 1, MAX_CONCURRENCY)
  if (refusal !== undefined) throw refusal
  return { timeoutMs, retry, maxCalls, concurrency }
}

const patient = Retry.exponential({ base: "1 second", cap: "1 hour" })
const MAX_TIMEOUT_MS = 3_600_000
const MAX_CALLS = 1000
const MAX_CONCURRENCY = 1000
