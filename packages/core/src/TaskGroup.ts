/** Several tasks whose handlers are given together: the type of `toLayer` names the handlers still missing. */
import type * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type { Handler } from "./Handler.ts"
import type { AttemptServices } from "./Job.ts"
import { checkKindCollisions } from "./Kind.ts"
import type { AttemptRefusal, Task } from "./Task.ts"
import type { TaskDefinition } from "./TaskDefinition.ts"

/** Any task, whatever its types. */
export interface AnyTask {
  readonly kind: string
  readonly definition: TaskDefinition
  readonly toLayer: (handler: never) => Layer.Layer<any, never, any>
}

type TaskOf<Tasks extends AnyTask, Kind extends string> = Extract<Tasks, { readonly kind: Kind }>

type HandlerOf<T> = T extends Task<any, infer P, infer S, infer E, infer _Steps>
  ? (payload: P) => Effect.Effect<S, E | AttemptRefusal, any>
  : never

export type HandlersOf<Tasks extends AnyTask> = { readonly [Kind in Tasks["kind"]]: HandlerOf<TaskOf<Tasks, Kind>> }

type Requirements<Handlers> = {
  [Kind in keyof Handlers]: Handlers[Kind] extends (payload: never) => Effect.Effect<any, any, infer R> ? R : never
}[keyof Handlers]

export interface TaskGroup<Tasks extends AnyTask> {
  readonly tasks: ReadonlyArray<Tasks>
  /** One handler per kind; a missing or misspelt kind does not compile. */
  readonly toLayer: <Handlers extends HandlersOf<Tasks>>(
    handlers: Handlers
  ) => Layer.Layer<Handler<Tasks["kind"]>, never, Exclude<Requirements<Handlers>, AttemptServices>>
}

export const TaskGroup = {
  /** Throws an `Invalid` when two kinds or aliases collide. */
  make: <const Tasks extends ReadonlyArray<AnyTask>>(...tasks: Tasks): TaskGroup<Tasks[number]> => {
    Result.getOrThrow(checkKindCollisions(tasks.map((task) => task.definition)))
    return {
      tasks,
      toLayer: <Handlers extends HandlersOf<Tasks[number]>>(handlers: Handlers) => {
        // SAFETY: the type of `handlers` has one entry per kind of the group, each fitting its task.
        const handlerOf = (kind: string) => handlers[kind as Tasks[number]["kind"]] as never
        const layers = tasks.map((task) => task.toLayer(handlerOf(task.kind)))
        // SAFETY: one layer per task, each giving its kind's handler and taking what that handler needs.
        return layers.reduce((all, layer) => Layer.merge(all, layer)) as Layer.Layer<
          Handler<Tasks[number]["kind"]>,
          never,
          Exclude<Requirements<Handlers>, AttemptServices>
        >
      }
    }
  }
}
