/** The entry of the heartbeat thread: the heartbeat's loop on connections of its own, until it is told to stop. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { writeSync } from "node:fs"
import { parentPort, workerData } from "node:worker_threads"
import { Announcer, silent } from "./Announcer.ts"
import * as ControlSql from "./ControlSql.ts"
import * as Loop from "./HeartbeatLoop.ts"
import * as Slots from "./HeartbeatSlots.ts"
import type { ThreadData } from "./HeartbeatThread.ts"
import * as Leases from "./Leases.ts"
import { PostgresSettings } from "./Settings.ts"

// SAFETY: only HeartbeatThread starts this file, with this data.
const { config, memory, options, settings } = workerData as ThreadData
const { password, url, ...rest } = config
const slots = Slots.view(memory)

const store = Leases.layer.pipe(
  Layer.provideMerge(ControlSql.layer),
  // Renewals announce nothing.
  Layer.provide(Layer.succeed(Announcer, silent)),
  Layer.provide(PgClient.layer({
    ...rest,
    ...(url === undefined ? {} : { url: Redacted.make(url) }),
    ...(password === undefined ? {} : { password: Redacted.make(password) })
  })),
  Layer.provide(Layer.succeed(PostgresSettings, settings))
)

const loop = Loop.run({
  options,
  slots,
  tick: () => Slots.readTick(slots),
  report: (report) => {
    parentPort?.postMessage(report)
    if (report._tag === "Told" && report.orders.end === "terminate") endIfBlocked()
  }
})

let isLookingOn = false

/** The loop ends the process by itself, unless it is blocked: this thread then ends it, as the supervisor would. */
const endIfBlocked = (): void => {
  if (options.killAfterMs === undefined || isLookingOn) return
  isLookingOn = true
  setTimeout(() => setInterval(killIfBlocked, 500), Math.min(options.killAfterMs, MAX_TIMER_MS))
}

const killIfBlocked = (): void => {
  if (Slots.uptimeMs() - Slots.readTick(slots) < BLOCKED_MS) return
  writeSync(2, `Worker ${options.worker} was told to terminate and its event loop is blocked: its process is killed\n`)
  process.kill(process.pid, "SIGKILL")
}

const BLOCKED_MS = 2000
const MAX_TIMER_MS = 2_147_483_647

const fiber = Effect.runFork(Effect.provide(loop, store))
fiber.addObserver(() => process.exit())
parentPort?.once("message", () => fiber.interruptUnsafe())
