import { Effect, Schema } from "effect"
import { type AttemptRefusal, Task } from "@headgate/core"
class Boom extends Schema.TaggedError<Boom>()("Boom", { shop: Schema.String }) {}
type Declared<F, E> = [Exclude<F, E | AttemptRefusal>] extends [never] ? unknown
  : { readonly "an error that the task does not declare": Exclude<F, E | AttemptRefusal> }
interface P { readonly a: string }
declare const toLayer: <R, F>(handler: ((payload: P) => Effect.Effect<void, F, R>) & Declared<F, never>) => R
toLayer(Effect.fn(function*({ a }) { if (a === "x") return; return yield* new Boom({ shop: a }) }))
toLayer(({ a }) => Effect.fail(new Boom({ shop: a })))
toLayer(({ a }) => Effect.log(a))
toLayer(Effect.fn(function*({ a }) { yield* Effect.log(a); yield* Effect.scope }))
const U = Task.make("t", { payload: Schema.Struct({ a: Schema.String }) })
U.toLayer(({ a }) => Effect.fail(new Boom({ shop: a })))
