/** The parts of one worker, each made once and told of the others. What they do begins with `Loops.run`. */
import type { WorkerStore } from "@headgate/core"
import { DeathCallbacks } from "@headgate/core/DeathCallbacks"
import { Telemetry } from "@headgate/core/Events"
import { Gate } from "@headgate/core/Gate"
import type { Registration } from "@headgate/core/Handler"
import { Heartbeat, type HeartbeatSession } from "@headgate/core/Heartbeat"
import { Leases } from "@headgate/core/Leases"
import { Policies } from "@headgate/core/Policies"
import * as Effect from "effect/Effect"
import { Admission } from "./Admission.ts"
import { AttemptContexts } from "./AttemptContexts.ts"
import { DeathCalls } from "./DeathCallbacks.ts"
import { Dispatch } from "./Dispatch.ts"
import { Drain } from "./Drain.ts"
import { InFlight, leaseCapacity } from "./InFlight.ts"
import { LaunchedProcess } from "./LaunchedProcess.ts"
import { Outage } from "./Outage.ts"
import { Reporter } from "./Reporter.ts"
import type { Served } from "./Served.ts"
import { Settler } from "./Settler.ts"
import { Standing } from "./Standing.ts"
import * as StepStores from "./StepStores.ts"
import { Stuck } from "./Stuck.ts"
import type { WorkerSettings } from "./WorkerOptions.ts"

export interface Assembly {
  readonly settings: WorkerSettings
  readonly served: Served
  readonly session: HeartbeatSession
  readonly reporter: Reporter
  readonly outage: Outage
  readonly inFlight: InFlight
  readonly dispatch: Dispatch
  readonly admission: Admission
  readonly drain: Drain
  readonly standing: Standing
  /** Undefined when it was given no death handler. */
  readonly deathCalls: DeathCalls | undefined
  readonly launched: LaunchedProcess | undefined
}

export const assemble = Effect.fnUntraced(function*(settings: WorkerSettings, served: Served) {
  const context = yield* Effect.context<WorkerStore>()
  const { deaths, kinds, queues, registrations } = served
  const reporter = new Reporter(settings.id, yield* Telemetry, context)
  const outage = new Outage(reporter)
  const inFlight = new InFlight(settings)
  const stuck = new Stuck({ settings, context, inFlight, reporter })
  yield* (yield* Policies).apply(registrations.flatMap(({ definition }) => definition.policies))
  const launched = yield* LaunchedProcess
  const session = yield* beginHeartbeat(settings, served, launched)
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
    contexts: new AttemptContexts(settings.id, yield* StepStores.make, settings.attemptLogs),
    settler,
    reporter,
    stuck,
    stuckChanged: () => standing.changed(),
    freed: () => admission.freed(),
    settledItself: () => admission.wake()
  })
  const gate = yield* Gate
  const admission = new Admission({ settings, queues, kinds, gate, inFlight, settler, dispatch, reporter, outage })
  const begun = () => standing.changed()
  const drain = new Drain({ settings, context, admission, dispatch, inFlight, settler, stuck, begun })
  const standing: Standing = new Standing({ admission, dispatch, drain, inFlight, session, reporter, launched })
  const isTaking = () => !standing.isQuiet && !drain.hasBegun
  const callbacks = yield* DeathCallbacks
  const deathCalls = deaths.length === 0
    ? undefined
    : new DeathCalls({ settings, registrations: deaths, callbacks, context, reporter, outage, isTaking })
  return {
    settings,
    served,
    session,
    reporter,
    outage,
    inFlight,
    dispatch,
    admission,
    drain,
    standing,
    deathCalls,
    launched
  } satisfies Assembly
})

const beginHeartbeat = Effect.fnUntraced(function*(
  settings: WorkerSettings,
  { kinds, queues }: Served,
  launched: LaunchedProcess | undefined
) {
  const { concurrency, id, leaseMs, maxBlockedMs, shutdownGraceMs } = settings
  const heartbeat = yield* Heartbeat
  return yield* heartbeat.start({
    worker: id,
    queues,
    kinds,
    capacity: concurrency,
    maxLeases: leaseCapacity(settings),
    leaseMs,
    maxBlockedMs,
    killAfterMs: launched === undefined ? undefined : shutdownGraceMs + DRAIN_MS
  })
})

const byName = (registrations: ReadonlyArray<Registration>): ReadonlyMap<string, Registration> =>
  new Map(registrations.flatMap((registration) => {
    const { aliases, kind } = registration.definition
    return [kind, ...aliases].map((name) => [name, registration] as const)
  }))

/** How much longer than the grace a drain may take. */
const DRAIN_MS = 6000
