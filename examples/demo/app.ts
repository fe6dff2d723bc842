/**
 * The application: its tables, its tasks and their handlers. Nothing here knows that processes die; the names of the
 * steps are all it says about it.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Effect, Layer, Schema } from "effect"
import { Job, Progress, Task } from "headgate"
import { readFile } from "node:fs/promises"

export const PAGE_ROWS = 2000

/** Run once, by whoever sets the application up. */
export const createTables = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  yield* sql`CREATE TABLE city_staging (row int PRIMARY KEY, name text NOT NULL, latitude numeric(8, 5) NOT NULL,
    longitude numeric(8, 5) NOT NULL, country text NOT NULL, admin1 text NOT NULL, admin2 text NOT NULL)`
  yield* sql`CREATE TABLE city (LIKE city_staging INCLUDING ALL)`
  yield* sql`CREATE TABLE country (code text PRIMARY KEY, cities int NOT NULL)`
  yield* sql`CREATE TABLE import_ledger (job_id text NOT NULL, cities int NOT NULL)`
  yield* sql`CREATE TABLE country_report (country text NOT NULL, northernmost text NOT NULL)`
  // For the story and its checks: who read which page.
  yield* sql`CREATE TABLE page_read (id int GENERATED ALWAYS AS IDENTITY, first_row int NOT NULL, pid int NOT NULL)`
})

const coordinate = (limit: number) =>
  Schema.FiniteFromString.check(Schema.isBetween({ minimum: -limit, maximum: limit }))

const City = Schema.Struct({
  name: Schema.NonEmptyString,
  lat: coordinate(90),
  lng: coordinate(180),
  country: Schema.String.check(Schema.isPattern(/^[A-Z]{2}$/)),
  admin1: Schema.String,
  admin2: Schema.String
})
const decodePage = Schema.decodeUnknownEffect(Schema.Array(City))

export class BadFile extends Schema.TaggedError<BadFile>()("BadFile", { problem: Schema.String }) {}

export const ImportCities = Task.make("cities:import", {
  payload: Schema.Struct({ file: Schema.String }),
  success: Schema.Struct({ cities: Schema.Int, countries: Schema.Int }),
  error: BadFile,
  steps: ["read", "transform", "publish"]
})

const ImportCitiesHandler = ImportCities.toLayer(Effect.fn(function*({ file }) {
  // A loop that goes on behind the last page whose position was saved, in whichever process that is.
  yield* ImportCities.cursor(
    "read",
    { schema: Schema.Int, initial: 0 },
    (firstRow, save) => readPages(file, firstRow, save)
  )
  // Runs once; later attempts get its result back.
  const countries = yield* ImportCities.step("transform", countCountries, { result: Schema.Int })
  // Commits together with the record that it has run.
  const cities = yield* ImportCities.once("publish", publish, { result: Schema.Int })
  return { cities, countries }
}))

const readPages = Effect.fnUntraced(function*<E, R>(
  file: string,
  firstRow: number,
  save: (nextRow: number) => Effect.Effect<void, E, R>
) {
  const rows = yield* readRows(file)
  for (let row = firstRow; row < rows.length; row += PAGE_ROWS) {
    const next = Math.min(row + PAGE_ROWS, rows.length)
    yield* stagePage(row, rows.slice(row, next))
    yield* save(next)
    yield* Progress.report({ current: next, total: rows.length })
  }
})

const readRows = (file: string) =>
  Effect.tryPromise({
    try: async (): Promise<ReadonlyArray<unknown>> => JSON.parse(await readFile(file, "utf8")),
    catch: (cause) => new BadFile({ problem: String(cause) })
  })

/** May run twice for a page when the process dies between the insert and the saved position: rows are known by number. */
const stagePage = Effect.fnUntraced(function*(firstRow: number, page: ReadonlyArray<unknown>) {
  const sql = yield* PgClient.PgClient
  yield* sql`INSERT INTO page_read (first_row, pid) VALUES (${firstRow}, ${process.pid})`
  const cities = yield* Effect.mapError(decodePage(page), (error) => new BadFile({ problem: error.message }))
  const rows = cities.map((city, index) => ({ row: firstRow + index, ...city }))
  yield* sql`INSERT INTO city_staging
    SELECT * FROM jsonb_to_recordset(${sql.json(rows)})
      AS page(row int, name text, lat numeric, lng numeric, country text, admin1 text, admin2 text)
    ON CONFLICT (row) DO NOTHING`
})

const countCountries = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const countries = yield* sql`INSERT INTO country SELECT country, count(*) FROM city_staging GROUP BY country
    ON CONFLICT (code) DO UPDATE SET cities = excluded.cities RETURNING code`
  return countries.length
})

const publish = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const { id } = yield* Job.facts
  yield* sql`INSERT INTO city SELECT * FROM city_staging`
  const [entry] = yield* sql<{ cities: number }>`INSERT INTO import_ledger
    SELECT ${id}, count(*) FROM city RETURNING cities`
  return entry!.cities
})

export const ReportCountry = Task.make("country:report", { payload: Schema.Struct({ country: Schema.String }) })

const ReportCountryHandler = ReportCountry.toLayer(Effect.fn(function*({ country }) {
  const sql = yield* PgClient.PgClient
  yield* Effect.sleep("300 millis") // stands for rendering
  // The report and the job's success are one commit: a process that dies before it leaves neither.
  yield* ReportCountry.completeWith(sql`INSERT INTO country_report
    SELECT country, name FROM city WHERE country = ${country} ORDER BY latitude DESC, row LIMIT 1`.pipe(Effect.asVoid))
}))

export const SwallowPoison = Task.make("poison:pill", { payload: Schema.Struct({}), crashLimit: 3 })

const SwallowPoisonHandler = SwallowPoison.toLayer(() => {
  process.kill(process.pid, "SIGKILL")
  return Effect.never
})

/** Everything a worker of this application can do. */
export const handlers = Layer.mergeAll(ImportCitiesHandler, ReportCountryHandler, SwallowPoisonHandler)
