/**
 * A worker: claims the jobs it has handlers for, runs them, keeps their leases and settles them. Built as a layer, it
 * works while the layer's scope is open, and the end of the scope is a graceful drain.
 *
 * Handlers are fibers of their own: what one fails with, dies of or leaves behind reaches no other. What JavaScript
 * reports to the process and to no fiber (a promise nobody waits for, an error thrown in a timer) is left to the
 * process, as in any program: the worker installs no handlers that would hide it. `launch` logs such a promise and lives on.
 */
import type { AnyTask, Handler, WorkerId, WorkerStore } from "@headgate/core"
import type { Invalid, StoreUnavailable } from "@headgate/core/Refusals"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { TracerEnabled } from "effect/References"
import { assemble } from "./Assembly.ts"
import { healthOf, type WorkerHealth } from "./Health.ts"
import * as Loops from "./Loops.ts"
import { type NoHandlers, type Served, servedBy } from "./Served.ts"
import type { WorkerEnd } from "./Standing.ts"
import { settingsOf, type WorkerOptions, type WorkerSettings } from "./WorkerOptions.ts"

export type WorkerError = NoHandlers | Invalid | StoreUnavailable

/** One requirement per task, so that each may be met by a layer of its own. */
type HandlersFor<Tasks extends AnyTask> = Tasks extends AnyTask ? Handler<Tasks["kind"]> : never

export class Worker extends Context.Service<Worker, {
  readonly id: WorkerId
  readonly queues: ReadonlyArray<string>
  readonly health: Effect.Effect<WorkerHealth>
  /** Take no more work, and hand back what has not started; what runs goes on. As an operator's command does. */
  readonly quiet: Effect.Effect<void>
  /** Take work again, and duties. */
  readonly resume: Effect.Effect<void>
  /**
   * Completes once the worker has drained because it was told to end, by an operator or by its `memoryLimit`. `launch`
   * ends the process then; another program closes the worker's scope, or ends.
   */
  readonly ended: Effect.Effect<WorkerEnd>
}>()("@headgate/worker/Worker") {
  /**
   * Runs the handlers it is provided with. With `tasks` it serves these alone, and the compiler asks for their handlers.
   * The policies that their tasks name are applied before the first job is asked for. Fails to start when there are none,
   * when two kinds or two policies of one name collide, when an option breaks its limit, or without the store.
   */
  static layer<Tasks extends AnyTask = never>(
    options: WorkerOptions<Tasks> = {}
  ): Layer.Layer<Worker, WorkerError, WorkerStore | HandlersFor<Tasks>> {
    return Layer.effect(this, make(options))
  }
}

const make = Effect.fnUntraced(function*<Tasks extends AnyTask>(options: WorkerOptions<Tasks>) {
  const settings = yield* Effect.fromResult(settingsOf(options))
  const ambient = yield* Effect.context<WorkerStore>()
  const served = yield* servedBy(options, settings, ambient)
  // The worker's own loops run in real time, whatever clock the application brings for its handlers, and make no spans.
  const context = ambient.pipe(
    Context.add(Clock.Clock, Clock.Clock.defaultValue()),
    Context.add(TracerEnabled, false)
  )
  return yield* Effect.provideContext(start(settings, served), context)
})

const start = Effect.fnUntraced(function*(settings: WorkerSettings, served: Served) {
  const parts = yield* assemble(settings, served)
  yield* Loops.run(parts)
  yield* Effect.logDebug(`worker ${settings.id} serves ${served.queues.join(", ")}`)
  const { standing } = parts
  return Worker.of({
    id: settings.id,
    queues: served.queues,
    health: Effect.sync(() => healthOf(parts)),
    quiet: Effect.sync(() => standing.quiet()),
    resume: Effect.sync(() => standing.resume()),
    ended: standing.ended
  })
})
