/**
 * A worker: claims the jobs it has handlers for, runs them, keeps their leases and settles them. Built as a layer, it
 * works while the layer's scope is open, and the end of the scope is a graceful drain.
 *
 * Handlers are fibers of their own: what one fails with, dies of or leaves behind reaches no other. What JavaScript
 * reports to the process and to no fiber (a promise nobody waits for, an error thrown in a timer) is left to the
 * process, as in any program: the worker installs no handlers that would hide it.
 */
import type { AnyTask, Handler, WorkerId, WorkerStore } from "@headgate/core"
import { DeathCallbacks } from "@headgate/core/DeathCallbacks"
import { deathHandlersIn, type DeathRegistration } from "@headgate/core/DeathHandler"
import { Duties } from "@headgate/core/Duties"
import { Telemetry } from "@headgate/core/Events"
import { Gate } from "@headgate/core/Gate"
import { handlersIn, type Registration } from "@headgate/core/Handler"
import { Heartbeat } from "@headgate/core/Heartbeat"
import { checkKindCollisions } from "@headgate/core/Kind"
import { Leases } from "@headgate/core/Leases"
import { Policies } from "@headgate/core/Policies"
import { Invalid, type StoreUnavailable } from "@headgate/core/Refusals"
import { Wakeups } from "@headgate/core/Wakeups"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import { TracerEnabled } from "effect/References"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Admission } from "./Admission.ts"
import { AttemptContexts } from "./AttemptContexts.ts"
import { DeathCalls } from "./DeathCallbacks.ts"
import { Dispatch } from "./Dispatch.ts"
import { Drain } from "./Drain.ts"
import * as Housekeeping from "./Housekeeping.ts"
import { InFlight, leaseCapacity } from "./InFlight.ts"
import { LaunchedProcess } from "./LaunchedProcess.ts"
import * as MemoryWatch from "./MemoryWatch.ts"
import { Outage } from "./Outage.ts"
import { Reporter } from "./Reporter.ts"
import { Settler } from "./Settler.ts"
import { Standing, type WorkerEnd } from "./Standing.ts"
import * as StepStores from "./StepStores.ts"
import { Stuck } from "./Stuck.ts"
import { settingsOf, type WorkerOptions, type WorkerSettings } from "./WorkerOptions.ts"

/** The worker was given no handler: a layer made by `Task.toLayer` must be provided to it. `missing` names tasks without. */
export class NoHandlers extends Schema.TaggedError<NoHandlers>()("NoHandlers", {
  message: Schema.String,
  missing: Schema.Array(Schema.String)
}) {}

export type WorkerError = NoHandlers | Invalid | StoreUnavailable

export interface WorkerHealth {
  /**
   * `degraded`: a call of the store fails, or handlers do not stop. `stuck`: all slots are taken by such handlers, and
   * only a restart helps. `quiet`: it was told to take no work for now. `draining`: it takes no more work before its end.
   */
  readonly status: "ok" | "degraded" | "stuck" | "quiet" | "draining"
  readonly running: number
  readonly buffered: number
  /** Ended attempts whose end the store has not confirmed. */
  readonly settling: number
  /** Handlers that were told to stop and still run. */
  readonly zombies: number
  readonly concurrency: number
  /** Operations of the store that failed when last tried. */
  readonly failing: ReadonlyArray<string>
}

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
  const registrations = yield* registrationsFor(options, ambient)
  const deaths = yield* deathHandlersFor(options, ambient)
  // The worker's own loops run in real time, whatever clock the application brings for its handlers, and make no spans.
  const context = ambient.pipe(
    Context.add(Clock.Clock, Clock.Clock.defaultValue()),
    Context.add(TracerEnabled, false)
  )
  return yield* Effect.provideContext(start(settings, registrations, deaths), context)
})

