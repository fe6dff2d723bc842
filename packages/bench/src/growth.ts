/**
 * `npm run growth`: how what headgate costs the database grows with what the database holds. CPU of all server
 * processes, log, pages and commits, which a busy machine disturbs little; never time.
 */
import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import * as Effect from "effect/Effect"
import * as Fs from "node:fs"
import { parseArgs } from "node:util"
import { type Curve, curves, type Point } from "./growth/Curves.ts"
import * as Server from "./Server.ts"
import * as Statements from "./Statements.ts"
import { headgate } from "./systems/Headgate.ts"
import { aligned } from "./Terminal.ts"

const usage = `npm run growth -- [--quick] [--only waiting,finished,..] [--json FILE]
Curves: ${curves.map(({ name }) => name).join(", ")}.
Quick: without the largest points. Takes the server of DATABASE_URL, else an embedded one with durable settings.`

/** All of it fits in memory, and no checkpoint comes: both depend on the server, and not on what is measured. */
const settings = {
  ...Server.serverSettings,
  ...Statements.serverSettings,
  "pg_stat_statements.track": "top",
  track_io_timing: "off",
  shared_buffers: "2GB",
  max_wal_size: "16GB",
  checkpoint_timeout: "1h"
}

const table = ({ about, name }: Curve, points: ReadonlyArray<Point>): string => {
  const [first] = points
  const cell = (point: Point, metric: string): string => {
    const value = point.values[metric] ?? Number.NaN
    const base = first?.values[metric] ?? Number.NaN
    return `${Number(value.toPrecision(3))} (${Number((value / base).toPrecision(2))})`
  }
  const rows = Object.keys(first?.values ?? {}).map((metric) => [
    metric,
    ...points.map((point) => cell(point, metric))
  ])
  return [
    `\n${name}: ${about}; in brackets the ratio to the first`,
    ...aligned([
      ["", ...points.map((point) => point.name)],
      ...rows
    ])
  ].join("\n")
}

const measure = async (url: string, chosen: ReadonlyArray<Curve>, isQuick: boolean) => {
  const server = await Server.connect(url)
  const results: Array<{ readonly curve: string; readonly points: ReadonlyArray<Point> }> = []
  try {
    for (const curve of chosen) {
      const database = await server.fresh(headgate)
      const points: Array<Point> = []
      try {
        await Statements.install(database.client)
        await curve.run(database, (point) => points.push(point), { isQuick })
      } finally {
        await database.drop()
      }
      console.log(table(curve, points))
      results.push({ curve: curve.name, points })
    }
    return { version: server.version, results }
  } finally {
    await server.close()
  }
}

try {
  const { values } = parseArgs({
    options: { quick: { type: "boolean", default: false }, only: { type: "string" }, json: { type: "string" } }
  })
  const only = values.only?.split(",")
  const unknown = only?.find((name) => !curves.some((curve) => curve.name === name))
  if (unknown !== undefined) throw new Error(`no curve "${unknown}"`)
  const chosen = curves.filter(({ name }) => only === undefined || only.includes(name))
  const found = await Effect.runPromise(Effect.scoped(Effect.gen(function*() {
    const url = yield* EmbeddedPostgres.url({ isDurable: true, settings })
    return yield* Effect.promise(() => measure(url, chosen, values.quick))
  })))
  if (values.json !== undefined) Fs.writeFileSync(values.json, JSON.stringify(found, null, 2))
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  console.error(usage)
  process.exitCode = 1
}
