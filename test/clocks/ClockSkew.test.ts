import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Fleet from "../crash/fixtures/Fleet.ts"
import { createClockTable } from "../crash/fixtures/late.ts"
import * as Trail from "../crash/fixtures/Trail.ts"
import * as Verdicts from "../crash/fixtures/Verdicts.ts"
import { STALL_MS } from "../faults/fixtures/Figure.ts"
import * as Watch from "../faults/fixtures/Watch.ts"

const JOBS = 100
const MINUTE_MS = 60_000

const fixture = (name: string) => new URL(`../crash/fixtures/${name}`, import.meta.url)

interface Skew {
  readonly offByMs: number
  readonly jumpMs: number
}

/** A worker with such a wall clock, which also enqueues a part of the jobs. */
const program = (databaseUrl: string, { jumpMs, offByMs }: Skew, first: number, last: number): Fleet.Program => ({
  entry: fixture("late-worker.ts"),
  databaseUrl,
  env: {
    CLOCK_SKEW_MS: String(offByMs),
    CLOCK_JUMP_MS: String(jumpMs),
    WORKERS: "3",
    FIRST: String(first),
    LAST: String(last)
  },
  nodeArguments: [`--import=${fixture("skewed-clock.ts")}`]
})

const count = Effect.fnUntraced(function*(query: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql.unsafe<{ n: number }>(`SELECT count(*)::int AS n FROM ${query}`)
  return rows[0]!.n
})

const until = (query: string, atLeast: number) =>
  Effect.repeat(Effect.delay(count(query), 50), { until: (n) => n >= atLeast }).pipe(Effect.timeoutOption("1 minute"))

/** How far each process believed the wall clock to be from the store's, in whole minutes. */
const beliefs = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ minutes: number }>`SELECT DISTINCT round((wall_ms - store_ms) / ${MINUTE_MS}::numeric)::int
    AS minutes FROM trail.clock ORDER BY minutes`
  return rows.map(({ minutes }) => minutes)
})

/** Of each job: when it first started, and how long it slept, on the store's clock. */
const spans = `(
  SELECT j.id, j.enqueued_at_ms, ran.at_ms - j.enqueued_at_ms AS waited_ms, again.at_ms - slept.at_ms AS slept_ms,
    j.payload
  FROM headgate.job j
  LEFT JOIN trail.holding ran ON ran.job_id = j.id AND ran.fence = 1 AND ran.state = 'running'
  LEFT JOIN trail.holding slept ON slept.job_id = j.id AND slept.fence = 1 AND slept.state = 'scheduled'
  LEFT JOIN trail.holding again ON again.job_id = j.id AND again.fence = 2 AND again.state = 'running'
)`

const promises = {
  "nothing crashes, fails or expires": `
    SELECT id, state, reason, attempt, crash_attempt FROM headgate.job
    WHERE state <> 'completed' OR attempt <> 0 OR crash_attempt <> 0`,
  "a job delayed by 2 s starts that long after it was enqueued": `
    SELECT * FROM ${spans} s WHERE s.waited_ms IS NULL OR s.waited_ms NOT BETWEEN 2000 AND 3000 + ${STALL_MS}`,
  "a sleep of 3 s lasts that long, and only the long jobs do not sleep": `
    SELECT * FROM ${spans} s WHERE CASE WHEN convert_from(s.payload, 'UTF8')::int % 10 = 0 THEN s.slept_ms IS NOT NULL
      ELSE s.slept_ms IS NULL OR s.slept_ms NOT BETWEEN 3000 AND 4000 + ${STALL_MS} END`,
  "each job is claimed once, and once more after its sleep": `
    SELECT id, fence FROM headgate.job WHERE fence <> CASE WHEN convert_from(payload, 'UTF8')::int % 10 = 0 THEN 1 ELSE 2 END`
}

it.live(
  "workers whose wall clocks are minutes off, and jump an hour back or forth, delay, expire and lose nothing",
  () =>
    Effect.gen(function*() {
      yield* Trail.install
      yield* createClockTable
      const { url } = yield* TestDatabase.TestDatabase
      const fleet = yield* Fleet.start([
        program(url, { offByMs: 2 * MINUTE_MS, jumpMs: 60 * MINUTE_MS }, 1, 34),
        program(url, { offByMs: -2 * MINUTE_MS, jumpMs: 0 }, 35, 67),
        program(url, { offByMs: 0, jumpMs: -60 * MINUTE_MS }, 68, JOBS)
      ])
      yield* Effect.gen(function*() {
        // In the middle of it: long jobs run, others sleep.
        yield* until("headgate.step WHERE kind = 'sleep'", JOBS / 2)
        yield* Watch.untilTrue(() => fleet.up().every((pid) => pid !== undefined), "all processes to be up")
        for (const pid of fleet.up()) fleet.signal(pid!, "SIGUSR2")
        yield* until("headgate.job WHERE state IN ('completed', 'archived', 'quarantined')", JOBS)
        const [longestWait, longestSleep] = yield* longest
        const minutes = yield* beliefs
        console.log(
          `clock skew: ${JOBS} jobs, wall clocks off by ${minutes.join(", ")} minutes; the longest wait for a delay ` +
            `of 2,000 ms was ${longestWait} ms, the longest sleep of 3,000 ms ${longestSleep} ms, ` +
            `each at most 1,000 ms more on a quiet machine`
        )
        assert.deepStrictEqual(yield* Verdicts.broken(promises), {})
        assert.deepStrictEqual(minutes, [-60, -2, 0, 2, 62])
        assert.strictEqual(yield* count("(SELECT DISTINCT worker FROM trail.holding WHERE state = 'running') w"), 3)
        assert.notInclude(fleet.output(), "negative duration")
        assert.strictEqual(fleet.deaths(), 0)
      }).pipe(Fleet.explaining(fleet))
    }).pipe(Effect.provide(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))), Effect.scoped),
  240_000
)

const longest = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql.unsafe<{ waited: number; slept: number }>(
    `SELECT max(s.waited_ms)::int AS waited, max(s.slept_ms)::int AS slept FROM ${spans} s`
  )
  return [rows[0]!.waited, rows[0]!.slept]
})