const start = Effect.fnUntraced(function*(
  settings: WorkerSettings,
  registrations: ReadonlyArray<Registration>,
  deaths: ReadonlyArray<DeathRegistration>
) {
  const context = yield* Effect.context<WorkerStore>()
  const queues = settings.queues ?? [...new Set(registrations.map(({ definition }) => definition.queue))]
  const kinds = registrations.flatMap(({ definition: { aliases, kind, version } }) =>
    [kind, ...aliases].map((name) => ({ kind: name, version }))
  )
  const reporter = new Reporter(settings.id, yield* Telemetry, context)
  const outage = new Outage(reporter)
  const inFlight = new InFlight(settings)
  const stuck = new Stuck({ settings, context, inFlight, reporter })
  const { concurrency: capacity, id: worker, leaseMs, maxBlockedMs } = settings
  const maxLeases = leaseCapacity(settings)
  yield* (yield* Policies).apply(registrations.flatMap(({ definition }) => definition.policies))
  const launched = yield* LaunchedProcess
  const killAfterMs = launched === undefined ? undefined : settings.shutdownGraceMs + DRAIN_MS
  const session = yield* (yield* Heartbeat).start({
    worker,
    queues,
    kinds,
    capacity,
    maxLeases,
    leaseMs,
    maxBlockedMs,
    killAfterMs
  })
  const settler = new Settler({
    leases: yield* Leases,
    context,
    inFlight,
    reporter,
    outage,
    settled: () => {
      dispatch.fill()
      admission.wake()
    },
    fingerprintClosed: (kind) => dispatch.handBackKind(kind)
  })
  const dispatch = new Dispatch({
    settings,
    inFlight,
    registrations: byName(registrations),
    session,
    contexts: new AttemptContexts(worker, yield* StepStores.make, settings.attemptLogs),
    settler,
    reporter,
    stuck,
    stuckChanged: () => standing.changed(),
    freed: () => admission.freed(),
    settledItself: () => admission.wake()
  })
  const gate = yield* Gate
  const admission = new Admission({ settings, queues, kinds, gate, inFlight, settler, dispatch, reporter, outage })
  const drain = new Drain({
    settings,
    context,
    admission,
    dispatch,
    inFlight,
    settler,
    stuck,
    begun: () => standing.changed()
  })
  const standing: Standing = new Standing({ admission, dispatch, drain, inFlight, session, reporter, launched })
  const isTaking = () => !standing.isQuiet && !drain.hasBegun
  const deathCalls = new DeathCalls({
    settings,
    registrations: deaths,
    callbacks: yield* DeathCallbacks,
    context,
    reporter,
    outage,
    isTaking
  })
  if (deaths.length > 0) yield* deathCalls.declare
  Effect.runForkWith(context)(admission.run, { uninterruptible: true })
  // Before the finalizer, so that both outlive the drain.
  yield* listen(session.lost, (lost) => dispatch.lose(lost))
  if (session.beats !== undefined) yield* listen(session.beats, (fault) => note(outage, "Heartbeat", fault))
  if (session.orders !== undefined) yield* listen(session.orders, (orders) => standing.obey(orders))
  yield* Effect.addFinalizer(() => drain.finish)
  if (deaths.length > 0) {
    yield* Effect.addFinalizer(() => deathCalls.finish)
    yield* Effect.forkScoped(deathCalls.run)
  }
  const wakeups = (yield* Wakeups).subscribe(queues, (fault) => note(outage, "Wakeups", fault))
  yield* Effect.forkScoped(Stream.runForEach(wakeups, () => Effect.sync(admission.wake)))
  if (settings.hasDuties) {
    const duties = yield* Duties
    const housekeeping = Housekeeping.run({ settings, duties, reporter, outage, wake: admission.wake })
    yield* Effect.forkScoped(standing.whileOnDuty(housekeeping))
  }
  const { memoryLimit } = settings
  if (memoryLimit !== undefined) {
    yield* MemoryWatch.watch(memoryLimit, (bytes) => {
      reporter.overMemory(bytes, memoryLimit)
      standing.drainFor("memory")
    })
  }
  // Whatever closes first: from now on nothing is claimed.
  yield* Effect.addFinalizer(() => Effect.sync(() => void drain.begin("grace")))
  launched?.join(() => void drain.begin("grace"))
  yield* Effect.logDebug(`worker ${worker} serves ${queues.join(", ")}`)
  return Worker.of({
    id: worker,
    queues,
    health: Effect.sync(() => healthOf(settings, inFlight, settler, outage, drain, standing)),
    quiet: Effect.sync(() => standing.quiet()),
    resume: Effect.sync(() => standing.resume()),
    ended: standing.ended
  })
})

