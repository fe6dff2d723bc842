import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import type { LeaseRef } from "@headgate/core/Ids"
import { Leases } from "@headgate/core/Leases"
import { BodyFailure, type OnceWrite, Transactional } from "@headgate/core/Transactional"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Deferred, Effect, Exit, Fiber, Layer, Redacted } from "effect"
import { SqlClient, SqlError } from "effect/sql"
import * as Store from "./Store.ts"

const write = (lease: LeaseRef, parts: Partial<OnceWrite> = {}): OnceWrite => ({
  lease,
  leaseMs: 30_000,
  step: "pay",
  position: 0,
  effectKey: `${lease.jobId}/pay`,
  mark: undefined,
  ...parts
})

/** The application's own table. */
const payments = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) => sql`CREATE TABLE payment (who text NOT NULL)`)
)
const pay = (who: string) => Effect.flatMap(PgClient.PgClient, (sql) => sql`INSERT INTO payment VALUES (${who})`)
const paid = (who: string) =>
  Effect.flatMap(
    PgClient.PgClient,
    (sql) =>
      Effect.map(sql<{ n: number }>`SELECT count(*)::int AS n FROM payment WHERE who = ${who}`, ([row]) => row?.n)
  )

const once = <E, R>(parts: OnceWrite, body: Effect.Effect<unknown, E, R>, result = "receipt") =>
  Transactional.use((store) => store.once(parts, Effect.as(body, result), (text) => Effect.succeed(Store.bytes(text))))

const complete = <E, R>(lease: LeaseRef, body: Effect.Effect<unknown, E, R>) =>
  Transactional.use((store) =>
    store.complete(lease, Effect.as(body, 7), (n) => Effect.succeed({ version: 1, bytes: Store.bytes(String(n)) }))
  )

