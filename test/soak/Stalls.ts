/**
 * When the machine was slow, and not the store: a process was not served for a while, or the server took long over a
 * trifle. Each such time is noted beside the faults, since it explains the leases that ran out in it.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import { Audit } from "./Audit.ts"

const LOOK_MS = 100
const SLOW_MS = 400

const isSlow = (tookMs: number): boolean => tookMs > LOOK_MS + SLOW_MS

/** Of this process, which others may depend on. What keeps it busy itself is no explanation. */
export const watchProcess = Effect.fnUntraced(function*(who: "this process" | "all") {
  const audit = yield* Audit
  while (true) {
    const from = performance.now()
    const cpu = process.cpuUsage()
    yield* Effect.sleep(LOOK_MS)
    const tookMs = performance.now() - from
    const { system, user } = process.cpuUsage(cpu)
    if (isSlow(tookMs) && (user + system) / 1000 < tookMs / 2) yield* audit.slow(who, from)
  }
})

/** Of the server, and of the way to it. */
export const watchServer = Effect.gen(function*() {
  const audit = yield* Audit
  const sql = yield* PgClient.PgClient
  while (true) {
    const from = performance.now()
    yield* Effect.ignore(sql`UPDATE audit.pulse SET beats = beats + 1`)
    if (isSlow(performance.now() - from)) yield* audit.slow("all", from)
    yield* Effect.sleep(LOOK_MS)
  }
})
