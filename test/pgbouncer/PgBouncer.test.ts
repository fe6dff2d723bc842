import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Policies } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Context, Effect, Exit, Layer, Option } from "effect"
import type { Working } from "../faults/fixtures/Site.ts"
import * as Site from "../faults/fixtures/Site.ts"
import * as Watch from "../faults/fixtures/Watch.ts"
import * as PgBouncer from "./fixtures/PgBouncer.ts"
import * as Tour from "./fixtures/Tour.ts"

/** Fewer than there are clients: sessions are shared, and what one leaves behind another one meets. */
const POOL = 2

const pooled = { prepare: false, name: "pooled", settings: { transactionPooling: true } }

class Program extends Context.Service<Program, Site.Site & { readonly worker: Working }>()("test/Program") {}

const program = Layer.effect(
  Program,
  Effect.gen(function*() {
    const { url } = yield* TestDatabase.TestDatabase
    const site = yield* Site.open(yield* PgBouncer.start(url, POOL), pooled)
    yield* site.use(PgClient.PgClient.use((sql) => sql`CREATE TABLE note (id text NOT NULL, what text NOT NULL)`))
    yield* site.use(Policies.use((policies) => policies.apply([Tour.Budget, Tour.OneAtATime])))
    const worker = yield* site.work(Tour.handlers, { pollInterval: "200 millis", lease: "12 seconds" })
    return { ...site, worker }
  })
)

layer(program.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "Behind PgBouncer in transaction mode",
  (it) => {
    it.effect("a worker says that it polls, and finds single jobs, batches and enqueues that come together", () =>
      Effect.gen(function*() {
        const { logged, use } = yield* Program
        yield* Watch.untilTrue(() => logged.some((line) => /LISTEN does not work/.test(line)), "the worker to say so")
        const together = Array.from({ length: 60 }, () => Tour.Ping.enqueue(undefined))
        const ids = [
          yield* use(Tour.Ping.enqueue(undefined)),
          ...(yield* use(Tour.Ping.enqueueAll(Array.from({ length: 50 }, () => undefined)))),
          ...(yield* use(Effect.all(together, { concurrency: "unbounded" })))
        ]
        yield* Effect.forEach(ids, (id) => use(Watch.reaches(id, "completed")), { concurrency: 5 })
        assert.deepStrictEqual(yield* use(Watch.tally("pings")), {
          "completed, attempt 0, crash_attempt 0": ids.length
        })
      }))

    it.effect("an enqueue is part of the caller's transaction", () =>
      Effect.gen(function*() {
        const { use } = yield* Program
        const order = (id: string, end: Effect.Effect<void, string>) =>
          PgClient.PgClient.use((sql) => sql.withTransaction(Effect.andThen(Tour.Ping.enqueue(undefined, { id }), end)))
        yield* use(order("kept", Effect.void))
        yield* Effect.exit(use(order("dropped", Effect.fail("no"))))
        yield* use(Watch.reaches("kept", "completed"))
        assert.strictEqual(yield* use(Watch.stateOf("dropped")), "deleted")
      }))

    it.effect("steps, cursors, sleeps, once steps and completions are recorded, each once", () =>
      Effect.gen(function*() {
        const { use } = yield* Program
        const ids = yield* use(Tour.Trip.enqueueAll(Array.from({ length: 10 }, () => undefined)))
        yield* Effect.forEach(ids, (id) => use(Watch.reaches(id, "completed")), { concurrency: 5 })
        const sql = yield* PgClient.PgClient
        const notes = yield* sql`SELECT what, count(*)::int AS n FROM note GROUP BY what ORDER BY what`
        assert.deepStrictEqual(notes, [{ what: "arrived", n: 10 }, { what: "packed", n: 10 }, { what: "paid", n: 10 }])
        assert.strictEqual(yield* use(Watch.result(ids[0]!)), "home")
      }))

    it.effect("a running job keeps its lease, and its cancel reaches it", () =>
      Effect.gen(function*() {
        const { use, worker } = yield* Program
        const id = yield* use(Tour.Lasting.enqueue(undefined))
        yield* use(Watch.reaches(id, "running"))
        const sql = yield* PgClient.PgClient
        const leaseOf = sql<{ at: bigint }>`SELECT lease_expires_at_ms AS at FROM headgate.job WHERE id = ${id}`
        const [first] = yield* leaseOf
        yield* Watch.untilRow(
          sql<{ yes: boolean }>`SELECT lease_expires_at_ms > ${first!.at} AS yes FROM headgate.job WHERE id = ${id}`,
          "the lease to be extended"
        )
        assert.strictEqual(yield* use(Watch.cancel(id)), "cancelled")
        yield* Watch.untilTrue(() => worker.told("LeaseLost", id).length === 1, "the handler to hear of its cancel")
      }))

    it.effect("a rate class and a ceiling hold", () =>
      Effect.gen(function*() {
        const { use } = yield* Program
        const metered = yield* use(Tour.Metered.enqueueAll(Array.from({ length: 8 }, () => undefined)))
        const narrow = yield* use(Tour.Narrow.enqueueAll(Array.from({ length: 8 }, () => undefined)))
        yield* Effect.forEach(narrow, (id) => use(Watch.reaches(id, "completed")), { concurrency: 5 })
        yield* Effect.forEach(metered.slice(0, 3), (id) => use(Watch.reaches(id, "completed")))
        assert.strictEqual(Tour.gauge.most, 1)
        assert.deepStrictEqual(yield* use(Watch.tally("metered")), {
          "available, attempt 0, crash_attempt 0": 5,
          "completed, attempt 0, crash_attempt 0": 3
        })
      }))

    it.effect("nothing stays behind in the sessions that all share", () =>
      Effect.gen(function*() {
        const { use, worker } = yield* Program
        const sql = yield* PgClient.PgClient
        const [server] = yield* sql<{ most: number }>`SELECT count(*)::int AS most FROM pg_stat_activity
          WHERE datname = current_database() AND application_name IN ('headgate', 'pooled')`
        assert.isAtMost(server!.most, POOL)
        const locks = yield* sql`SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
          WHERE l.locktype = 'advisory' AND d.datname = current_database() AND l.pid IN
            (SELECT pid FROM pg_stat_activity WHERE state = 'idle')`
        assert.deepStrictEqual(locks, [])
        const left = yield* use(Effect.all(
          Array.from({ length: 4 }, () =>
            PgClient.PgClient.use((sql) =>
              sql<{ n: number }>`SELECT (SELECT count(*) FROM pg_prepared_statements)::int
                + (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN
                  ('application_name', 'client_encoding', 'DateStyle', 'IntervalStyle', 'TimeZone',
                    'standard_conforming_strings'))::int AS n, pg_sleep(0.05)`
            )),
          { concurrency: "unbounded" }
        ))
        assert.deepStrictEqual(
          left.map(([row]) =>
            row?.n
          ),
          [0, 0, 0, 0]
        )
        const isWell = Effect.map(
          worker.health,
          ({ status }) => status === "working" ? Option.some(status) : Option.none()
        )
        yield* Watch.until(isWell, "the worker to be well")
      }))
  }
)

