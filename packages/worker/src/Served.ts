/** What a worker serves: the handlers it was given, or those of the tasks it names, and the queues and kinds they mean. */
import type { AnyTask, WorkerStore } from "@headgate/core"
import { deathHandlersIn, type DeathRegistration } from "@headgate/core/DeathHandler"
import { handlersIn, type Registration } from "@headgate/core/Handler"
import { checkKindCollisions } from "@headgate/core/Kind"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { WorkerOptions, WorkerSettings } from "./WorkerOptions.ts"

/** The worker was given no handler: a layer made by `Task.toLayer` must be provided to it. `missing` names tasks without. */
export class NoHandlers extends Schema.TaggedError<NoHandlers>()("NoHandlers", {
  message: Schema.String,
  missing: Schema.Array(Schema.String)
}) {}

export interface Served {
  readonly registrations: ReadonlyArray<Registration>
  readonly deaths: ReadonlyArray<DeathRegistration>
  readonly queues: ReadonlyArray<string>
  /** With the highest version of a payload that can be read. Aliases are kinds of their own. */
  readonly kinds: ReadonlyArray<{ readonly kind: string; readonly version: number }>
}

export const servedBy = Effect.fnUntraced(function*<Tasks extends AnyTask>(
  { tasks }: WorkerOptions<Tasks>,
  settings: WorkerSettings,
  context: Context.Context<WorkerStore>
) {
  const wanted = tasks && new Set<string>(("tasks" in tasks ? tasks.tasks : tasks).map(({ kind }) => kind))
  const ofWanted = <A extends Registration | DeathRegistration>(found: ReadonlyArray<A>): ReadonlyArray<A> =>
    wanted === undefined ? found : found.filter(({ definition }) => wanted.has(definition.kind))
  const registrations = ofWanted(handlersIn(context))
  yield* refuseMissing(registrations, wanted)
  const deaths = ofWanted(deathHandlersIn(context))
  for (const handlers of [registrations, deaths]) {
    yield* Effect.fromResult(checkKindCollisions(handlers.map(({ definition }) => definition)))
  }
  return {
    registrations,
    deaths,
    queues: settings.queues ?? [...new Set(registrations.map(({ definition }) => definition.queue))],
    kinds: registrations.flatMap(({ definition: { aliases, kind, version } }) =>
      [kind, ...aliases].map((name) => ({ kind: name, version }))
    )
  } satisfies Served
})

const refuseMissing = (registrations: ReadonlyArray<Registration>, wanted: ReadonlySet<string> | undefined) => {
  const known = new Set(registrations.map(({ definition }) => definition.kind))
  const missing = [...wanted ?? []].filter((kind) => !known.has(kind))
  if (registrations.length > 0 && missing.length === 0) return Effect.void
  const what = missing.length > 0 ? `no handler for ${missing.join(", ")}` : "no handler"
  return Effect.fail(new NoHandlers({ message: `the worker was given ${what}`, missing }))
}
