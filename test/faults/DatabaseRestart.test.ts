import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import { EmbeddedPostgres } from "@headgate/testkit"
import { Context, Effect, Fiber, Layer, Redacted, Schedule } from "effect"
import * as Child from "./fixtures/Child.ts"
import * as Figure from "./fixtures/Figure.ts"
import { Lasting, LEASE_MS, Ping } from "./fixtures/restart.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const entry = new URL("./fixtures/restart-worker.ts", import.meta.url)

const HANDLERS = 20
/** After the server accepts connections, everything works again within this time. */
const BACK_MS = 5000
const LINES_PER_SECOND = 10

interface World {
  readonly server: EmbeddedPostgres.Server
  /** The producers' side, in this process. */
  readonly site: Site.Site
  readonly child: Child.Child
  /** A connection that is not killed with the others. */
  readonly sql: PgClient.PgClient
}

const open = Effect.gen(function*() {
  const server = yield* EmbeddedPostgres.start({ isDurable: true })
  const site = yield* Site.open(server.url, { settings: { migrate: true } })
  const client = PgClient.layer({ url: Redacted.make(server.url), maxConnections: 1, applicationName: "watcher" })
  const context = yield* Layer.buildWithMemoMap(client, Layer.makeMemoMapUnsafe(), yield* Effect.scope)
  const child = yield* Child.start(entry, { DATABASE_URL: server.url })
  const world: World = { server, site, child, sql: Context.get(context, PgClient.PgClient) }
  return world
})

/** As a producer would: again, until the store has answered. */
const persistently = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.retry(effect, Schedule.spaced(50))

const begin = Effect.fnUntraced(function*({ child, site }: World, millis: number, name: string) {
  const ids = Array.from({ length: HANDLERS }, (_, n) => `${name} ${n}`)
  yield* persistently(site.use(Lasting.enqueueAll(ids.map(() => ({ millis })), (_, n) => ({ id: ids[n] }))))
  yield* Watch.untilTrue(
    () => ids.every((id) => child.told("started").some((line) => line["id"] === id)),
    "the handlers to run"
  )
  return ids
})

/** A job whose worker is gone for good. */
const abandon = (sql: PgClient.PgClient, id: string) =>
  sql`UPDATE headgate.job SET state = 'running', fence = fence + 1, lease_id = gen_random_uuid(), worker = 'gone',
    claimed_at_ms = headgate.now_ms() - 2, lease_expires_at_ms = headgate.now_ms() - 1 WHERE id = ${id}`

/** Claims, announcements, due jobs, reclaims and renewals: each shows soon. */
const isBack = Effect.fnUntraced(function*({ child, site, sql }: World, name: string, upAt: number) {
  const toldAt = (what: string, id: string) =>
    child.told(what).find((line) => line["id"] === id || JSON.stringify(line["event"] ?? "").includes(`"${id}"`))
      ?.at
  const ids = { now: `${name} now`, due: `${name} due`, lost: `${name} lost` }
  yield* persistently(site.use(Ping.enqueue(undefined, { id: ids.lost, pending: true })))
  yield* persistently(abandon(sql, ids.lost))
  yield* persistently(site.use(Ping.enqueue(undefined, { id: ids.due, delay: "1 second" })))
  yield* persistently(site.use(Ping.enqueue(undefined, { id: ids.now })))
  yield* Watch.untilTrue(() => toldAt("ping", ids.now) !== undefined, "a new job to run")
  yield* Watch.untilTrue(() => toldAt("ping", ids.due) !== undefined, "a due job to run")
  yield* Watch.untilTrue(() => toldAt("JobReclaimed", ids.lost) !== undefined, "a lost job to be reclaimed")
  for (const [what, id] of [["ping", ids.now], ["ping", ids.due], ["JobReclaimed", ids.lost]] as const) {
    Figure.within(`${what} ${id}`, (toldAt(what, id) ?? Infinity) - upAt, BACK_MS)
  }
})

