/**
 * What a worker does while its scope is open: asks for work, hears its heartbeat and the wake-ups, calls death handlers,
 * does its duties, watches its memory. Finalizers run from the last to the first: the drain begins before anything ends,
 * and what it needs ends after it.
 */
import { Duties } from "@headgate/core/Duties"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import { Wakeups } from "@headgate/core/Wakeups"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import type { Assembly } from "./Assembly.ts"
import * as Housekeeping from "./Housekeeping.ts"
import * as MemoryWatch from "./MemoryWatch.ts"
import type { Outage } from "./Outage.ts"

export const run = Effect.fnUntraced(function*(parts: Assembly) {
  const { admission, deathCalls, drain, launched, settings } = parts
  const context = yield* Effect.context<never>()
  if (deathCalls !== undefined) yield* deathCalls.declare
  Effect.runForkWith(context)(admission.run, { uninterruptible: true })
  // Before the finalizer, so that both outlive the drain.
  yield* hearHeartbeat(parts)
  yield* Effect.addFinalizer(() => drain.finish)
  if (deathCalls !== undefined) {
    yield* Effect.addFinalizer(() => deathCalls.finish)
    yield* Effect.forkScoped(deathCalls.run)
  }
  yield* hearWakeups(parts)
  if (settings.hasDuties) yield* doDuties(parts)
  if (settings.memoryLimit !== undefined) yield* watchMemory(parts, settings.memoryLimit)
  // Whatever closes first: from now on nothing is claimed.
  const begin = () => void drain.begin("grace")
  yield* Effect.addFinalizer(() => Effect.sync(begin))
  launched?.join(begin)
})

const hearHeartbeat = Effect.fnUntraced(function*({ dispatch, outage, session, standing }: Assembly) {
  yield* listen(session.lost, (lost) => dispatch.lose(lost))
  if (session.beats !== undefined) yield* listen(session.beats, (fault) => note(outage, "Heartbeat", fault))
  if (session.orders !== undefined) yield* listen(session.orders, (orders) => standing.obey(orders))
})

/** Handles what the heartbeat says until the scope closes. */
const listen = <A>(queue: Queue.Dequeue<A>, handle: (said: A) => void) => {
  const next = Effect.map(Queue.take(queue), handle)
  return Effect.forkScoped(
    Effect.forever(Effect.catchCause(next, (cause) => Effect.logError("a heartbeat's report was not handled", cause)))
  )
}

const hearWakeups = Effect.fnUntraced(function*({ admission, outage, served: { queues } }: Assembly) {
  const wakeups = (yield* Wakeups).subscribe(queues, (fault) => note(outage, "Wakeups", fault))
  yield* Effect.forkScoped(Stream.runForEach(wakeups, () => Effect.sync(admission.wake)))
})

const note = (outage: Outage, operation: string, fault: StoreUnavailable | undefined): void =>
  fault === undefined ? outage.succeeded(operation) : outage.failed(operation, Cause.fail(fault))

const doDuties = Effect.fnUntraced(function*({ admission, outage, reporter, settings, standing }: Assembly) {
  const duties = yield* Duties
  const housekeeping = Housekeeping.run({ settings, duties, reporter, outage, wake: admission.wake })
  yield* Effect.forkScoped(standing.whileOnDuty(housekeeping))
})

const watchMemory = ({ reporter, standing }: Assembly, limit: number) =>
  MemoryWatch.watch(limit, (bytes) => {
    reporter.overMemory(bytes, limit)
    standing.drainFor("memory")
  })