layer(TestDatabase.layer, { excludeTestServices: true })("A start behind PgBouncer", (it) => {
  const said = (url: string, options: Site.Options) =>
    Effect.map(
      Effect.exit(Effect.scoped(Site.open(url, options))),
      (exit) => Exit.isFailure(exit) ? String(exit.cause) : "no failure"
    )

  it.effect("brings the schema up to date", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.make({ isMigrated: false })
      const settings = { transactionPooling: true, migrate: true }
      const site = yield* Site.open(yield* PgBouncer.start(url, POOL), { ...pooled, settings })
      const id = yield* site.use(Tour.Ping.enqueue(undefined))
      assert.strictEqual(yield* site.use(Watch.stateOf(id)), "available")
    }).pipe(Effect.scoped))

  it.effect("is refused where the role's transactions are not read committed, which the store cannot change there", () =>
    Effect.gen(function*() {
      const { name, url } = yield* TestDatabase.TestDatabase
      const sql = yield* PgClient.PgClient
      yield* sql`ALTER DATABASE ${sql(name)} SET default_transaction_isolation = 'repeatable read'`
      const address = yield* PgBouncer.start(url, POOL)
      assert.match(yield* said(address, pooled), /default_transaction_isolation.*repeatable read/)
      yield* sql`ALTER DATABASE ${sql(name)} RESET default_transaction_isolation`
    }).pipe(Effect.scoped))

  it.effect("fails, by name, when nobody said that there is a pooler", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const address = yield* PgBouncer.start(url, POOL)
      assert.match(yield* said(address, { prepare: false }), /unsupported startup parameter/)
    }).pipe(Effect.scoped))
})
