import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import type { EnvelopeInput } from "@headgate/core/Envelope"
import { Wakeups } from "@headgate/core/Wakeups"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Deferred, Effect, Fiber, Layer, Option, Queue, Result, Stream, Tracer } from "effect"
import * as Store from "./Store.ts"

type Job = Partial<EnvelopeInput> & { readonly id: string }

const key = Store.bytes

/** One call a job, all at the same moment, each with its own answer. */
const enqueueEach = (jobs: ReadonlyArray<Job>) =>
  Effect.all(jobs.map((job) => Effect.result(Store.enqueue(job))), { concurrency: "unbounded" })

const numbered = (name: string, count: number, more?: Partial<EnvelopeInput>): ReadonlyArray<Job> =>
  Array.from({ length: count }, (_, n) => ({ id: `${name}-${n}`, ...more }))

/** Each job with the transaction that stored it. */
const rows = Effect.fnUntraced(function*(ids: ReadonlyArray<string>) {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ id: string; transaction: string }>`SELECT id, xmin::text AS transaction FROM headgate.job
    WHERE id = ANY(${ids}) ORDER BY id`
})

const exists = (...ids: ReadonlyArray<string>) => Effect.map(rows(ids), (found) => found.map(({ id }) => id))

/** Of jobs that `enqueueEach` stored: answers as pairs of id and status, or the refusal. */
const answers = (results: ReadonlyArray<Effect.Success<ReturnType<typeof enqueueEach>>[number]>) =>
  results.map((result) =>
    Result.isSuccess(result) ? result.success.map(({ id, status }) => `${id} ${status}`).join() : result.failure._tag
  )

const limit = Effect.fnUntraced(function*(queue: string, most: number) {
  const sql = yield* PgClient.PgClient
  yield* sql`INSERT INTO headgate.queue (name, max_unfinished_jobs) VALUES (${queue}, ${most}::bigint)`
})

/** While a transaction that enqueued `held` is open. */
const whileHeld = Effect.fnUntraced(function*<A, E, R>(held: Job, use: Effect.Effect<A, E, R>) {
  const sql = yield* PgClient.PgClient
  const stored = yield* Deferred.make<void>()
  const end = yield* Deferred.make<void>()
  const holder = yield* Effect.forkChild(sql.withTransaction(
    Effect.andThen(Store.enqueue(held), Effect.andThen(Deferred.succeed(stored, undefined), Deferred.await(end)))
  ))
  yield* Deferred.await(stored)
  return yield* Effect.ensuring(use, Effect.andThen(Deferred.succeed(end, undefined), Fiber.await(holder)))
})

/** Until so many sessions wait for another one's transaction to end. */
const waiting = (sessions: number) =>
  Effect.flatMap(PgClient.PgClient, (sql) =>
    Effect.repeat(
      sql<{ n: number }>`SELECT pg_stat_clear_snapshot()::text, count(*)::int AS n FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' GROUP BY 1`,
      { until: (found) => (found[0]?.n ?? 0) === sessions }
    ).pipe(Effect.timeout("1 minute")))

