import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import { Duties } from "@headgate/core/Duties"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Option } from "effect"
import * as Fleet from "./fixtures/Fleet.ts"
import { Recover } from "./fixtures/recover.ts"
import * as Trail from "./fixtures/Trail.ts"
import * as Verdicts from "./fixtures/Verdicts.ts"

const WORKERS = 4
const ROUNDS = 24
/** How far the others have come when the owner wakes up. */
const STAGES = ["reclaimed", "running", "completed"] as const

const entry = new URL("./fixtures/recover-worker.ts", import.meta.url)

/** More than one process would: three at a time, so that each sweep has rivals for every row. */
const sweeping = Effect.gen(function*() {
  const duties = yield* Duties
  const sweep = Effect.andThen(duties.reclaimExpired(10), duties.promoteDue(10))
  for (let n = 0; n < 3; n++) yield* Effect.forkScoped(Effect.forever(Effect.delay(sweep, 25)))
})

/** Asks until there is a row. */
const first = <Row extends object>(query: string, params: ReadonlyArray<unknown>) =>
  Effect.gen(function*() {
    const sql = yield* PgClient.PgClient
    const ask = Effect.delay(sql.unsafe<Row>(query, params), 10)
    const rows = yield* Effect.repeat(ask, { until: (rows) => rows.length > 0 })
    return rows[0]!
  })

const reached = {
  reclaimed: "SELECT 1 AS one FROM trail.holding WHERE job_id = $1 AND fence = $2 AND state <> 'running'",
  running: "SELECT 1 AS one FROM trail.body WHERE job_id = $1 AND fence > $2",
  completed: "SELECT 1 AS one FROM headgate.job WHERE id = $1 AND fence > $2 AND state = 'completed'"
}
const hasTriedAll = "SELECT 1 AS one FROM trail.answer WHERE job_id = $1 AND fence = $2 AND write = 'success'"

/** The job's owner is stopped in its first step, and woken up when others have come as far as `stage`. */
const round = Effect.fnUntraced(function*(fleet: Fleet.Fleet, n: number, stage: typeof STAGES[number]) {
  const id = yield* Recover.enqueue(n)
  const owner = yield* first<{ pid: number; fence: bigint }>(
    "SELECT pid, fence FROM trail.body WHERE job_id = $1 ORDER BY seq LIMIT 1",
    [id]
  )
  fleet.signal(owner.pid, "SIGSTOP")
  yield* first(reached[stage], [id, owner.fence])
  fleet.signal(owner.pid, "SIGCONT")
  yield* first(hasTriedAll, [id, owner.fence])
  yield* first(reached.completed, [id, owner.fence])
})

const promises = {
  "the store accepts nothing from an owner that was stopped for longer than its lease": `
    SELECT * FROM trail.answer WHERE said <> 'refused'`,
  "nothing of a lost attempt is stored": `
    SELECT j.id, j.fence, s.step, s.fence AS record_fence, s.result FROM headgate.job j JOIN headgate.step s ON s.job_id = j.id
    WHERE s.step NOT IN ('a', 'b') OR convert_from(s.result, 'UTF8') = '-1'`,
  "the job's answer is the recorded one": `
    SELECT j.id FROM headgate.job j JOIN headgate.step s ON s.job_id = j.id AND s.step = 'a'
    LEFT JOIN trail.effect e ON e.job_id = j.id
    WHERE j.result IS DISTINCT FROM s.result OR e.value::text IS DISTINCT FROM convert_from(s.result, 'UTF8')`,
  "no lost attempt leaves progress or output": `
    SELECT p.job_id FROM headgate.progress p UNION ALL SELECT o.job_id FROM headgate.output o`
}

const rounds = Effect.fnUntraced(function*(fleet: Fleet.Fleet) {
  for (let n = 0; n < ROUNDS; n++) {
    const done = yield* Effect.timeoutOption(round(fleet, n, STAGES[n % STAGES.length]!), "1 minute")
    // What the trail shows of it tells more than that it hangs.
    if (Option.isNone(done)) return n
  }
  return ROUNDS
})

it.live(
  "of an owner that was stopped and the workers that race for its job, one at a time owns it",
  () =>
    Effect.gen(function*() {
      yield* Trail.install
      yield* Trail.shortenCrashBackoff(50)
      yield* sweeping
      const { url } = yield* TestDatabase.TestDatabase
      const fleet = yield* Fleet.start(Array.from({ length: WORKERS }, () => ({ entry, databaseUrl: url })))
      yield* Effect.gen(function*() {
        const startedAt = performance.now()
        const done = yield* rounds(fleet)
        yield* tell(performance.now() - startedAt)
        assert.deepStrictEqual(yield* Verdicts.broken({ ...Verdicts.always, ...promises }), {})
        assert.strictEqual(done, ROUNDS, "rounds that came to their end")
        assert.strictEqual(fleet.deaths(), 0)
      }).pipe(Fleet.explaining(fleet))
    }).pipe(Effect.provide(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))), Effect.scoped),
  240_000
)

const tell = Effect.fnUntraced(function*(millis: number) {
  const sql = yield* PgClient.PgClient
  const [seen] = yield* sql<{ tries: number; claims: number }>`SELECT
    (SELECT count(*)::int FROM trail.answer) AS tries, (SELECT sum(fence)::int FROM headgate.job) AS claims`
  console.log(
    `recoverers: ${ROUNDS} owners stopped and woken in ${Math.round(millis)} ms, ${seen!.claims} claims, ` +
      `${seen!.tries} writes tried by late owners`
  )
})