/** Handles what the heartbeat says until the scope closes. */
const listen = <A>(queue: Queue.Dequeue<A>, handle: (said: A) => void) => {
  const next = Effect.map(Queue.take(queue), handle)
  return Effect.forkScoped(
    Effect.forever(Effect.catchCause(next, (cause) => Effect.logError("a heartbeat's report was not handled", cause)))
  )
}

const note = (outage: Outage, operation: string, fault: StoreUnavailable | undefined): void =>
  fault === undefined ? outage.succeeded(operation) : outage.failed(operation, Cause.fail(fault))

/** How much longer than the grace a drain may take. */
const DRAIN_MS = 6000

/** The handlers to serve: all that were provided, or those of the named tasks. */
const registrationsFor = Effect.fnUntraced(function*<Tasks extends AnyTask>(
  { tasks }: WorkerOptions<Tasks>,
  context: Context.Context<never>
) {
  const found = handlersIn(context)
  const wanted = tasks === undefined
    ? undefined
    : new Set<string>(("tasks" in tasks ? tasks.tasks : tasks).map(({ kind }) => kind))
  const served = wanted === undefined ? found : found.filter(({ definition }) => wanted.has(definition.kind))
  const known = new Set(served.map(({ definition }) => definition.kind))
  const missing = [...wanted ?? []].filter((kind) => !known.has(kind))
  if (served.length === 0 || missing.length > 0) {
    const what = missing.length > 0 ? `no handler for ${missing.join(", ")}` : "no handler"
    return yield* new NoHandlers({ message: `the worker was given ${what}`, missing })
  }
  yield* Effect.fromResult(checkKindCollisions(served.map(({ definition }) => definition)))
  return served
})

/** As the handlers: all that were provided, or those of the named tasks. */
const deathHandlersFor = Effect.fnUntraced(function*<Tasks extends AnyTask>(
  { tasks }: WorkerOptions<Tasks>,
  context: Context.Context<never>
) {
  const wanted = tasks && new Set<string>(("tasks" in tasks ? tasks.tasks : tasks).map(({ kind }) => kind))
  const found = deathHandlersIn(context).filter(({ definition }) => wanted?.has(definition.kind) ?? true)
  yield* Effect.fromResult(checkKindCollisions(found.map(({ definition }) => definition)))
  return found
})

const byName = (registrations: ReadonlyArray<Registration>): ReadonlyMap<string, Registration> =>
  new Map(registrations.flatMap((registration) => {
    const { aliases, kind } = registration.definition
    return [kind, ...aliases].map((name) => [name, registration] as const)
  }))

const healthOf = (
  { concurrency }: WorkerSettings,
  inFlight: InFlight,
  settler: Settler,
  outage: Outage,
  { hasBegun: isDraining }: Drain,
  { isQuiet }: Standing
): WorkerHealth => {
  const { buffer, held, isStuck, running, zombies } = inFlight
  const isDegraded = zombies > 0 || outage.failing.size > 0
  return {
    status: isDraining ? "draining" : isStuck ? "stuck" : isQuiet ? "quiet" : isDegraded ? "degraded" : "ok",
    running: running.size - zombies,
    buffered: buffer.length,
    settling: Math.max(0, held - buffer.length - (running.size - zombies)),
    zombies,
    concurrency,
    failing: [...outage.failing]
  }
}