/** Past the turn of the event loop in which the next group leaves. */
const aTurn = Effect.promise(() => new Promise((resolve) => setImmediate(() => setImmediate(resolve))))

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue, many calls at once", (it) => {
  it.effect("two hundred calls share a few transactions, and each is given its own answer", () =>
    Effect.gen(function*() {
      const jobs = numbered("many", 200).map((job, n) => n % 2 === 0 ? job : { ...job, delayMs: 60_000 })
      const results = yield* enqueueEach(jobs)
      for (const [n, result] of results.entries()) {
        assert(Result.isSuccess(result))
        assert.deepInclude(result.success, {
          id: `many-${n}`,
          state: n % 2 === 0 ? "available" : "scheduled",
          status: "created"
        })
      }
      const stored = yield* rows(jobs.map(({ id }) => id))
      assert.strictEqual(stored.length, 200)
      assert.isAtMost(new Set(stored.map(({ transaction }) => transaction)).size, 10)
    }))

  it.effect("calls of more than one group all arrive", () =>
    Effect.gen(function*() {
      const jobs = numbered("groups", 2500)
      assert.isTrue((yield* enqueueEach(jobs)).every(Result.isSuccess))
      const found = yield* rows(jobs.map(({ id }) => id))
      assert.strictEqual(found.length, 2500)
      assert.isAtLeast(new Set(found.map(({ transaction }) => transaction)).size, 3)
      const large = numbered("large", 12, { payload: new Uint8Array(1_000_000) })
      assert.isTrue((yield* enqueueEach(large)).every(Result.isSuccess))
      const stored = yield* rows(large.map(({ id }) => id))
      assert.isAtLeast(new Set(stored.map(({ transaction }) => transaction)).size, 3)
    }))

  it.effect("what one call is refused for touches no other", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Store.enqueue({ id: "other-content", kind: "wave" }, { id: "same" }, { id: "holder", uniqueKey: key("u") })
      yield* sql`INSERT INTO headgate.strike (fingerprint, strikes, last_at_ms, closed_at_ms, kind, last_job_id)
        VALUES ('poison', 3, 0, 0, 'greet', 'x')`
      yield* limit("full", 1)
      yield* Store.enqueue({ id: "fills", queue: "full" })
      const results = yield* enqueueEach([
        { id: "a0" },
        { id: "other-content" },
        { id: "a1" },
        { id: "same" },
        { id: "refused-key", uniqueKey: key("u") },
        { id: "refused-print", fingerprint: "poison" },
        { id: "refused-queue", queue: "full" },
        { id: "", kind: "greet" },
        { id: "a2", uniqueKey: key("v") },
        { id: "a3", queue: "elsewhere" }
      ])
      assert.deepStrictEqual(answers(results), [
        "a0 created",
        "IdConflict",
        "a1 created",
        "same existing",
        "Duplicate",
        "Quarantined",
        "Backpressure",
        "Invalid",
        "a2 created",
        "a3 created"
      ])
      for (const n of [1, 4, 5]) {
        const result = results[n]!
        assert(Result.isFailure(result))
        assert.deepInclude(result.failure, { index: 0 })
      }
      assert.deepStrictEqual(yield* exists("a0", "a1", "a2", "a3", "refused-key", "refused-print", "refused-queue"), [
        "a0",
        "a1",
        "a2",
        "a3"
      ])
      const stored = yield* rows(["a1", "a2", "a3"])
      assert.strictEqual(new Set(stored.map(({ transaction }) => transaction)).size, 1)
      yield* sql`DELETE FROM headgate.strike`
    }))

  it.effect("calls with the same id or the same unique key are taken in the order they came", () =>
    Effect.gen(function*() {
      const results = yield* enqueueEach([
        { id: "lead" },
        { id: "t1" },
        { id: "k1", uniqueKey: key("twin"), uniqueExcludeKind: true, kind: "wave" },
        { id: "t1" },
        { id: "t1", kind: "wave" },
        { id: "k2", uniqueKey: key("twin"), uniqueExcludeKind: true }
      ])
      assert.deepStrictEqual(answers(results), [
        "lead created",
        "t1 created",
        "k1 created",
        "t1 existing",
        "IdConflict",
        "Duplicate"
      ])
      assert(Result.isFailure(results[5]!))
      assert.deepInclude(results[5]!.failure, { existingId: "k1", index: 0 })
    }))

  it.effect("a full queue is filled exactly, and the calls for other queues are stored", () =>
    Effect.gen(function*() {
      yield* limit("narrow", 7)
      const results = yield* enqueueEach([...numbered("narrow", 20, { queue: "narrow" }), ...numbered("wide", 20)])
      const told = answers(results)
      assert.strictEqual(told.slice(0, 20).filter((answer) => answer.endsWith(" created")).length, 7)
      assert.strictEqual(told.slice(0, 20).filter((answer) => answer === "Backpressure").length, 13)
      assert.isTrue(told.slice(20).every((answer) => answer.endsWith(" created")))
      assert.strictEqual((yield* exists(...numbered("narrow", 20).map(({ id }) => id))).length, 7)
    }))

  it.effect("calls in a transaction that is rolled back leave nothing, those beside it stay", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const begun = yield* Deferred.make<void>()
      const underWay = yield* Deferred.make<void>()
      const inside = sql.withTransaction(Effect.gen(function*() {
        yield* Deferred.succeed(begun, undefined)
        yield* Deferred.await(underWay)
        yield* Effect.all(numbered("inside", 5).map((job) => Store.enqueue(job)), { concurrency: "unbounded" })
        return yield* Effect.fail("no" as const)
      }))
      const caller = yield* Effect.forkChild(Effect.exit(inside))
      yield* Deferred.await(begun)
      const others = yield* Effect.forkChild(enqueueEach(numbered("beside", 50)), { startImmediately: true })
      yield* Deferred.succeed(underWay, undefined)
      const beside = yield* Fiber.join(others)
      yield* Fiber.join(caller)
      assert.isTrue(beside.every(Result.isSuccess))
      assert.deepStrictEqual(yield* exists(...numbered("inside", 5).map(({ id }) => id)), [])
      assert.strictEqual((yield* exists(...numbered("beside", 50).map(({ id }) => id))).length, 50)
    }))

  it.effect("under a tracer each call is a span of its own, and a lone call has its statement in it", () =>
    Effect.gen(function*() {
      const spans: Array<Tracer.NativeSpan> = []
      const tracer = Tracer.make({
        span: (options) => {
          const span = new Tracer.NativeSpan(options)
          spans.push(span)
          return span
        }
      })
      yield* aTurn
      yield* Store.enqueue({ id: "traced" }).pipe(Effect.withTracer(tracer))
      const [call, statement] = spans
      assert.deepStrictEqual(spans.map(({ name }) => name), ["Producer.enqueue", "postgres"])
      assert.strictEqual(Option.getOrUndefined(statement!.parent)?.spanId, call!.spanId)
      yield* enqueueEach(numbered("traced", 10)).pipe(Effect.withTracer(tracer))
      assert.strictEqual(spans.filter(({ name }) => name === "Producer.enqueue").length, 11)
    }))

  it.effect("a statement that takes long holds back its own callers only", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`CREATE TABLE closed AS SELECT`
      yield* sql.unsafe(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN WHILE EXISTS (SELECT FROM public.closed) LOOP PERFORM pg_sleep(0.02); END LOOP; RETURN NEW; END $$`)
      yield* sql`CREATE TRIGGER slow BEFORE INSERT ON headgate.job FOR EACH ROW WHEN (NEW.id = 'slow')
        EXECUTE FUNCTION slow()`
      const slow = yield* Effect.forkChild(Store.enqueue({ id: "slow" }), { startImmediately: true })
      assert.isTrue((yield* enqueueEach(numbered("quick", 5))).every(Result.isSuccess))
      assert.deepStrictEqual(yield* exists("slow"), [])
      yield* sql`DELETE FROM closed`
      assert.strictEqual((yield* Fiber.join(slow))[0]?.status, "created")
      yield* sql`DROP TRIGGER slow ON headgate.job`
    }))
})

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue in groups, beside an open transaction", (it) => {
  it.effect("a call that waits for an open transaction keeps no other waiting", () =>
    Effect.gen(function*() {
      yield* limit("locked", 100)
      const results = yield* whileHeld(
        { id: "held", uniqueKey: key("held"), queue: "locked" },
        Effect.gen(function*() {
          const rivals = yield* Effect.forkChild(enqueueEach([
            { id: "first" },
            { id: "rival", uniqueKey: key("held") },
            { id: "held", queue: "locked" },
            { id: "behind", queue: "locked" }
          ]))
          const others = Effect.timeout(enqueueEach(numbered("free", 50)), "1 minute")
          assert.isTrue((yield* others).every(Result.isSuccess))
          yield* waiting(3)
          assert.isTrue(
            (yield* others).every((result) => Result.isSuccess(result) && result.success[0]?.status === "existing")
          )
          return rivals
        })
      ).pipe(Effect.flatMap(Fiber.join))
      assert.deepStrictEqual(answers(results), ["first created", "Duplicate", "held existing", "behind created"])
    }))

  it.effect("after a group met an open transaction, calls go one by one for a moment", () =>
    Effect.gen(function*() {
      const free = numbered("lonely", 5)
      const rivals = yield* whileHeld(
        { id: "busy", uniqueKey: key("busy") },
        Effect.gen(function*() {
          const rival = yield* Effect.forkChild(enqueueEach([{ id: "busy-rival", uniqueKey: key("busy") }]))
          yield* waiting(1)
          yield* enqueueEach(free)
          return rival
        })
      ).pipe(Effect.flatMap(Fiber.join))
      assert.deepStrictEqual(answers(rivals), ["Duplicate"])
      const stored = yield* rows(free.map(({ id }) => id))
      assert.strictEqual(new Set(stored.map(({ transaction }) => transaction)).size, 5)
    }))
})

const insert = /insert into .*job /is

layer(Store.layerBehindNetwork, { excludeTestServices: true })("Producer.enqueue in groups, when things fail", (it) => {
  /** One call, and behind it calls that are waiting for it. */
  const behindOne = Effect.fnUntraced(function*(name: string, count: number) {
    const fork = (job: Job) => Effect.forkChild(Store.enqueue(job), { startImmediately: true })
    return { first: yield* fork({ id: name }), rest: yield* Effect.forEach(numbered(name, count), fork) }
  })

  it.effect("a caller that is interrupted takes no other with it", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      yield* Store.enqueue({ id: "lane" })
      yield* aTurn
      yield* network.delay(500)
      const { first, rest } = yield* behindOne("cut", 6)
      yield* Fiber.interrupt(rest[0]!)
      yield* Fiber.join(first)
      yield* aTurn
      yield* Fiber.interrupt(rest[1]!)
      const exits = yield* Effect.forEach(rest, Fiber.await)
      yield* network.delay(0)
      assert.deepStrictEqual(exits.map(({ _tag }) => _tag), [
        "Failure",
        "Failure",
        "Success",
        "Success",
        "Success",
        "Success"
      ])
      // The one had not been sent.
      assert.deepStrictEqual(yield* exists("cut-0", "cut-2", "cut-3", "cut-4", "cut-5"), [
        "cut-2",
        "cut-3",
        "cut-4",
        "cut-5"
      ])
    }))

  it.effect("when every caller of a statement is interrupted, so is the statement", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* sql`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(90); RETURN NEW; END'`
      yield* sql`CREATE TRIGGER slow BEFORE INSERT ON headgate.job FOR EACH ROW EXECUTE FUNCTION slow()`
      const callers = yield* Effect.forkChild(Store.enqueue({ id: "given-up" }), { startImmediately: true })
      const sleeping = sql<{ n: number }>`SELECT pg_stat_clear_snapshot()::text, count(*)::int AS n
        FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep' GROUP BY 1`
      yield* Effect.timeout(Effect.repeat(sleeping, { until: ([row]) => row?.n === 1 }), "1 minute")
      yield* Fiber.interrupt(callers)
      yield* Effect.timeout(Effect.repeat(sleeping, { until: ([row]) => row === undefined }), "1 minute")
      yield* sql`DROP TRIGGER slow ON headgate.job`
      assert.deepStrictEqual(yield* exists("given-up"), [])
    }))

  it.effect("calls whose common answer is lost are created once, and each is told so", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      yield* Store.enqueue({ id: "lane" })
      for (const moment of ["before", "after"] as const) {
        yield* aTurn
        const sent = yield* Effect.forkChild(
          Store.enqueue({ id: `lost-${moment}` }).pipe(Effect.andThen(network.dropOn({ sql: insert, moment }))),
          { startImmediately: true }
        )
        const jobs = numbered(`lost-${moment}`, 20).map((job, n) =>
          n % 2 === 0 ? job : { ...job, uniqueKey: key(job.id) }
        )
        const results = yield* enqueueEach(jobs)
        yield* (yield* Fiber.join(sent)).fired
        assert.deepStrictEqual(answers(results), jobs.map(({ id }) => `${id} created`))
        assert.strictEqual((yield* exists(...jobs.map(({ id }) => id))).length, 20)
      }
    }))

  it.effect("without a database each call fails by itself, and none is stored", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      yield* Store.enqueue({ id: "lane" })
      yield* aTurn
      yield* Effect.forkChild(Effect.andThen(Store.enqueue({ id: "last" }), network.cut), { startImmediately: true })
      const jobs = numbered("off", 20)
      const results = yield* enqueueEach(jobs)
      yield* network.heal
      assert.deepStrictEqual(answers(results), jobs.map(() => "StoreUnavailable"))
      assert.deepStrictEqual(yield* exists(...jobs.map(({ id }) => id)), [])
      assert.deepStrictEqual(answers(yield* enqueueEach(jobs)), jobs.map(({ id }) => `${id} created`))
    }))
})

layer(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "Producer.enqueue in groups, heard by workers",
  (it) => {
    it.effect("each queue that gets a ready job wakes its workers, one that gets a later job does not", () =>
      Effect.gen(function*() {
        const heard = yield* Queue.unbounded<string>()
        const listen = Effect.fnUntraced(function*(queue: string) {
          const stream = Wakeups.use((wakeups) => Effect.succeed(wakeups.subscribe([queue])))
          yield* Effect.forkScoped(Stream.runForEach(Stream.unwrap(stream), () => Queue.offer(heard, queue)))
          // It begins with one.
          yield* Effect.timeout(Queue.take(heard), "1 minute")
        })
        yield* listen("later")
        yield* listen("near")
        yield* listen("far")
        yield* enqueueEach([
          { id: "w0", queue: "other" },
          { id: "w1", queue: "later", delayMs: 60_000 },
          { id: "w2", queue: "near" },
          { id: "w3", queue: "far" },
          { id: "w4", queue: "far" }
        ])
        const woken = [yield* Queue.take(heard), yield* Queue.take(heard)]
        assert.deepStrictEqual(woken.toSorted(), ["far", "near"])
      }).pipe(Effect.scoped, Effect.timeout("1 minute")))
  }
)
