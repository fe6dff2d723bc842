/** The two acts: an import whose process is killed halfway, and a job that kills the processes that run it. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Effect } from "effect"
import { Inspect, isTerminal, type JobId } from "headgate"
import { ImportCities, PAGE_ROWS, ReportCountry, SwallowPoison } from "./app.ts"
import { Story } from "./story.ts"
import type { Workers } from "./workers.ts"

export const REPORTS = 20

export const importThroughAKill = Effect.fn("Acts.import")(function*(workers: Workers, file: string) {
  const story = yield* Story
  yield* story.title("1. An import whose process is killed halfway")
  const id = yield* ImportCities.enqueue({ file })
  yield* story.say(`enqueued cities:import, steps ${ImportCities.definition.steps.join(", ")}`)
  yield* waitUntil(Effect.map(tellImport(id), (share) => share > 0.4))

  yield* workers.restarts.close // the other one shall take over, not a new one
  const victim = (yield* latestRead).pid
  yield* workers.kill(victim)
  yield* story.say(`SIGKILL to ${workers.nameOf(victim)}, with page ${(yield* latestRead).page} begun`)
  yield* waitUntil(Effect.map(latestRead, ({ pid }) => pid !== victim))
  const heir = yield* firstReadAfter(victim)
  yield* story.say(`its lease ran out: ${workers.nameOf(heir.pid)} goes on with page ${heir.page}`)
  yield* workers.restarts.open

  yield* waitUntil(Effect.andThen(tellImport(id), isFinished(id)))
  yield* story.say("cities and ledger entry are published, in one commit with the step's record")
  return id
})

export const reportsBesidePoison = Effect.fn("Acts.poison")(function*(workers: Workers) {
  const story = yield* Story
  const sql = yield* PgClient.PgClient
  yield* story.title(`2. A job that kills whoever runs it, among ${REPORTS} that do no harm`)
  const countries = yield* sql<
    { country: string }
  >`SELECT code AS country FROM country ORDER BY cities DESC LIMIT ${REPORTS}`
  const before = workers.deaths()
  const id = yield* SwallowPoison.enqueue({})
  yield* ReportCountry.enqueueAll(countries, (_, index) => ({ delay: index * 400 }))
  yield* story.say(`enqueued poison:pill, crash limit 3, and ${REPORTS} country:report, due over the next 8 s`)

  let crashes = 0
  yield* waitUntil(Effect.gen(function*() {
    const inspect = yield* Inspect
    const poison = yield* inspect.job(id)
    if (poison.crashAttempt > crashes) {
      crashes = poison.crashAttempt
      yield* story.say(`poison:pill has crashed ${crashes} of 3 times and is ${poison.state}`)
    }
    const { counts } = yield* inspect.counts()
    yield* story.progress("reports", counts.completed - 1, REPORTS)
    return counts.completed > REPORTS && isTerminal(poison.state)
  }))
  return { poisonId: id, poisonDeaths: workers.deaths() - before }
})

/** Draws the bar from what the job itself reports, and answers how much is done, 0 to 1. */
const tellImport = Effect.fnUntraced(function*(id: JobId) {
  const story = yield* Story
  const progress = yield* Inspect.use((inspect) => inspect.progress(id))
  if (progress === undefined) return 0
  yield* story.progress("cities read", progress.current, progress.total)
  return progress.current / progress.total
})

const isFinished = (id: JobId) =>
  Effect.map(Inspect.use((inspect) => inspect.job(id)), ({ state }) => isTerminal(state))

const latestRead = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<
    Read
  >`SELECT pid, first_row / ${PAGE_ROWS}::int + 1 AS page FROM page_read ORDER BY id DESC LIMIT 1`
  return rows[0]!
})

const firstReadAfter = Effect.fnUntraced(function*(victim: number) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<Read>`SELECT pid, first_row / ${PAGE_ROWS}::int + 1 AS page FROM page_read
    WHERE pid <> ${victim} ORDER BY id LIMIT 1`
  return rows[0]!
})

interface Read {
  readonly pid: number
  readonly page: number
}

const waitUntil = <E, R>(condition: Effect.Effect<boolean, E, R>) =>
  Effect.repeat(Effect.delay(condition, "25 millis"), { until: (holds) => holds })