layer(payments.pipe(Layer.provideMerge(Store.layer)), { excludeTestServices: true })("Transactional.once", (it) => {
  it.effect("the body's writes, the key and the step record are there together, and the lease is extended", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "one" }, { leaseMs: 10 })
      const result = yield* once(write(lease, { mark: "next", leaseMs: 60_000 }), pay("one"))
      assert.deepStrictEqual(result, { _tag: "Committed", value: "receipt" })
      assert.strictEqual(yield* paid("one"), 1)
      assert.deepStrictEqual(yield* Store.columns("one", "has_steps", "in_progress_step"), [true, "next"])
      const sql = yield* PgClient.PgClient
      assert.deepStrictEqual(yield* sql`SELECT kind, result FROM headgate.step WHERE job_id = 'one'`, [
        { kind: "once", result: Store.bytes("receipt") }
      ])
      const row = yield* Store.row("one")
      assert.isAbove(Number(row?.["lease_expires_at_ms"]) - Number(row?.["claimed_at_ms"]), 30_000)
    }))

  it.effect("a claimed key gives back its result and records the step, and no body runs", () =>
    Effect.gen(function*() {
      const first = yield* Store.running({ id: "k1" })
      yield* once(write(first, { effectKey: "global" }), pay("k"))
      const second = yield* Store.running({ id: "k2" })
      const result = yield* once(write(second, { effectKey: "global" }), pay("k"))
      assert.deepStrictEqual(result, { _tag: "Already", result: Store.bytes("receipt") })
      assert.strictEqual(yield* paid("k"), 1)
      assert.strictEqual(yield* Store.count("step", "k2"), 1)
    }))

  it.effect("a lease lost while the body ran leaves nothing behind", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "late" })
      const slow = Effect.andThen(pay("late"), reclaimElsewhere(lease))
      assert.deepInclude(yield* Effect.flip(once(write(lease), slow)), { _tag: "LeaseRejected", state: "retryable" })
      assert.strictEqual(yield* paid("late"), 0)
      assert.strictEqual(yield* Store.count("effect", "late"), 0)
      assert.strictEqual(yield* Store.count("step", "late"), 0)
    }))

  it.effect("a stale lease is given no result of a claimed key", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "stale" })
      yield* once(write(lease), pay("stale"))
      yield* Store.loseLease(lease)
      const before = yield* Store.row("stale")
      assert.strictEqual((yield* Effect.flip(once(write(lease), pay("stale"))))._tag, "LeaseRejected")
      assert.deepStrictEqual(yield* Store.row("stale"), before)
    }))

  it.effect("the body's own failure, defect or interruption rolls everything back and stays what it is", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "fails" })
      const failure = yield* Effect.flip(
        once(write(lease), Effect.andThen(pay("fails"), Effect.fail("declined" as const)))
      )
      assert.deepStrictEqual(failure, new BodyFailure("declined"))
      const sqlFailure = yield* Effect.flip(
        once(write(lease), Effect.flatMap(PgClient.PgClient, (sql) => sql`SELECT 1/0`))
      )
      assert.isTrue(sqlFailure._tag === "BodyFailure" && SqlError.isSqlError(sqlFailure.error))
      assert.isTrue(
        Exit.hasDies(yield* Effect.exit(once(write(lease), Effect.andThen(pay("fails"), Effect.die("bug")))))
      )
      const started = yield* Deferred.make<void>()
      const endless = pay("fails").pipe(
        Effect.andThen(Deferred.succeed(started, undefined)),
        Effect.andThen(Effect.never)
      )
      const fiber = yield* Effect.forkChild(once(write(lease), endless))
      yield* Deferred.await(started)
      yield* Fiber.interrupt(fiber)
      assert.strictEqual(yield* paid("fails"), 0)
      assert.strictEqual(yield* Store.count("effect", "fails"), 0)
      assert.strictEqual((yield* once(write(lease), pay("fails")))._tag, "Committed")
    }))

  it.effect("two attempts with one key at once run one body", () =>
    Effect.gen(function*() {
      const leases = yield* Effect.forEach([0, 1, 2, 3], (n) => Store.running({ id: `race-${n}` }))
      const results = yield* Effect.all(leases.map((lease) => once(write(lease, { effectKey: "race" }), pay("race"))), {
        concurrency: 4
      })
      assert.deepStrictEqual(results.map(({ _tag }) => _tag).sort(), ["Already", "Already", "Already", "Committed"])
      assert.strictEqual(yield* paid("race"), 1)
    }))

  it.effect("jobs enqueued by the body come with its commit", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "parent" })
      yield* Effect.flip(once(write(lease), Effect.andThen(Store.enqueue({ id: "child" }), Effect.fail("no"))))
      assert.strictEqual(yield* Store.stateOf("child"), "deleted")
      yield* once(write(lease), Store.enqueue({ id: "child" }))
      assert.strictEqual(yield* Store.stateOf("child"), "available")
    }))

  it.effect("inside an open transaction it is refused, whoever opened it", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "open" })
      const sql = yield* PgClient.PgClient
      assert.strictEqual(
        (yield* Effect.flip(sql.withTransaction(once(write(lease), pay("open")))))._tag,
        "ForeignTransaction"
      )
      assert.strictEqual(
        (yield* Effect.flip(sql.withTransaction(complete(lease, pay("open")))))._tag,
        "ForeignTransaction"
      )
      const nested = yield* Effect.flip(once(write(lease), once(write(lease, { step: "in" }), pay("open"))))
      assert.isTrue(nested._tag === "BodyFailure" && nested.error._tag === "ForeignTransaction")
      const { url } = yield* TestDatabase.TestDatabase
      const store = yield* Transactional
      const foreign = Effect.gen(function*() {
        const other = yield* SqlClient.SqlClient
        return yield* Effect.flip(
          other.withTransaction(store.once(write(lease), Effect.void, () => Effect.succeed(undefined)))
        )
      })
      const client = PgClient.layer({ url: Redacted.make(url), maxConnections: 1 })
      assert.strictEqual((yield* Effect.provide(foreign, client))._tag, "ForeignTransaction")
      assert.strictEqual(yield* paid("open"), 0)
    }))

  it.effect("the refusal inside the application's own transaction blames no other client", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "own" })
      const sql = yield* PgClient.PgClient
      const refused = yield* Effect.flip(sql.withTransaction(once(write(lease), pay("own"))))
      assert.include(String(refused), "an open transaction: it commits one of its own")
    }))

  it.effect("a renewal while the body runs spoils nothing, whatever isolation the application has by default", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const startupParameters = { default_transaction_isolation: "repeatable read" }
      const strict = PgClient.layer({ url: Redacted.make(url), maxConnections: 2, startupParameters })
      const lease = yield* Store.running({ id: "strict" })
      const leases = yield* Leases
      const body = Effect.andThen(pay("strict"), leases.renew([lease], 60_000))
      const both = Effect.andThen(once(write(lease), body), complete(lease, body))
      yield* Effect.provide(both, PostgresStore.layerWith({ listen: false }).pipe(Layer.provideMerge(strict)))
      assert.strictEqual(yield* paid("strict"), 2)
      assert.strictEqual(yield* Store.stateOf("strict"), "completed")
    }))
})

