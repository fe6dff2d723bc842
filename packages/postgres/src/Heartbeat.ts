/**
 * Renews a worker's leases from a thread with connections of its own, so that a handler that blocks the event loop loses
 * none, up to `maxBlockedMs`. The loop and the thread share their memory (`HeartbeatSlots`): a lease is renewed from the
 * moment it is tracked, also when the loop is blocked in the same turn.
 *
 * Where there can be no thread, since the client's configuration cannot be handed to one or the thread keeps dying, the
 * same beat runs in the event loop, with a warning: there a blocked loop renews nothing.
 */
import { Heartbeat, type HeartbeatOptions, type HeartbeatSession, monotonicMs } from "@headgate/core/Heartbeat"
import { Leases, type LostLease } from "@headgate/core/Leases"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import { ControlSql } from "./ControlSql.ts"
import * as Loop from "./HeartbeatLoop.ts"
import * as Slots from "./HeartbeatSlots.ts"
import * as Thread from "./HeartbeatThread.ts"
import { PostgresSettings } from "./Settings.ts"
import * as WorkerRegistry from "./WorkerRegistry.ts"

/** One for the beat, the others for when a connection does not answer. */
const threadConnections = 3
const farewellMillis = 1000

const make = Effect.gen(function*() {
  const context = yield* Effect.context<ControlSql | Leases>()
  const { client } = yield* ControlSql
  const settings = { ...(yield* PostgresSettings), controlConnections: threadConnections }
  const start = Effect.fn("Heartbeat.start")(function*(options: HeartbeatOptions) {
    const registry = yield* WorkerRegistry.make(options)
    yield* registry.seen(0)
    yield* Effect.addFinalizer(() => Effect.ignore(Effect.timeout(registry.remove, farewellMillis)))
    const slots = Slots.make(options.maxLeases ?? options.capacity)
    const writer = Slots.makeWriter(slots)
    const lost = yield* Queue.unbounded<LostLease>()
    const runFork = Effect.runForkWith(yield* Effect.context<never>())
    const report = (report: Loop.Report): void => {
      if (report._tag !== "Lost") return void runFork(logChange(report))
      for (const { fence, generation, jobId, reason, slot } of report.leases) {
        // A job that ended while the report was under way has nothing left to lose.
        if (writer.isCurrent(slot, generation)) Queue.offerUnsafe(lost, { jobId, fence, reason })
      }
    }
    yield* startTicking(slots, options.leaseMs)
    const config = Thread.portableConfig(client.config)
    const inThread: Effect.Effect<string | Error> = config === undefined
      ? Effect.succeed("the client's configuration cannot be handed to a thread")
      : Thread.run({ config, settings, options, memory: slots.memory }, report)
    const inLoop = Loop.run({ options, slots, tick: Slots.uptimeMs, report })
    yield* Effect.forkScoped(Effect.flatMap(inThread, (cause) =>
      Effect.andThen(
        Effect.logWarning("Leases are renewed in the event loop: a handler that blocks it loses its lease", cause),
        inLoop
      )))
    return makeSession(options, writer, lost)
  })
  return Heartbeat.of({ start: (options) => Effect.provideContext(start(options), context) })
})

export const layer: Layer.Layer<Heartbeat, never, ControlSql | Leases> = Layer.effect(Heartbeat, make)

const makeSession = (
  { leaseMs }: HeartbeatOptions,
  writer: ReturnType<typeof Slots.makeWriter>,
  lost: Queue.Dequeue<LostLease>
): HeartbeatSession => {
  // Both clocks are the process's monotonic one, from different beginnings.
  const offset = Slots.uptimeMs() - monotonicMs()
  return {
    lost,
    track: (lease, sentAt) => {
      const { generation, slot } = writer.take(lease)
      let own = sentAt + leaseMs
      return {
        validUntil: () => Math.max(own, writer.validUntil(slot, generation) - offset),
        extended: (sentAt) => void (own = Math.max(own, sentAt + leaseMs)),
        end: () => {
          own = Math.max(own, writer.validUntil(slot, generation) - offset)
          writer.leave(slot, generation)
        }
      }
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

const logChange = (report: Exclude<Loop.Report, { readonly _tag: "Lost" }>): Effect.Effect<void> =>
  report._tag === "Beating"
    ? Effect.logDebug("The heartbeat is accepted")
    : Effect.logWarning("The heartbeat failed and is tried again", report.message)
