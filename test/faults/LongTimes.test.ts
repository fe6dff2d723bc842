import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Child from "./fixtures/Child.ts"
import { Again, Month, Nap } from "./fixtures/far.ts"
import * as Watch from "./fixtures/Watch.ts"

const entry = new URL("./fixtures/far-worker.ts", import.meta.url)
const DAY_MS = 86_400_000
/** How long the process is watched when all its work is done or far away. */
const WATCHED_MS = 3000

const now = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ now: bigint }>`SELECT headgate.now_ms() AS now`
  return Number(row?.now)
})

/** The job waits for that many days from its start, which is known as well as that of the test. */
const waitsFor = Effect.fnUntraced(function*(id: string, days: number, since: number) {
  const { scheduledAtMs } = yield* Watch.job(id)
  assert.isAtLeast(scheduledAtMs, since + days * DAY_MS)
  assert.isAtMost(scheduledAtMs, (yield* now) + days * DAY_MS)
})

it.live(
  "times beyond the runtime's longest timer neither come at once nor make the worker spin, and do not cut a drain",
  () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const since = yield* now
      yield* Month.enqueue({ millis: 200 }, { id: "month" })
      yield* Nap.enqueue(undefined, { id: "nap" })
      yield* Again.enqueue(undefined, { id: "again" })
      yield* Month.enqueue({ millis: 1 }, { id: "later", delay: "40 days" })
      const child = yield* Child.start(entry, { DATABASE_URL: url })
      yield* Effect.gen(function*() {
        yield* Watch.reaches("month", "completed")
        yield* Watch.reaches("nap", "scheduled")
        yield* Watch.reaches("again", "retryable")
        const calls = () => [child.told("admit").length, child.told("promote").length] as const
        const [admits, promotes] = calls()
        const from = performance.now()
        yield* Effect.sleep(WATCHED_MS)
        const seconds = (performance.now() - from) / 1000
        assert.isAtMost(calls()[0] - admits, 3, "calls of the gate")
        // The sweep for what is due comes by twice a second.
        assert.isAtMost(calls()[1] - promotes, 4 + 2 * seconds, "sweeps")

        yield* Month.enqueue({ millis: 1500 }, { id: "last" })
        yield* Watch.untilTrue(() => child.told("started").some(({ id }) => id === "last"), "the last job to start")
        process.kill(child.pid, "SIGTERM")
        yield* Watch.reaches("last", "completed")
        yield* Watch.untilTrue(() => !child.isAlive(), "the process to end")
      }).pipe(Child.explaining(child))
      assert.deepStrictEqual([child.told("warning"), child.complaints()], [[], ""])
      for (const id of ["month", "nap", "last", "later"]) {
        const { attempt, crashAttempt } = yield* Watch.job(id)
        assert.deepStrictEqual([attempt, crashAttempt], [0, 0], id)
      }
      assert.strictEqual((yield* Watch.job("again")).attempt, 1)
      assert.strictEqual(yield* Watch.stateOf("later"), "scheduled")
      yield* waitsFor("nap", 26, since)
      yield* waitsFor("again", 40, since)
      yield* waitsFor("later", 40, since)
    }).pipe(Effect.provide(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))), Effect.scoped),
  240_000
)
