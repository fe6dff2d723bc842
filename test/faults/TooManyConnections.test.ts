import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import { EmbeddedPostgres } from "@headgate/testkit"
import { Cause, Effect, Layer, Redacted } from "effect"
import * as Chores from "./fixtures/Chores.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const FULL_MS = 3000

/** A server whose `application` owns the database and is no superuser; `sql` is the administrator's. */
const open = Effect.gen(function*() {
  const server = yield* EmbeddedPostgres.start()
  const client = PgClient.layer({ url: Redacted.make(server.url), maxConnections: 1, applicationName: "admin" })
  const context = yield* Layer.buildWithMemoMap(client, Layer.makeMemoMapUnsafe(), yield* Effect.scope)
  const sql = yield* Effect.provideContext(PgClient.PgClient, context)
  yield* sql`CREATE ROLE application LOGIN`
  yield* sql`CREATE DATABASE application OWNER application`
  const url = new URL(server.url)
  url.username = "application"
  url.pathname = "/application"
  return { sql, url: url.href }
})

it.live(
  "a server without room for connections is a typed failure at the start, and later costs time alone",
  () =>
    Effect.gen(function*() {
      const { sql, url } = yield* open
      const full = Effect.andThen(
        sql.unsafe("ALTER ROLE application CONNECTION LIMIT 0"),
        sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'application'`
      )
      const room = sql.unsafe("ALTER ROLE application CONNECTION LIMIT -1")

      yield* full
      const refused = yield* Effect.exit(Effect.scoped(Site.open(url, { settings: { migrate: true } })))
      assert.strictEqual(refused._tag, "Failure")
      if (refused._tag === "Failure") {
        assert.isFalse(Cause.hasDies(refused.cause))
        assert.match(Cause.pretty(refused.cause), /too many connections.*53300/)
      }

      yield* room
      const site = yield* Site.open(url, { settings: { migrate: true }, pool: 6 })
      yield* site.use(Layer.build(Chores.table))
      const worker = yield* site.work(Chores.handler(new Chores.Gauge()), { concurrency: 10, lease: "20 seconds" })
      const producer = yield* Chores.producer(site, "chore", { millis: 300, pause: 20, keys: 100 })
      yield* Watch.untilTrue(() => producer.ids.length > 20, "work in hand")
      yield* full
      yield* Effect.sleep(FULL_MS)
      yield* Watch.untilTrue(() => worker.told("StoreUnreachable").length > 0, "the worker to notice")
      const during = producer.ids.length
      yield* room
      yield* Watch.untilTrue(() => producer.ids.length > during + 10, "the producer to get through")
      yield* producer.stop
      yield* site.use(Chores.ended(producer.ids))
      assert.deepStrictEqual(yield* site.use(Chores.harmed(producer.ids)), [])
      assert.isTrue(producer.faults.size > 0 && Chores.isTyped(producer.faults), [...producer.faults].join())
      assert.deepStrictEqual(worker.told("LeaseLost"), [])
    }).pipe(Effect.scoped),
  240_000
)
