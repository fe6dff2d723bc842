/**
 * Renews a worker's leases from a thread with connections of its own, so that a handler that blocks the event loop loses
 * none, up to `maxBlockedMs`. The loop and the thread share their memory (`HeartbeatSlots`): a lease is renewed from the
 * moment it is tracked, also when the loop is blocked in the same turn.
 *
 * Where there can be no thread, since the client's configuration cannot be handed to one or the thread keeps dying, the
 * same beat runs in the event loop, with a warning: there a blocked loop renews nothing. It runs there as well while a
 * thread is slow to start, or a dead one is replaced.
 */
import { Heartbeat, type HeartbeatOptions, type HeartbeatSession, monotonicMs } from "@headgate/core/Heartbeat"
import { Leases, type LostLease } from "@headgate/core/Leases"
import { StoreUnavailable } from "@headgate/core/Refusals"
import type { WorkerOrders, WorkerStanding } from "@headgate/core/WorkerControl"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import { ControlSql } from "./ControlSql.ts"
import * as Loop from "./HeartbeatLoop.ts"
import * as Slots from "./HeartbeatSlots.ts"
import * as Thread from "./HeartbeatThread.ts"
import { PostgresSettings } from "./Settings.ts"
import * as WorkerRegistry from "./WorkerRegistry.ts"

/** One for the beat, two for when a connection does not answer; the one for claims is never made. */
const threadConnections = 4
const farewellMillis = 1000
const shortLeaseMillis = 10_000

const make = Effect.gen(function*() {
  const sql = yield* ControlSql
  // These two alone: the whole context would put the layer's scope in place of the session's.
  const context = Context.make(ControlSql, sql).pipe(Context.add(Leases, yield* Leases))
  const settings = { ...(yield* PostgresSettings), controlConnections: threadConnections }
  const start = Effect.fn("Heartbeat.start")(function*(options: HeartbeatOptions) {
    const registry = yield* WorkerRegistry.make(options)
    const enteredAt = yield* registry.enter
    yield* Effect.addFinalizer(() => Effect.ignore(Effect.timeout(registry.remove, farewellMillis)))
    const slots = Slots.make(options.maxLeases ?? options.capacity)
    const writer = Slots.makeWriter(slots)
    const lost = yield* Queue.unbounded<LostLease>()
    const beats = yield* Queue.unbounded<StoreUnavailable | undefined>()
    const orders = yield* Queue.unbounded<WorkerOrders>()
    const isUp = yield* Deferred.make<void>()
    const report = makeReporter(writer, { lost, beats, orders }, isUp)
    const stand = (standing: WorkerStanding) =>
      Slots.writeStanding(slots, { ...standing, appliedSeq: Math.max(enteredAt, standing.appliedSeq) })
    stand({ appliedSeq: enteredAt, isQuiet: false, isResigned: false, isDraining: false })
    yield* startTicking(slots, options.leaseMs)
    const config = Thread.portableConfig(sql.client.config)
    const inLoop = Effect.provideContext(Loop.run({ options, slots, tick: Slots.uptimeMs, report }), context)
    const inThread: Effect.Effect<string | Error> = config === undefined
      ? Effect.succeed("the client's configuration cannot be handed to a thread")
      : Thread.run({ config, settings, options, memory: slots.memory }, report, inLoop)
    const beating = Effect.flatMap(inThread, (cause) =>
      Effect.andThen(
        Effect.logWarning("Leases are renewed in the event loop: a handler that blocks it loses its lease", cause),
        inLoop
      ))
    yield* Effect.forkScoped(beating, { startImmediately: true })
    // A short lease could run out before a thread is up.
    if (options.leaseMs < shortLeaseMillis) {
      yield* Effect.raceFirst(Deferred.await(isUp), Effect.sleep(Thread.longestStartMillis))
    }
    return { ...makeSession(options, writer), lost, beats, orders, stand }
  })
  return Heartbeat.of({ start: (options) => Effect.provideContext(start(options), context) })
})

export const layer: Layer.Layer<Heartbeat, never, ControlSql | Leases> = Layer.effect(Heartbeat, make)

const makeSession = (
  { leaseMs }: HeartbeatOptions,
  writer: ReturnType<typeof Slots.makeWriter>
): Pick<HeartbeatSession, "track"> => {
  // Both clocks are the process's monotonic one, from different beginnings.
  const offset = Slots.uptimeMs() - monotonicMs()
  return {
    track: (lease, sentAt) => {
      const { generation, slot } = writer.take(lease)
      let own = sentAt + leaseMs
      return {
        validUntil: () => Math.max(own, writer.validUntil(slot, generation) - offset),
        extended: (sentAt, ms = leaseMs) => void (own = Math.max(own, sentAt + ms)),
        end: () => {
          own = Math.max(own, writer.validUntil(slot, generation) - offset)
          writer.leave(slot, generation)
        }
      }
    }
  }
}

const makeReporter = (
  writer: ReturnType<typeof Slots.makeWriter>,
  { beats, lost, orders }: {
    readonly lost: Queue.Queue<LostLease>
    readonly beats: Queue.Queue<StoreUnavailable | undefined>
    readonly orders: Queue.Queue<WorkerOrders>
  },
  isUp: Deferred.Deferred<void>
) => {
  let told = 0
  return (report: Loop.Report): void => {
    if (report._tag === "Told") {
      // Said again until it is taken up.
      if (report.orders.seq > told) Queue.offerUnsafe(orders, report.orders)
      return void (told = Math.max(told, report.orders.seq))
    }
    if (report._tag !== "Lost") {
      Deferred.doneUnsafe(isUp, Exit.void)
      const fault = report._tag === "Failing"
        ? new StoreUnavailable({ operation: "Heartbeat.beat", message: report.message.split("\n", 1).join() })
        : undefined
      return void Queue.offerUnsafe(beats, fault)
    }
    for (const { fence, generation, jobId, reason, slot } of report.leases) {
      // A job that ended while the report was under way has nothing left to lose. Beats that overlap, and a thread that
      // took over, report the same again.
      if (!writer.firstLoss(slot, generation)) continue
      Queue.offerUnsafe(lost, { jobId, fence, reason })
    }
  }
}

/** Shows the thread that the event loop runs. Holds no program alive. */
const startTicking = (slots: Slots.HeartbeatSlots, leaseMs: number): Effect.Effect<void, never, Scope.Scope> =>
  Effect.asVoid(Effect.acquireRelease(
    Effect.sync(() => {
      Slots.writeTick(slots)
      return setInterval(() => Slots.writeTick(slots), Loop.tickMillis(leaseMs)).unref()
    }),
    (timer) => Effect.sync(() => clearInterval(timer))
  ))