/** All of them ran once and ended well, as if nothing had been. */
const ranOnce = Effect.fnUntraced(function*({ child, site, sql }: World, ids: ReadonlyArray<string>) {
  yield* Effect.forEach(ids, (id) => persistently(site.use(Watch.reaches(id, "completed"))), { concurrency: 5 })
  const rows = yield* sql`SELECT id FROM headgate.job
    WHERE queue = 'lasting' AND NOT (state = 'completed' AND attempt = 0 AND crash_attempt = 0 AND fence = 1)`
  assert.deepStrictEqual(rows, [])
  assert.deepStrictEqual(child.told("LeaseLost"), [])
})

/** The most lines it logged in any such time. */
const mostLines = ({ child }: World, windowMs: number): number => {
  const times = child.told("log").map(({ at }) => at)
  return Math.max(0, ...times.map((from) => times.filter((at) => at >= from && at < from + windowMs).length))
}

const isUnharmed = (world: World, pid: number) => {
  const { child } = world
  assert.isTrue(child.isAlive() && child.pid === pid)
  assert.deepStrictEqual(child.told("uncaught"), [])
  assert.deepStrictEqual(child.told("warning"), [])
  assert.strictEqual(child.complaints(), "")
  assert.isAtMost(mostLines(world, 5000), 5 * LINES_PER_SECOND, `more than ${LINES_PER_SECOND} lines a second`)
}

/** Which calls it reported as failing since then. */
const complaintsSince = ({ child }: World, from: number): ReadonlyArray<string> =>
  child.told("log").filter(({ at }) => at >= from).map(({ message }) => String(message))
    .filter((message) => /failed|lost/.test(message)).map((message) => message.slice(0, 20))

/** Ends each server process of a client with a chance of one half, five times a second, but for the watcher's. */
const killAtRandom = Effect.fnUntraced(function*({ sql }: World, millis: number) {
  const kill = sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5`
  yield* Effect.timeoutOption(Effect.forever(Effect.andThen(kill, Effect.sleep(200))), millis)
})

it.live(
  "a worker's process outlives a crash, a pause and a storm of killed connections of its database",
  () =>
    Effect.gen(function*() {
      const world = yield* open
      const { child, server, site } = world
      const { pid } = child
      yield* Effect.gen(function*() {
        const first = yield* begin(world, 3000, "crash")
        yield* server.restart("immediate")
        yield* isBack(world, "after the crash", Child.now())
        yield* ranOnce(world, first)

        const second = yield* begin(world, 6000, "pause")
        const stoppedAt = Child.now()
        yield* server.stop("fast")
        yield* Effect.sleep("3 seconds")
        yield* Watch.untilTrue(() => complaintsSince(world, stoppedAt).length > 0, "the outage to be told")
        const complaints = complaintsSince(world, stoppedAt)
        assert.deepStrictEqual(complaints, [...new Set(complaints)], "each call's outage is told once")
        yield* server.start
        yield* isBack(world, "after the pause", Child.now())
        yield* ranOnce(world, second)

        // Leases are renewed in it, or lost.
        const third = yield* begin(world, LEASE_MS, "storm")
        const storm = yield* Effect.forkChild(killAtRandom(world, 1.2 * LEASE_MS))
        const pings = yield* Effect.forEach(
          Array.from({ length: 60 }, (_, n) => `in the storm ${n}`),
          (id) => Effect.delay(persistently(site.use(Ping.enqueue(undefined, { id }))), 100)
        )
        yield* Fiber.join(storm)
        yield* isBack(world, "after the storm", Child.now())
        yield* ranOnce(world, third)
        yield* Effect.forEach(pings, (id) => site.use(Watch.reaches(id, "completed")))
        const charged = yield* world.sql`SELECT id FROM headgate.job
          WHERE id LIKE 'in the storm%' AND (attempt, crash_attempt) <> (0, 0)`
        assert.deepStrictEqual(charged, [])
        isUnharmed(world, pid)
      }).pipe(Child.explaining(child))
    }).pipe(Effect.scoped),
  240_000
)
