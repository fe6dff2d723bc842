/**
 * How a task's handler reaches the worker: one context entry per kind. A layer made by `Task.toLayer` adds the entry;
 * the worker takes every entry of the context it is built in.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { AttemptServices } from "./Job.ts"
import type { TaskDefinition } from "./TaskDefinition.ts"

/** Marks in the type of a context that it holds the handler of a kind. */
export interface Handler<Kind extends string> {
  readonly _: unique symbol
  readonly kind: Kind
}

export interface Registration {
  readonly definition: TaskDefinition
  readonly run: (payload: unknown) => Effect.Effect<unknown, unknown, AttemptServices>
  /** Services of the handler's own, captured where its layer was built. */
  readonly context: Context.Context<never>
}

const PREFIX = "@headgate/core/Handler/"

export const handlerKey = <Kind extends string>(kind: Kind): Context.Service<Handler<Kind>, Registration> =>
  Context.Service<Handler<Kind>, Registration>(`${PREFIX}${kind}`)

/** Every handler in a context. */
export const handlersIn = (context: Context.Context<never>): ReadonlyArray<Registration> => {
  const found: Array<Registration> = []
  for (const [key, value] of context.mapUnsafe) {
    // SAFETY: only `handlerKey` makes keys of this prefix, and it types their value.
    if (key.startsWith(PREFIX)) found.push(value as Registration)
  }
  return found
}
