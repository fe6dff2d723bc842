import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, describe, it, layer } from "@effect/vitest"
import type { EnvelopeInput } from "@headgate/core/Envelope"
import { IdGen } from "@headgate/core/IdGen"
import { Backpressure, IdConflict, Quarantined } from "@headgate/core/Refusals"
import { Wakeups } from "@headgate/core/Wakeups"
import * as EnqueueSql from "@headgate/postgres/EnqueueSql"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { EmbeddedPostgres, TestDatabase, Time } from "@headgate/testkit"
import { Effect, Layer, Option, Queue, Redacted, Stream } from "effect"
import * as Store from "./Store.ts"

type Job = Partial<EnvelopeInput>

const id = Effect.map(IdGen, (ids) => ids.next())

/** Jobs under new ids, as a task makes them. */
const fresh = (...jobs: ReadonlyArray<Job>) => Effect.forEach(jobs, (job) => Effect.map(id, (id) => ({ ...job, id })))

const enqueue = (...jobs: ReadonlyArray<Job>) => Effect.flatMap(fresh(...jobs), (jobs) => Store.enqueue(...jobs))

/** All of it but its id. */
const row = (id: string) => Effect.map(Store.row(id), (row) => ({ ...row, id: undefined }))

const various = (now: number): ReadonlyArray<Job> => [
  {},
  { kind: "mail", payload: Store.bytes("\u0000\ud83d\ude00"), schemaVersion: 3, queue: "", partitionKey: "shop" },
  { priority: -5, maxAttempts: 9, crashLimit: 2, timeoutMs: 1, queueTimeoutMs: 2, retentionMs: 0 },
  { delayMs: 1000, deadlineInMs: 500, headers: { a: "\"\\é" }, tags: ["b", "a,\"\\", "NULL", "{}"] },
  { delayMs: 0, deadlineAtMs: now + 5, fingerprint: "of-my-own" },
  { pending: true, delayMs: 1000, stickyWorker: "w1", stickyFallbackMs: 7 },
  {
    rates: [{ class: "b", key: "k", weight: 2 }, { class: "a", key: "", weight: 1 }],
    limits: [{ limit: "l", key: "x" }]
  }
]

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue under new ids", (it) => {
  it.effect("stores and answers what it does under any other, in one batch and one by one", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      const jobs = various(yield* Time.now())
      const named = jobs.map((job, n) => ({ ...job, id: `named-${n}` }))
      const expected = yield* Store.enqueue(...named)
      const together = yield* enqueue(...jobs)
      const apart = yield* Effect.forEach(jobs, (job) => enqueue(job))
      const mixed = yield* Effect.forEach(jobs, (job) => enqueue(job), { concurrency: "unbounded" })
      for (const answers of [together, apart.flat(), mixed.flat()]) {
        assert.deepStrictEqual(
          answers.map(({ state, status }) => [state, status]),
          expected.map(({ state, status }) => [state, status])
        )
        for (const [n, { id }] of answers.entries()) assert.deepStrictEqual(yield* row(id), yield* row(`named-${n}`))
      }
      yield* Time.resume()
    }))

  it.effect("a taken id is judged as any other, and keeps the rest of its batch out when the content differs", () =>
    Effect.gen(function*() {
      const [first, second, third] = yield* fresh({ queue: "taken" }, { queue: "taken" }, { queue: "taken" })
      yield* Store.enqueue(first!)
      const answers = yield* Store.enqueue(second!, first!)
      assert.deepStrictEqual(answers.map(({ status }) => status), ["created", "existing"])
      const refused = yield* Effect.flip(Store.enqueue(third!, { ...first!, payload: Store.bytes("other") }))
      assert.deepStrictEqual(refused, new IdConflict({ id: first!.id, index: 1 }))
      assert.isUndefined(yield* Store.row(third!.id))
      const alone = yield* Effect.flip(Store.enqueue({ ...first!, payload: Store.bytes("other") }))
      assert.deepStrictEqual(alone, new IdConflict({ id: first!.id, index: 0 }))
    }))

  it.effect("a limit refuses them, each time", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* enqueue({ queue: "bounded" })
      yield* sql`INSERT INTO headgate.queue (name, max_unfinished_jobs) VALUES ('bounded', 2)`
      yield* enqueue({ queue: "bounded" })
      for (let n = 0; n < 2; n++) {
        const refused = yield* Effect.flip(enqueue({ queue: "bounded" }))
        assert.deepStrictEqual(refused, new Backpressure({ queue: "bounded", limit: 2, current: 2, incoming: 1 }))
      }
    }))

  it.effect("a closed fingerprint refuses all of their batch, each time", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* enqueue({ queue: "poisoned", fingerprint: "poison" })
      yield* sql`INSERT INTO headgate.strike (fingerprint, strikes, last_at_ms, closed_at_ms, kind, last_job_id)
        VALUES ('poison', 3, 0, 0, 'greet', 'x')`
      for (let n = 0; n < 2; n++) {
        const refused = yield* Effect.flip(enqueue({ queue: "poisoned" }, { queue: "poisoned", fingerprint: "poison" }))
        assert.deepStrictEqual(refused, new Quarantined({ fingerprint: "poison", index: 1 }))
      }
      const [stored] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.job WHERE queue = 'poisoned'`
      assert.strictEqual(stored?.n, 1)
      yield* sql`DELETE FROM headgate.strike`
    }))

  it.effect("a lane that is missing, or is another one, is found again", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const laneOf = (id: string) =>
        sql<
          { queue: string }
        >`SELECT l.queue FROM headgate.lane l JOIN headgate.job j ON j.lane_id = l.id WHERE j.id = ${id}`
      yield* enqueue({ queue: "restored" })
      yield* sql`UPDATE headgate.lane SET queue = 'elsewhere' WHERE queue = 'restored'`
      const [one] = yield* enqueue({ queue: "restored" })
      assert.deepStrictEqual(yield* laneOf(one!.id), [{ queue: "restored" }])
      yield* sql`UPDATE headgate.lane SET queue = 'nowhere' WHERE queue = 'restored'`
      const [two, three] = yield* enqueue({ queue: "restored" }, { queue: "restored-too" })
      assert.deepStrictEqual(yield* laneOf(two!.id), [{ queue: "restored" }])
      assert.deepStrictEqual(yield* laneOf(three!.id), [{ queue: "restored-too" }])
    }))

  it.effect("strikes that closed nothing cost them nothing, though no statistics know of them", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`ALTER TABLE headgate.strike SET (autovacuum_enabled = false)`
      yield* sql`INSERT INTO headgate.strike (fingerprint, strikes, last_at_ms, kind, last_job_id)
        SELECT 'f' || n, 1, n, 'greet', 'x' FROM generate_series(1, 20000) n`
      const [job] = yield* fresh({ queue: "struck" })
      const place = { queue: "struck", kind: "greet", version: 1, worker: "", fallsBack: false, isPartitioned: false }
      const lane = { ...place, id: 0, varies: false, classes: [], limits: [] }
      const { insert, plain } = EnqueueSql.make("headgate")
      const jobs = [Store.job(job!)]
      for (const [text, params] of [plain(jobs, [lane], undefined, false), insert(jobs, [lane], true)]) {
        const plan = JSON.stringify(yield* sql.unsafe(`EXPLAIN ${text}`, params))
        assert.notInclude(plan, "Seq Scan on strike")
        assert.include(plan, "strike_closed")
      }
      yield* sql`TRUNCATE headgate.strike`
    }))

  it.effect("a session that reads backslashes in its own way computes the same fingerprint", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const print = sql<{ print: string }>`SELECT headgate.content_fingerprint('greet', 'ada') AS print`.unprepared
      const other = yield* sql.withTransaction(
        Effect.andThen(sql`SET LOCAL standard_conforming_strings = off`, print)
      )
      assert.deepStrictEqual(other, yield* print)
    }))

  it.effect("the fingerprint is computed inside the statement, without a call for each row", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const plan = yield* sql<{ "QUERY PLAN": string }>`EXPLAIN (VERBOSE)
        SELECT headgate.content_fingerprint(j.kind, j.payload) FROM headgate.job j`
      assert.notInclude(JSON.stringify(plan), "content_fingerprint")
    }))
})

layer(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "Producer.enqueue under new ids, with listening workers",
  (it) => {
    it.effect("a job that is ready wakes its workers, in a burst as well, and one that starts later wakes nobody", () =>
      Effect.gen(function*() {
        const subscribe = Effect.fnUntraced(function*(queue: string) {
          const heard = yield* Queue.sliding<void>(1)
          const stream = Wakeups.use((wakeups) => Effect.succeed(wakeups.subscribe([queue])))
          yield* Effect.forkScoped(Stream.runForEach(Stream.unwrap(stream), () => Queue.offer(heard, undefined)))
          // It begins with one.
          yield* Queue.take(heard)
          return heard
        })
        const ready = yield* subscribe("ready")
        const other = yield* subscribe("other")
        const later = yield* subscribe("later")
        yield* enqueue({ queue: "ready" }, { queue: "later", delayMs: 60_000 })
        yield* Queue.take(ready)
        for (let n = 0; n < 50; n++) yield* enqueue({ queue: "ready" })
        yield* enqueue({ queue: "other" })
        yield* Queue.take(ready)
        yield* Queue.take(other)
        assert.isTrue(Option.isNone(yield* Effect.timeoutOption(Queue.take(later), "50 millis")))
      }).pipe(Effect.scoped, Effect.timeout("30 seconds")))

    it.effect("the first after a quiet moment is announced by its own commit, a busy process announces apart", () =>
      Effect.gen(function*() {
        const pg = yield* PgClient.PgClient
        yield* enqueue({ queue: "quiet" })
        const heard = yield* pg.listen("headgate_wake")
        const announcer = Effect.gen(function*() {
          const { processId } = yield* Queue.take(heard)
          const [session] = yield* pg<{ name: string }>`SELECT application_name AS name FROM pg_stat_activity
            WHERE pid = ${processId}`
          return session?.name === "headgate" ? "the store" : "the enqueue"
        })
        yield* Effect.sleep("50 millis")
        yield* enqueue({ queue: "quiet" })
        assert.strictEqual(yield* announcer, "the enqueue")
        yield* Effect.forEach(Array.from({ length: 100 }), () => enqueue({ queue: "quiet" }), { concurrency: 2 })
        yield* Effect.repeat(announcer, { until: (who) => who === "the store" })
      }).pipe(Effect.scoped, Effect.timeout("30 seconds")))

    it.effect("jobs are stored as well where nothing can be announced", () =>
      Effect.gen(function*() {
        const { name, url } = yield* TestDatabase.TestDatabase
        const sql = yield* PgClient.PgClient
        const role = `mute_${name}`
        yield* Effect.acquireRelease(
          sql.unsafe(`CREATE ROLE ${role}`),
          () => Effect.orDie(sql.unsafe(`DROP OWNED BY ${role}`).pipe(Effect.andThen(sql.unsafe(`DROP ROLE ${role}`))))
        )
        yield* sql.unsafe(`GRANT ALL ON SCHEMA headgate TO ${role}`)
        yield* sql.unsafe(`GRANT ALL ON ALL TABLES IN SCHEMA headgate TO ${role}`)
        yield* sql.unsafe(`GRANT ALL ON ALL SEQUENCES IN SCHEMA headgate TO ${role}`)
        yield* sql`REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM public`
        const mute = PgClient.layer({ url: Redacted.make(url), startupParameters: { role } })
        const store = PostgresStore.layerWith({ migrate: false }).pipe(Layer.provide(mute))
        const answers = yield* Effect.provide(enqueue({ queue: "mute" }, { queue: "mute" }), store)
        assert.deepStrictEqual(answers.map(({ status }) => status), ["created", "created"])
      }).pipe(Effect.scoped))
  }
)

describe("Producer.enqueue while another announcement does not come to its end", () => {
  it.live("stores and answers all the same", () =>
    Effect.gen(function*() {
      // Without its standby this server keeps every commit waiting, but for those that do not ask for it.
      const settings = { synchronous_standby_names: "gone", synchronous_commit: "local" }
      const { url } = yield* EmbeddedPostgres.start({ settings })
      const live = PostgresStore.layer.pipe(Layer.provideMerge(PgClient.layer({ url: Redacted.make(url) })))
      yield* Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        yield* enqueue({ queue: "jammed" })
        yield* Effect.forkChild(sql.withTransaction(Effect.all([
          sql`SET LOCAL synchronous_commit = on`,
          sql`CREATE TABLE stuck ()`,
          sql`SELECT pg_notify('other', '')`
        ])))
        yield* Effect.repeat(sql`SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'`, {
          until: (rows) => rows.length === 1
        })
        yield* Effect.sleep("50 millis")
        const [job] = yield* Effect.timeout(enqueue({ queue: "jammed" }), "20 seconds")
        assert.deepInclude(yield* Store.row(job!.id), { state: "available" })
        yield* sql`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`
      }).pipe(Effect.provide(live))
    }).pipe(Effect.scoped))
})
