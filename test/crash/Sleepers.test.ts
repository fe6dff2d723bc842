import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Child from "../faults/fixtures/Child.ts"
import * as Figure from "../faults/fixtures/Figure.ts"
import * as Watch from "../faults/fixtures/Watch.ts"
import { Sleeper } from "./fixtures/sleepers.ts"

const entry = new URL("./fixtures/sleepers-worker.ts", import.meta.url)
const JOBS = 100
/** From the wake time, or from the start of a worker, whichever is later. */
const AWAKE_MS = 5000

const live = Layer.effectDiscard(
  PgClient.PgClient.use((sql) => sql`CREATE TABLE body (job_id text NOT NULL, step text NOT NULL)`)
).pipe(Layer.provideMerge(PostgresStore.layer), Layer.provideMerge(TestDatabase.layer))

it.live(
  "jobs that sleep while their worker is killed wake up in time on the next one, and do nothing twice",
  () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const sql = yield* PgClient.PgClient
      const start = Effect.gen(function*() {
        const child = yield* Child.start(entry, { DATABASE_URL: url })
        yield* Watch.untilTrue(() => child.told("up").length > 0, "a worker to be up")
        return child
      })
      yield* Sleeper.enqueueAll(Array.from({ length: JOBS }, () => undefined))
      const first = yield* start
      const asleep = sql<{ id: string }>`SELECT id FROM headgate.job WHERE state = 'scheduled'`
      yield* Watch.untilRow(
        sql<{ yes: boolean }>`SELECT count(*) >= 20 AS yes FROM headgate.job WHERE state = 'scheduled'`,
        "jobs to be asleep"
      )
      process.kill(first.pid, "SIGKILL")
      yield* Watch.untilTrue(() => !first.isAlive(), "the worker to be dead")
      const ids = (yield* asleep).map(({ id }) => id)
      assert.isAbove(ids.length, 10)
      yield* start
      const [up] = yield* sql<{ at: bigint }>`SELECT headgate.now_ms() AS at`
      yield* Watch.untilRow(
        sql<{ yes: boolean }>`SELECT bool_and(state = 'completed') AS yes FROM headgate.job`,
        "all to be completed"
      )
      const [latest] = yield* sql<{ ms: number }>`
        SELECT max(j.finished_at_ms - greatest(s.wake_at_ms, ${up?.at}::bigint))::int AS ms
        FROM headgate.job j JOIN headgate.step s ON s.job_id = j.id AND s.step = 'nap' WHERE j.id = ANY(${ids})`
      Figure.within("sleepers whose worker was killed were up and done", latest!.ms, AWAKE_MS)
      const wrong = yield* sql`SELECT j.id, j.fence, j.attempt, j.crash_attempt,
          (SELECT array_agg(b.step ORDER BY b.step) FROM body b WHERE b.job_id = j.id) AS bodies
        FROM headgate.job j WHERE j.id = ANY(${ids}) AND ((j.fence, j.attempt, j.crash_attempt) <> (2, 0, 0)
          OR (SELECT array_agg(b.step ORDER BY b.step) FROM body b WHERE b.job_id = j.id) <> '{after,before}')`
      assert.deepStrictEqual(wrong, [])
    }).pipe(Effect.provide(live), Effect.scoped),
  240_000
)
