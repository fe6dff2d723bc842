/** Did it all hold? What the database says now, beside what the source file and the story say it must. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Effect } from "effect"
import { Inspect, type JobId } from "headgate"
import { createHash } from "node:crypto"
import { readFile } from "node:fs/promises"
import { PAGE_ROWS } from "./app.ts"

export interface Check {
  readonly promise: string
  readonly expected: string
  readonly actual: string
  readonly holds: boolean
}

export interface Facts {
  readonly file: string
  readonly importId: JobId
  readonly poisonId: JobId
  readonly reports: number
  /** Processes that died while the poison was about. */
  readonly poisonDeaths: number
}

export const run = Effect.fn("Checks.run")(function*(facts: Facts) {
  const source = yield* Effect.promise(() => readSource(facts.file))
  return [
    ...(yield* cityChecks(source, facts.importId)),
    ...(yield* pageChecks(source)),
    ...(yield* jobChecks(facts))
  ]
})

const cityChecks = Effect.fnUntraced(function*(source: Source, importId: JobId) {
  const sql = yield* PgClient.PgClient
  const [city] = yield* sql<{ rows: number; checksum: string }>`SELECT count(*)::int AS rows,
    encode(sha256(convert_to(string_agg(concat_ws('|', name, latitude, longitude, country, admin1, admin2), E'\n'
      ORDER BY row), 'UTF8')), 'hex') AS checksum FROM city`
  const [countries] = yield* sql<{ cities: number }>`SELECT sum(cities)::int AS cities FROM country`
  const ledger = yield* sql<{ job_id: string; cities: number }>`SELECT job_id, cities FROM import_ledger`
  return [
    equal("cities in the table, as many as in the file", source.rows, city?.rows),
    equal("SHA-256 over all rows, the same from SQL and from the file", source.checksum, city?.checksum),
    equal("cities added up over all countries", source.rows, countries?.cities),
    equal("entries in the ledger: published exactly once", `1 (${importId})`, `${ledger.length} (${ledger[0]?.job_id})`)
  ]
})

const pageChecks = Effect.fnUntraced(function*({ rows }: Source) {
  const sql = yield* PgClient.PgClient
  const [pages] = yield* sql<{ read: number; different: number; readers: number }>`SELECT count(*)::int AS read,
    count(DISTINCT first_row)::int AS different, count(DISTINCT pid)::int AS readers FROM page_read`
  const again = (pages?.read ?? 0) - (pages?.different ?? 0)
  return [
    equal("pages read", Math.ceil(rows / PAGE_ROWS), pages?.different),
    equal("processes that read them", 2, pages?.readers),
    { promise: "pages read again after the kill", expected: "at most 1", actual: `${again}`, holds: again <= 1 }
  ]
})

const jobChecks = Effect.fnUntraced(function*({ importId, poisonDeaths, poisonId, reports }: Facts) {
  const sql = yield* PgClient.PgClient
  const inspect = yield* Inspect
  const imported = yield* inspect.job(importId)
  const poison = yield* inspect.job(poisonId)
  const { counts } = yield* inspect.counts()
  const [written] = yield* sql<{ reports: number; countries: number }>`SELECT count(*)::int AS reports,
    count(DISTINCT country)::int AS countries FROM country_report`
  return [
    equal(
      "the import: state, crashes, failures",
      "completed, 1, 0",
      `${imported.state}, ${imported.crashAttempt}, ${imported.attempt}`
    ),
    equal(
      "the poison: state, crashes, failures",
      "quarantined, 3, 0",
      `${poison.state}, ${poison.crashAttempt}, ${poison.attempt}`
    ),
    equal("processes that died of the poison", 3, poisonDeaths),
    equal(
      "reports written, one for each country",
      `${reports} for ${reports}`,
      `${written?.reports} for ${written?.countries}`
    ),
    equal(
      "jobs completed, quarantined, in all: none lost",
      `${reports + 1}, 1, ${reports + 2}`,
      `${counts.completed}, ${counts.quarantined}, ${Object.values(counts).reduce((sum, n) => sum + n, 0)}`
    )
  ]
})

const equal = (promise: string, expected: string | number, actual: string | number | undefined): Check => ({
  promise,
  expected: String(expected),
  actual: String(actual),
  holds: String(expected) === String(actual)
})

interface Source {
  readonly rows: number
  readonly checksum: string
}

/** The file itself, read by other means than the task's. */
const readSource = async (file: string): Promise<Source> => {
  const cities: ReadonlyArray<Record<string, string>> = JSON.parse(await readFile(file, "utf8"))
  const lines = cities.map(({ admin1, admin2, country, lat, lng, name }) =>
    [name, Number(lat).toFixed(5), Number(lng).toFixed(5), country, admin1, admin2].join("|")
  )
  return { rows: cities.length, checksum: createHash("sha256").update(lines.join("\n")).digest("hex") }
}