layer(payments.pipe(Layer.provideMerge(Store.layer)), { excludeTestServices: true })("Transactional.complete", (it) => {
  it.effect("the body's writes, its result and the success are one commit", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "done" })
      assert.strictEqual(yield* complete(lease, pay("done")), 7)
      assert.strictEqual(yield* paid("done"), 1)
      assert.deepStrictEqual(yield* Store.columns("done", "state", "result", "worker"), ["completed", "\\x37", null])
    }))

  it.effect("a lease lost while the body ran leaves nothing behind", () =>
    Effect.gen(function*() {
      for (const retentionMs of [0, 60_000]) {
        const lease = yield* Store.running({ id: `lost-${retentionMs}`, retentionMs })
        const refused = yield* Effect.flip(complete(lease, Effect.andThen(pay("lost"), reclaimElsewhere(lease))))
        assert.deepInclude(refused, { _tag: "LeaseRejected", state: "retryable" })
        assert.strictEqual(yield* paid("lost"), 0)
        assert.strictEqual(yield* Store.stateOf(lease.jobId), "retryable")
      }
    }))

  it.effect("a failing body leaves the job running", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "broken" })
      const failure = yield* Effect.flip(complete(lease, Effect.andThen(pay("broken"), Effect.fail("no"))))
      assert.deepStrictEqual(failure, new BodyFailure("no"))
      assert.strictEqual(yield* paid("broken"), 0)
      assert.strictEqual(yield* Store.stateOf("broken"), "running")
    }))

  it.effect("a body that rolls back by hand completes nothing", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "by-hand" })
      const sql = yield* PgClient.PgClient
      const failure = yield* Effect.flip(complete(lease, Effect.andThen(pay("by-hand"), sql`ROLLBACK`)))
      assert.strictEqual(failure._tag, "StoreUnavailable")
      assert.strictEqual(yield* paid("by-hand"), 0)
      assert.strictEqual(yield* Store.stateOf("by-hand"), "running")
    }))
})

layer(payments.pipe(Layer.provideMerge(Store.layerBehindNetwork)), { excludeTestServices: true })(
  "Transactional behind a failing network",
  (it) => {
    it.effect("a commit whose answer is lost counts, and its body ran once", () =>
      Effect.gen(function*() {
        const network = yield* Store.Network
        const lease = yield* Store.running({ id: "after" })
        yield* network.dropOn({ sql: /^COMMIT/i, moment: "after" })
        assert.strictEqual((yield* once(write(lease), pay("after")))._tag, "Committed")
        for (const retentionMs of [0, 60_000]) {
          const ending = yield* Store.running({ id: `after-${retentionMs}`, retentionMs })
          yield* network.dropOn({ sql: /^COMMIT/i, moment: "after" })
          assert.strictEqual(yield* complete(ending, pay("after")), 7)
        }
        assert.strictEqual(yield* paid("after"), 3)
      }))

    it.effect("an outage right after the commit makes no difference: it is looked up when the store is back", () =>
      Effect.gen(function*() {
        const network = yield* Store.Network
        const lease = yield* Store.running({ id: "outage" })
        for (
          const commit of [
            Effect.asVoid(once(write(lease), pay("outage"))),
            Effect.asVoid(complete(lease, pay("outage")))
          ]
        ) {
          const { fired } = yield* network.dropOn({ sql: /^COMMIT/i, moment: "after" })
          const running = yield* Effect.forkChild(commit)
          yield* fired
          yield* network.cut
          yield* Effect.sleep("500 millis")
          yield* network.heal
          yield* Effect.timeout(Fiber.join(running), "1 minute")
        }
        assert.strictEqual(yield* paid("outage"), 2)
      }))

    it.effect("a commit that never arrived is a typed failure, and nothing of it is left", () =>
      Effect.gen(function*() {
        const network = yield* Store.Network
        const lease = yield* Store.running({ id: "before" })
        yield* network.dropOn({ sql: /^COMMIT/i, moment: "before" })
        assert.strictEqual((yield* Effect.flip(once(write(lease), pay("before"))))._tag, "StoreUnavailable")
        yield* network.dropOn({ sql: /^COMMIT/i, moment: "before" })
        assert.strictEqual((yield* Effect.flip(complete(lease, pay("before"))))._tag, "StoreUnavailable")
        assert.strictEqual(yield* paid("before"), 0)
        assert.strictEqual(yield* complete(lease, pay("before")), 7)
        assert.strictEqual(yield* paid("before"), 1)
      }))

    it.effect("a connection lost before the commit is a typed failure, never a defect", () =>
      Effect.gen(function*() {
        const network = yield* Store.Network
        const lease = yield* Store.running({ id: "middle" })
        for (const sql of [/insert into .*effect/i, /with held as/i]) {
          yield* network.dropOn({ sql, moment: "before" })
          assert.strictEqual((yield* Effect.flip(once(write(lease), Effect.void)))._tag, "StoreUnavailable")
        }
        yield* network.dropOn({ sql: /insert into payment/i, moment: "before" })
        assert.strictEqual((yield* Effect.flip(once(write(lease), pay("middle"))))._tag, "StoreUnavailable")
        assert.strictEqual(yield* paid("middle"), 0)
      }))
  }
)

/** As `loseLease`, outside the transaction of the calling fiber. */
const reclaimElsewhere = Effect.fnUntraced(function*(lease: LeaseRef) {
  const { url } = yield* TestDatabase.TestDatabase
  yield* Effect.provide(Store.loseLease(lease), PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))
})
