/** Reclaims expired leases every 100 ms beside a blocked event loop, and once more when it is told to end; posts the jobs it got. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import { parentPort, workerData } from "node:worker_threads"

const data: { readonly url: string } = workerData
const reclaimed: Array<string> = []
let isEnding = false
parentPort?.once("message", () => isEnding = true)

const sweep = Effect.gen(function*() {
  const pg = yield* PgClient.PgClient
  const rows = yield* pg<{ job_id: string }>`SELECT job_id FROM headgate.reclaim_expired(100)`
  reclaimed.push(...rows.map((row) => row.job_id))
  parentPort?.postMessage("swept")
})

await Effect.repeat(sweep, { schedule: Schedule.spaced(100), until: () => isEnding }).pipe(
  Effect.andThen(sweep),
  Effect.provide(PgClient.layer({ url: Redacted.make(data.url), maxConnections: 1 })),
  Effect.runPromise
)
parentPort?.postMessage(reclaimed)
