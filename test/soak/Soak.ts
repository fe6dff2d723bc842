/** The whole product under random faults: load, faults, calm, the verdict. */
import * as PgClient from "@effect/sql-pg/PgClient"
import type { EmbeddedPostgres } from "@headgate/testkit"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { again, Audit } from "./Audit.ts"
import * as Checker from "./Checker.ts"
import * as FaultDriver from "./FaultDriver.ts"
import * as Figures from "./Figures.ts"
import { DRAIN_MS, STUCK_MS } from "./Pace.ts"
import * as Site from "./Site.ts"
import * as Stalls from "./Stalls.ts"

/** Answers how often a promise was broken. The last line printed is the sum of it all. */
export const run = Effect.fnUntraced(function*(minutes: number, seed: number) {
  const server = yield* Site.startServer
  yield* Site.prepare(server.url)
  return yield* Effect.provide(
    soak(server, minutes, seed),
    Layer.provideMerge(Audit.layerClient, Site.watcher(server.url))
  )
}, Effect.scoped)

const soak = Effect.fnUntraced(function*(server: EmbeddedPostgres.Server, minutes: number, seed: number) {
  const site = yield* Site.open(server, seed)
  yield* until(Effect.sync(() => site.places.every(({ pid }) => pid() !== undefined)), START_MS)
  // Everybody's proxies are in this process.
  yield* Effect.forkScoped(Stalls.watchProcess("all"))
  yield* Effect.forkScoped(Stalls.watchServer)
  console.log(`soak of ${minutes} min, seed ${seed}`)
  yield* FaultDriver.drive(site, seed, minutes * 60_000)
  yield* site.dismissProducers
  const calmAt = performance.now()
  yield* drain
  console.log(`drained in ${Math.round(performance.now() - calmAt)} ms`)
  yield* site.dismissWorkers
  const found = [...yield* undrained, ...selfEnded(site), ...yield* Checker.judge]
  return yield* report(site, found)
}, Effect.scoped)

const START_MS = 30_000

const report = Effect.fnUntraced(function*(site: Site.Site, found: ReadonlyArray<Checker.Violation>) {
  yield* Figures.tell
  const faults = yield* Figures.faults
  for (const { kind, n } of faults) console.log(`  ${String(n).padStart(4)} ${kind}`)
  for (const { count, promise, rows, story } of found) {
    console.log(`BROKEN ${count} times: ${promise}`)
    for (const line of [...rows.map((row) => JSON.stringify(row)), ...story]) console.log(`       ${line}`)
  }
  if (found.length > 0) { for (const { output } of site.fleets) console.error(output().slice(-OUTPUT_SHOWN)) }
  const violations = found.reduce((sum, { count }) => sum + count, 0)
  console.log(
    `soak: ${yield* Figures.jobs} jobs, ${faults.reduce((sum, { n }) => sum + n, 0)} faults, ${violations} violations`
  )
  return violations
})

const OUTPUT_SHOWN = 10_000

const until = <R>(condition: Effect.Effect<boolean, never, R>, millis: number) =>
  Effect.timeoutOption(Effect.repeat(Effect.delay(condition, 200), { until: (isMet) => isMet }), millis)

const unfinished = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  return yield* again(sql<{ n: number; rows: ReadonlyArray<unknown> }>`SELECT count(*)::int AS n,
    coalesce(jsonb_agg(to_jsonb(j) - 'payload') FILTER (WHERE j.place <= 3), '[]') AS rows
    FROM (SELECT *, row_number() OVER () AS place FROM headgate.job
      WHERE state IN ('pending', 'scheduled', 'available', 'running', 'retryable')) j`)
})

/** Until nothing is left, twice in a row since orders may have been on their way; or nothing has ended for too long. */
const drain = Effect.gen(function*() {
  const calmAt = performance.now()
  let [fewest, fewestAt, emptyLooks] = [Number.POSITIVE_INFINITY, calmAt, 0]
  while (emptyLooks < 2 && performance.now() < Math.min(fewestAt + STUCK_MS, calmAt + DRAIN_MS)) {
    yield* Effect.sleep("300 millis")
    const left = (yield* unfinished).reduce((sum, { n }) => sum + n, 0)
    if (left < fewest) [fewest, fewestAt] = [left, performance.now()]
    emptyLooks = left === 0 ? emptyLooks + 1 : 0
  }
})

const undrained = Effect.map(
  unfinished,
  (seen) =>
    seen.flatMap(({ n, rows }): ReadonlyArray<Checker.Violation> =>
      n === 0 ? [] : [{ promise: "everything ends in the calm after the last fault", count: n, rows, story: [] }]
    )
)

const selfEnded = ({ doomed, fleets }: Site.Site): ReadonlyArray<Checker.Violation> => {
  const count = fleets.reduce((sum, { deathsAtWork }) => sum + deathsAtWork(), 0) - doomed.size
  return count <= 0 ? [] : [{ promise: "no process at work ends by itself", count, rows: [], story: [] }]
}
