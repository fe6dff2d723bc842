import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import * as Outcome from "@headgate/core/Outcome"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Deferred, Effect, Fiber, Layer, Redacted } from "effect"
import { SqlClient } from "effect/sql"
import * as Store from "./Store.ts"

const limit = Effect.fnUntraced(function*(queue: string, most: number | null) {
  const sql = yield* PgClient.PgClient
  yield* sql`INSERT INTO headgate.queue (name, max_unfinished_jobs) VALUES (${queue}, ${most}::bigint)
    ON CONFLICT (name) DO UPDATE SET max_unfinished_jobs = ${most}::bigint`
})

const jobsIn = Effect.fnUntraced(function*(queue: string) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.job WHERE queue = ${queue}`
  return row!.n
})

const batch = (queue: string, name: string, size: number) =>
  Array.from({ length: size }, (_, n) => ({ id: `${name}-${n}`, queue }))

/** Until a session waits for another one's transaction to end. */
const waiting = Effect.flatMap(PgClient.PgClient, (sql) =>
  Effect.repeat(
    sql<{ n: number }>`SELECT count(*)::int AS n FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    { until: ([row]) => row?.n === 1 }
  ))

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue into a queue with a limit", (it) => {
  it.effect("every unfinished job counts, whatever its lane and state, and a finished one makes room", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* limit("all", 6)
      yield* Store.enqueue({ id: "run", queue: "all" })
      const [claim] = yield* Store.admit({ queues: ["all"] })
      yield* Store.enqueue(
        { id: "pending", queue: "all", pending: true },
        { id: "later", queue: "all", delayMs: 60_000 },
        { id: "retry", queue: "all", kind: "wave" },
        { id: "tenant", queue: "all", partitionKey: "t" },
        { id: "class", queue: "all", rates: [{ class: "api", key: "k", weight: 1 }] }
      )
      yield* sql`UPDATE headgate.job SET state = 'retryable' WHERE id = 'retry'`
      assert.deepInclude(yield* Effect.flip(Store.enqueue({ id: "more", queue: "all" })), {
        _tag: "Backpressure",
        queue: "all",
        limit: 6,
        current: 6,
        incoming: 1
      })
      yield* Store.settle(claim!.lease, Outcome.success)
      const two = yield* Effect.flip(Store.enqueue(...batch("all", "two", 2)))
      assert.deepInclude(two, { _tag: "Backpressure", current: 5, incoming: 2 })
      assert.strictEqual((yield* Store.enqueue({ id: "more", queue: "all" }))[0]?.status, "created")
      assert.deepStrictEqual(yield* Effect.forEach(["two-0", "two-1"], Store.stateOf), ["deleted", "deleted"])
    }))

  it.effect("a batch is refused as a whole, with its jobs for other queues", () =>
    Effect.gen(function*() {
      yield* limit("narrow", 2)
      const refused = yield* Effect.flip(Store.enqueue({ id: "free", queue: "wide" }, ...batch("narrow", "n", 3)))
      assert.deepInclude(refused, { _tag: "Backpressure", queue: "narrow", current: 0, incoming: 3 })
      assert.deepStrictEqual([yield* jobsIn("wide"), yield* jobsIn("narrow")], [0, 0])
      yield* Store.enqueue({ id: "free", queue: "wide" }, ...batch("narrow", "n", 2))
      assert.deepStrictEqual([yield* jobsIn("wide"), yield* jobsIn("narrow")], [1, 2])
    }))

  it.effect("a limit of 0 takes nothing, and no limit takes everything", () =>
    Effect.gen(function*() {
      yield* limit("switch", 0)
      const refused = yield* Effect.flip(Store.enqueue({ id: "s", queue: "switch" }))
      assert.deepInclude(refused, { _tag: "Backpressure", limit: 0, current: 0, incoming: 1 })
      yield* limit("switch", null)
      yield* Store.enqueue({ id: "s", queue: "switch" })
      yield* limit("switch", 0)
      assert.strictEqual((yield* Effect.flip(Store.enqueue({ id: "s2", queue: "switch" })))._tag, "Backpressure")
    }))

  it.effect("a job that is sent again is no new one, even when the queue is full", () =>
    Effect.gen(function*() {
      yield* limit("again", 2)
      yield* Store.enqueue(...batch("again", "a", 2))
      const answers = yield* Store.enqueue(...batch("again", "a", 2))
      assert.deepStrictEqual(answers.map(({ status }) => status), ["existing", "existing"])
      const refused = yield* Effect.flip(Store.enqueue(...batch("again", "a", 3)))
      assert.deepInclude(refused, { _tag: "Backpressure", current: 2, incoming: 1 })
      assert.strictEqual(
        (yield* Effect.flip(Store.enqueue({ id: "a-0", queue: "again", kind: "wave" })))._tag,
        "IdConflict"
      )
    }))

  it.effect("eight producers at once fill a queue to its limit and not beyond", () =>
    Effect.gen(function*() {
      for (let round = 0; round < 5; round++) {
        const queue = `busy-${round}`
        yield* limit(queue, 2000)
        // Batches that take a while, so that they overlap.
        const answers = yield* Effect.forEach(
          Array.from({ length: 16 }, (_, n) => batch(queue, `${queue}-${n}`, 300)),
          (jobs) => Effect.result(Store.enqueue(...jobs)),
          { concurrency: 8 }
        )
        assert.strictEqual(yield* jobsIn(queue), 1800)
        const failures = answers.flatMap((answer) => answer._tag === "Failure" ? [answer.failure._tag] : [])
        assert.deepStrictEqual([failures.length, new Set(failures)], [10, new Set(["Backpressure"])])
      }
    }))

  it.effect("what an open transaction enqueued counts for others, who wait for its end", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      for (const end of ["commit", "rollback"] as const) {
        const queue = `open-${end}`
        yield* limit(queue, 3)
        const stored = yield* Deferred.make<void>()
        const go = yield* Deferred.make<void>()
        const first = yield* Effect.forkChild(Effect.exit(sql.withTransaction(Effect.gen(function*() {
          yield* Store.enqueue(...batch(queue, `${end}-a`, 2))
          // Its own jobs count as well, and the refusal leaves it usable.
          const refused = yield* Effect.flip(Store.enqueue(...batch(queue, `${end}-b`, 2)))
          assert.deepInclude(refused, { _tag: "Backpressure", current: 2, incoming: 2 })
          yield* Deferred.succeed(stored, undefined)
          yield* Deferred.await(go)
          if (end === "rollback") return yield* Effect.fail("rolled back")
        }))))
        yield* Deferred.await(stored)
        const rival = yield* Effect.forkChild(Effect.result(Store.enqueue(...batch(queue, `${end}-c`, 2))))
        yield* Effect.raceFirst(waiting, Effect.exit(Fiber.join(rival)))
        yield* Deferred.succeed(go, undefined)
        yield* Fiber.join(first)
        const answer = yield* Fiber.join(rival)
        if (end === "rollback") assert.strictEqual(answer._tag, "Success")
        else {assert.deepInclude(answer._tag === "Failure" ? answer.failure : answer, {
            _tag: "Backpressure",
            current: 2
          })}
        assert.strictEqual(yield* jobsIn(queue), 2)
      }
    }))

  it.effect("queues are waited for in the order of their names, so that no two batches wait for one another", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* limit("left", 5)
      yield* limit("right", 5)
      const stored = yield* Deferred.make<void>()
      const go = yield* Deferred.make<void>()
      const holder = yield* Effect.forkChild(sql.withTransaction(Effect.gen(function*() {
        yield* Store.enqueue({ id: "holder", queue: "left" })
        yield* Deferred.succeed(stored, undefined)
        yield* Deferred.await(go)
      })))
      yield* Deferred.await(stored)
      const both = yield* Effect.forkChild(Store.enqueue({ id: "r", queue: "right" }, { id: "l", queue: "left" }))
      yield* waiting
      // While it waits for the one, it keeps nobody from the other.
      yield* Effect.timeout(Store.enqueue({ id: "beside", queue: "right" }), "1 minute")
      yield* Deferred.succeed(go, undefined)
      yield* Fiber.join(holder)
      assert.deepStrictEqual((yield* Fiber.join(both)).map(({ status }) => status), ["created", "created"])
    }))

  it.effect("a transaction that cannot see what others commit is refused by name, and stays usable", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* limit("seen", 5)
      yield* Store.enqueue({ id: "seen-0", queue: "seen" }, { id: "unlimited-0", queue: "unlimited" })
      const refused = yield* sql.withTransaction(Effect.gen(function*() {
        const refused = yield* Effect.flip(Store.enqueue({ id: "seen-1", queue: "seen" }))
        yield* Store.enqueue({ id: "unlimited-1", queue: "unlimited" })
        return refused
      })).pipe(Effect.provideService(SqlClient.BeginTransaction, "BEGIN ISOLATION LEVEL REPEATABLE READ"))
      assert.deepInclude(refused, { _tag: "Invalid", field: "queue" })
      assert.deepStrictEqual([yield* jobsIn("seen"), yield* jobsIn("unlimited")], [1, 2])
    }))

  it.effect("a serializable client that loses its connection on the way stores its jobs once", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const { url } = yield* TestDatabase.TestDatabase
      const client = PgClient.layer({
        url: Redacted.make(url),
        startupParameters: { default_transaction_isolation: "serializable" }
      })
      yield* limit("cut", 10)
      yield* sql`CREATE SEQUENCE cuts`
      yield* sql.unsafe(`CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('transaction_isolation') = 'read committed' AND nextval('cuts') = 1 THEN
          PERFORM pg_terminate_backend(pg_backend_pid());
        END IF;
        RETURN new;
      END $$`)
      yield* sql`CREATE TRIGGER cut BEFORE INSERT ON headgate.job FOR EACH ROW WHEN (new.queue = 'cut')
        EXECUTE FUNCTION cut()`
      const live = Layer.fresh(PostgresStore.layerWith({ migrate: false, listen: false })).pipe(Layer.provide(client))
      const answers = yield* Effect.provide(Store.enqueue(...batch("cut", "job", 2)), live)
      assert.deepStrictEqual(answers.map(({ status }) => status), ["created", "created"])
      assert.strictEqual(yield* jobsIn("cut"), 2)
      const [cuts] = yield* sql<{ n: number }>`SELECT last_value::int AS n FROM cuts`
      assert.isAbove(cuts!.n, 1)
    }))

  it.effect("a client whose default isolation is serializable keeps the limit too", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const client = PgClient.layer({
        url: Redacted.make(url),
        maxConnections: 8,
        startupParameters: { default_transaction_isolation: "serializable" }
      })
      const store = yield* Layer.build(PostgresStore.layerWith({ listen: false }).pipe(Layer.provide(client)))
      yield* limit("strict", 5)
      const answers = yield* Effect.forEach(
        Array.from({ length: 16 }, (_, n) => n),
        (n) => Effect.result(Effect.provide(Store.enqueue({ id: `strict-${n}`, queue: "strict" }), store)),
        { concurrency: 8 }
      )
      const failures = new Set(answers.flatMap((answer) => answer._tag === "Failure" ? [answer.failure._tag] : []))
      assert.deepStrictEqual([yield* jobsIn("strict"), failures], [5, new Set(["Backpressure"])])
    }).pipe(Effect.scoped))
})
