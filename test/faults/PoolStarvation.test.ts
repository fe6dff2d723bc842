import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Fence, Job, JobId, LeaseId, Leases, Task } from "@headgate/core"
import { EmbeddedPostgres, TestDatabase } from "@headgate/testkit"
import { Cause, Effect, Fiber, Layer, Schema, type Scope } from "effect"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

/** Outlasts a stall of a busy machine. */
const LEASE_MS = 6000
const HELD_MS = 2.5 * LEASE_MS
const POOL = 4

const Hog = Task.make("hog", { payload: Schema.Void, steps: ["work"], queue: "hogs" })

/** Takes a connection of the application's pool for longer than two leases. Each start leaves a row. */
const HogHandler = Hog.toLayer(Effect.fn(function*() {
  const sql = yield* PgClient.PgClient
  const { id } = yield* Job.facts
  yield* Hog.step(
    "work",
    Effect.asVoid(sql.withTransaction(Effect.gen(function*() {
      yield* sql`INSERT INTO start VALUES (${id})`
      yield* sql`SELECT pg_sleep(${HELD_MS / 1000}::float8)`
    })))
  )
}))

/** The least time any lease had left, in milliseconds, asked for every 50 ms. */
const leastLeft = Effect.fnUntraced(function*(sql: PgClient.PgClient) {
  let least = Number.POSITIVE_INFINITY
  const look = Effect.gen(function*() {
    const [row] = yield* sql<{ left: bigint | null }>`SELECT min(lease_expires_at_ms) - headgate.now_ms() AS left
      FROM headgate.job WHERE state = 'running'`
    if (row?.left !== null && row?.left !== undefined) least = Math.min(least, Number(row.left))
  })
  const fiber = yield* Effect.forkChild(Effect.forever(Effect.delay(look, 50)))
  return Effect.as(Fiber.interrupt(fiber), () => least)
})

/** The longest time a renewal took on the site's own store, asked for every 50 ms. */
const slowestRenewal = Effect.fnUntraced(function*(site: Site.Site) {
  const nobody = { jobId: JobId.make("nobody"), leaseId: LeaseId.make(crypto.randomUUID()), fence: Fence.make(1) }
  let slowest = 0
  const renew = Effect.gen(function*() {
    const sentAt = performance.now()
    yield* site.use(Leases.use((leases) => leases.renew([nobody], LEASE_MS)))
    slowest = Math.max(slowest, performance.now() - sentAt)
  })
  const fiber = yield* Effect.forkChild(Effect.forever(Effect.delay(renew, 50)))
  return Effect.as(Fiber.interrupt(fiber), () => slowest)
})

const table = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) => sql`CREATE TABLE start (job_id text NOT NULL)`)
)

layer(table.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "Handlers that take the whole pool",
  (it) => {
    it.effect(
      "renewals and settlements do not wait for them: every job starts once, and no lease comes near its end",
      () =>
        Effect.gen(function*() {
          const { url } = yield* TestDatabase.TestDatabase
          const sql = yield* PgClient.PgClient
          const sites = yield* Effect.all([Site.open(url, { pool: POOL }), Site.open(url, { pool: POOL })])
          const options = { concurrency: POOL, lease: LEASE_MS, maxBlocked: 0, pollInterval: "100 millis" as const }
          const workers = yield* Effect.forEach(sites, (site) => site.work(HogHandler, options), { concurrency: 2 })
          const stop = yield* leastLeft(sql)
          const stopRenewing = yield* slowestRenewal(sites[0])
          const ids = yield* sites[0].use(Hog.enqueueAll(Array.from({ length: 2 * POOL }, () => undefined)))
          yield* Effect.forEach(ids, (id) => sites[0].use(Watch.reaches(id, "completed")), { concurrency: "unbounded" })
          const least = (yield* stop)()
          const slowest = (yield* stopRenewing)()
          console.log(
            `pool starvation: leases of ${LEASE_MS} ms, ${least} ms left at least; slowest renewal ${slowest} ms`
          )
          assert.isBelow(slowest, HELD_MS / 2, "a renewal that waits for the pool takes longer")
          const [starts] = yield* sql`SELECT count(*)::int AS n FROM start`
          assert.deepStrictEqual(starts, { n: 2 * POOL })
          assert.deepStrictEqual(yield* Watch.tally("hogs"), { "completed, attempt 0, crash_attempt 0": 2 * POOL })
          // A renewal is due when three quarters are left.
          assert.isAbove(least, 0)
          for (const worker of workers) assert.deepStrictEqual(worker.told("LeaseLost"), [])
        }).pipe(Effect.scoped),
      240_000
    )
  }
)

/** What became of a start: its failure as text, or what it logged. To hang is no answer. */
const startOf = (open: Effect.Effect<Site.Site, unknown, Scope.Scope>) =>
  Effect.scoped(Effect.matchCause(Effect.timeout(open, "1 minute"), {
    onFailure: (cause) => Cause.pretty(cause),
    onSuccess: (site) => site.logged.join("\n")
  }))

layer(TestDatabase.layer, { excludeTestServices: true })("A connection budget that cannot work", (it) => {
  it.effect(
    "is refused at the start, by name, when it leaves the store no connection of its own",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        for (const controlConnections of [0, -1, 1.5, Number.NaN]) {
          const said = yield* startOf(Site.open(url, { settings: { controlConnections } }))
          assert.match(said, /controlConnections/)
        }
      }),
    240_000
  )

  it.effect(
    "is told at the start, with both numbers, when the server allows fewer than the pools may open",
    () =>
      Effect.gen(function*() {
        const server = yield* EmbeddedPostgres.start({ settings: { max_connections: "16" } })
        const options = { pool: 20, settings: { migrate: true, controlConnections: 4 } }
        // Beside the pools: the heartbeat's three connections and the listener's.
        const said = yield* startOf(Site.open(server.url, options))
        assert.match(said, /\b16\b/)
        assert.match(said, /\b2[48]\b/)
      }).pipe(Effect.scoped),
    240_000
  )
})
