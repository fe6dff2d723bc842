import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Dice from "./fixtures/Dice.ts"
import * as Fleet from "./fixtures/Fleet.ts"
import { Storm, stormPromises } from "./fixtures/storm.ts"
import * as Trail from "./fixtures/Trail.ts"
import * as Verdicts from "./fixtures/Verdicts.ts"

const JOBS = 300
const STORM_MS = 60_000
/** `HEADGATE_STORM_SEED` repeats the throws of an earlier storm. */
const seed = Number(process.env["HEADGATE_STORM_SEED"] ?? Date.now() % 2 ** 31)

const entry = new URL("./fixtures/storm-worker.ts", import.meta.url)

const completed = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.job WHERE state = 'completed'`
  return rows[0]!.n
})

/** Each 0.3 to 1 s SIGKILL to one of the workers, unless it is still being replaced; answers how many died. */
const storm = Effect.fnUntraced(function*(fleet: Fleet.Fleet) {
  const dice = Dice.make(seed)
  const end = performance.now() + STORM_MS
  let kills = 0
  while (performance.now() < end) {
    yield* Effect.sleep(dice.between(300, 1000))
    const victim = dice.oneOf(fleet.up())
    if (victim === undefined) continue
    fleet.signal(victim, "SIGKILL")
    kills++
  }
  return kills
})

it.live(
  "300 jobs of 4 steps come through 60 s of killed workers with every step done once",
  () =>
    Effect.gen(function*() {
      yield* Trail.install
      yield* Trail.shortenCrashBackoff(200)
      const { url } = yield* TestDatabase.TestDatabase
      // A crashed job goes behind the waiting ones of its priority: of many priorities, some return during the storm.
      yield* Storm.enqueueAll(Array.from({ length: JOBS }, (_, n) => ({ n })), ({ n }) => ({ priority: n % 5 }))
      const fleet = yield* Fleet.start(Array.from({ length: 3 }, () => ({ entry, databaseUrl: url })), true)
      yield* Effect.gen(function*() {
        const kills = yield* storm(fleet)
        const during = yield* completed
        const isDone = Effect.repeat(Effect.delay(completed, 200), { until: (n) => n === JOBS })
        yield* Effect.timeoutOption(isDone, "4 minutes")
        assert.isAbove(yield* tell(kills, during), 10, "attempts that were lost")
        assert.strictEqual(yield* completed, JOBS)
        assert.isBelow(during, JOBS, "the storm ended with work in hand")
        assert.deepStrictEqual(yield* Verdicts.broken({ ...Verdicts.always, ...stormPromises }), {})
      }).pipe(Fleet.explaining(fleet))
    }).pipe(Effect.provide(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))), Effect.scoped),
  400_000
)

const tell = Effect.fnUntraced(function*(kills: number, during: number) {
  const sql = yield* PgClient.PgClient
  const [seen] = yield* sql<
    { lost: number; most: number; starts: number }
  >`SELECT (SELECT count(*)::int FROM headgate.attempt WHERE outcome = 'lease_lost') AS lost,
    (SELECT max(crash_attempt)::int FROM headgate.job) AS most,
    (SELECT count(*)::int FROM trail.body WHERE moment = 'start') AS starts`
  console.log(
    `kill storm (HEADGATE_STORM_SEED=${seed}): ${kills} kills, ${seen!.lost} attempts lost, at most ` +
      `${seen!.most} of one job; ${seen!.starts} step bodies for ${JOBS} jobs, ${during} of them done in the storm`
  )
  return seen!.lost
})
