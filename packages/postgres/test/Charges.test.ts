import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Gate } from "@headgate/core/Gate"
import type { LeaseRef } from "@headgate/core/Ids"
import { type Charge, Leases } from "@headgate/core/Leases"
import * as Outcome from "@headgate/core/Outcome"
import { Policies } from "@headgate/core/Policies"
import { Transactional } from "@headgate/core/Transactional"
import * as SettleRows from "@headgate/postgres/SettleRows"
import { Time } from "@headgate/testkit"
import { Effect, Fiber } from "effect"
import * as Store from "./Store.ts"

const boom = { tag: "Boom", message: "boom", text: "Boom: boom" }
const windowMs = 1000
const burst = 100
const day = 86_400_000

/** A class that refills next to nothing while a test runs. */
const define = Effect.fnUntraced(function*(...classes: ReadonlyArray<string>) {
  const sql = yield* PgClient.PgClient
  for (const name of classes) {
    yield* sql`INSERT INTO headgate.rate_class (name, rate_limit, window_ms, burst) VALUES (${name}, 1, ${windowMs}, ${burst})`
  }
})

const bucket = Effect.fnUntraced(function*(name: string, key = "") {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ tokens: number; closed: number }>`SELECT b.units::float8 / ${windowMs} AS tokens,
    b.closed_until_ms::float8 AS closed FROM headgate.bucket b WHERE b.class = ${name} AND b.key = ${key}`
  return rows[0]
})

const tokens = (name: string, key?: string) => Effect.map(bucket(name, key), (found) => found?.tokens)

const rate = (name: string, weight = 10, key = "") => ({ class: name, key, weight })

/** One job that was charged and runs. */
const charged = (id: string, ...rates: ReadonlyArray<ReturnType<typeof rate>>) => Store.running({ id, rates })

const settle = (lease: LeaseRef, outcome: Outcome.Outcome, ...charges: ReadonlyArray<Charge>) =>
  Effect.map(Leases.use((leases) => leases.settle([{ lease, outcome, charges }])), ([answer]) => answer)

layer(Store.layer, { excludeTestServices: true })("Charges", (it) => {
  it.effect("a settlement takes the difference from the bucket, or gives it back, in every outcome but a crash", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("diff")
      const cases = [
        [Outcome.success, 3, 7],
        [Outcome.success, 0, 10],
        [Outcome.success, 25, -15],
        [Outcome.retry(1000, boom), 4, 6],
        [Outcome.fatal(boom), 4, 6],
        [Outcome.snooze(1000), 4, 6],
        [Outcome.revoke, 4, 6],
        [Outcome.released, 4, 6],
        [Outcome.crashed(boom), 4, 0]
      ] as const
      for (const [n, [outcome, actual, difference]] of cases.entries()) {
        yield* Effect.flatMap(PgClient.PgClient, (sql) => sql`DELETE FROM headgate.bucket`)
        const lease = yield* charged(`diff-${n}`, rate("diff"))
        assert.strictEqual(yield* tokens("diff"), 90)
        assert.strictEqual((yield* settle(lease, outcome, { actual }))?._tag, "Applied")
        const text = `${outcome._tag} that cost ${actual}`
        assert.deepStrictEqual(yield* bucket("diff"), { tokens: 90 + difference, closed: 0 }, text)
      }
    }))

  it.effect("the estimate stays where nothing is said", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("estimate")
      const outcomes = [Outcome.success, Outcome.retry(1000, boom), Outcome.snooze(1000), Outcome.released]
      for (const [n, outcome] of outcomes.entries()) {
        yield* Store.settle(yield* charged(`estimate-${n}`, rate("estimate")), outcome)
        assert.strictEqual(yield* tokens("estimate"), 90 - 10 * n)
      }
    }))

  it.effect("a bucket is never given more than its burst, and what was refilled meanwhile is counted once", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("cap")
      const [one, two] = [yield* charged("cap-1", rate("cap", 10)), yield* charged("cap-2", rate("cap", 20))]
      yield* Time.advance("5 seconds")
      yield* settle(one, Outcome.success, { actual: 0 })
      assert.strictEqual(yield* tokens("cap"), 85)
      yield* Time.advance("10 seconds")
      yield* settle(two, Outcome.success, { actual: 0 })
      assert.strictEqual(yield* tokens("cap"), 100)
    }))

  it.effect("a bare number speaks of all buckets of the job, a class of its own, a key of one, and the last word counts", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("m1", "m2")
      const rates = [rate("m1", 10, "x"), rate("m1", 10, "y"), rate("m2", 10)]
      const seen = Effect.all([tokens("m1", "x"), tokens("m1", "y"), tokens("m2")])
      yield* settle(yield* charged("m-1", ...rates), Outcome.success, { actual: 1 })
      assert.deepStrictEqual(yield* seen, [99, 99, 99])
      yield* settle(yield* charged("m-2", ...rates), Outcome.success, { class: "m1", actual: 1 })
      assert.deepStrictEqual(yield* seen, [98, 98, 89])
      yield* settle(yield* charged("m-3", ...rates), Outcome.success, { class: "m1", key: "y", actual: 1 }, {
        class: "unknown",
        actual: 0
      })
      assert.deepStrictEqual(yield* seen, [88, 97, 79])
      yield* settle(yield* charged("m-4", ...rates), Outcome.success, { actual: 5 }, { class: "m2", actual: 2 })
      assert.deepStrictEqual(yield* seen, [83, 92, 77])
    }))

  it.effect("a holder that has lost its lease gives nothing back, and a settlement sent again nothing twice", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("fence")
      const stale = yield* charged("fence-1", rate("fence"))
      yield* Store.loseLease(stale)
      for (const outcome of [Outcome.success, Outcome.released, Outcome.rateLimited({ pushBackMs: 5000 })]) {
        assert.strictEqual((yield* settle(stale, outcome, { actual: 0 }))?._tag, "Rejected")
      }
      assert.deepStrictEqual(yield* bucket("fence"), { tokens: 90, closed: 0 })
      const twice = yield* charged("fence-2", rate("fence"))
      yield* settle(twice, Outcome.success, { actual: 4 })
      assert.strictEqual((yield* settle(twice, Outcome.success, { actual: 4 }))?._tag, "Applied")
      assert.strictEqual(yield* tokens("fence"), 86)
    }))

  it.effect("a holder that loses its lease at this moment gives nothing back", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("moment")
      const lease = yield* charged("moment", rate("moment"))
      const answer = yield* Store.duringReclaim([lease], settle(lease, Outcome.success, { actual: 0 }))
      assert.strictEqual(answer?._tag, "Rejected")
      assert.strictEqual(yield* tokens("moment"), 90)
    }))

  it.effect("a rate-limited attempt gives back its estimate, and closes the job's own buckets for a day at most", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* define("p1", "p2")
      const rates = [rate("p1", 10, "x"), rate("p2", 10)]
      yield* settle(yield* charged("p-0", rate("p1", 10, "other")), Outcome.success)
      const limited = (
        id: string,
        options: Parameters<typeof Outcome.rateLimited>[0],
        ...charges: ReadonlyArray<Charge>
      ) => Effect.flatMap(charged(id, ...rates), (lease) => settle(lease, Outcome.rateLimited(options), ...charges))
      yield* limited("p-1", {})
      assert.deepStrictEqual(yield* bucket("p1", "x"), { tokens: 100, closed: 0 })
      yield* limited("p-2", { pushBackMs: 5000 }, { class: "p2", actual: 4 })
      assert.deepStrictEqual(yield* bucket("p1", "x"), { tokens: 100, closed: now + 5000 })
      assert.deepStrictEqual(yield* bucket("p2"), { tokens: 96, closed: now + 5000 })
      assert.deepStrictEqual(yield* bucket("p1", "other"), { tokens: 90, closed: 0 })
      yield* Store.enqueue({ id: "p-held", queue: "p-held", rates })
      assert.deepStrictEqual(yield* Store.admit({ queues: ["p-held"] }), [])
      yield* Time.advance("5 seconds")
      const [claim] = yield* Store.admit({ queues: ["p-held"] })
      yield* settle(claim!.lease, Outcome.rateLimited({ pushBackMs: 10 * day, rateClass: "p2" }))
      assert.strictEqual((yield* bucket("p1", "x"))?.closed, now + 5000)
      assert.strictEqual((yield* bucket("p2"))?.closed, now + 5000 + day)
    }))

  it.effect("a push-back never shortens a longer one", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* define("longest")
      const [one, two] = [yield* charged("long-1", rate("longest")), yield* charged("long-2", rate("longest"))]
      yield* settle(one, Outcome.rateLimited({ pushBackMs: 60_000 }))
      yield* settle(two, Outcome.rateLimited({ pushBackMs: 1000 }))
      assert.strictEqual((yield* bucket("longest"))?.closed, now + 60_000)
    }))

  it.effect("what a call of the gate claimed and nobody heard of is given back with its charge", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("abandon")
      const id = Store.leaseId()
      yield* Store.enqueue(
        { id: "abandon-1", queue: "abandon", rates: [rate("abandon", 10)] },
        { id: "abandon-2", queue: "abandon", rates: [rate("abandon", 30)] },
        { id: "abandon-3", queue: "abandon" }
      )
      assert.strictEqual((yield* Store.admit({ queues: ["abandon"], leaseId: id })).length, 3)
      assert.strictEqual(yield* tokens("abandon"), 60)
      assert.strictEqual(yield* Gate.use((gate) => gate.abandon(id)), 3)
      assert.strictEqual(yield* tokens("abandon"), 100)
      assert.strictEqual(yield* Gate.use((gate) => gate.abandon(id)), 0)
      assert.strictEqual((yield* Store.admit({ queues: ["abandon"] })).length, 3)
    }))

  it.effect("a completion in a transaction corrects its charge with it, or not at all", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("commit")
      const complete = (lease: LeaseRef, body: Effect.Effect<void, string>) =>
        Transactional.use((store) => store.complete(lease, body, () => Effect.undefined, () => [{ actual: 2 }]))
      const lease = yield* charged("commit-1", rate("commit"))
      yield* Effect.flip(complete(lease, Effect.fail("no")))
      assert.strictEqual(yield* tokens("commit"), 90)
      yield* complete(lease, Effect.void)
      assert.strictEqual(yield* tokens("commit"), 98)
      const stale = yield* charged("commit-2", rate("commit"))
      yield* Store.loseLease(stale)
      yield* Effect.flip(complete(stale, Effect.void))
      assert.strictEqual(yield* tokens("commit"), 88)
    }))

  it.effect("charges and corrections that meet lose nothing of one another", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Time.freeze()
      yield* define("r1", "r2")
      yield* sql`UPDATE headgate.rate_class SET burst = 1000000 WHERE name IN ('r1', 'r2')`
      const count = 200
      yield* Store.enqueue(...Array.from({ length: count }, (_, n) => ({
        id: `race-${n}`,
        queue: "race",
        rates: n % 2 === 0 ? [rate("r1"), rate("r2")] : [rate("r2"), rate("r1")]
      })))
      const run = Effect.gen(function*() {
        for (;;) {
          const claims = yield* Store.admit({ queues: ["race"], capacity: 10 })
          if (claims.length === 0) return
          yield* Leases.use((leases) =>
            leases.settle(claims.map(({ lease }) => ({ lease, outcome: Outcome.success, charges: [{ actual: 7 }] })))
          )
        }
      })
      yield* Effect.all([run, run, run, run], { concurrency: 4 })
      assert.deepStrictEqual([yield* tokens("r1"), yield* tokens("r2")], [1e6 - 7 * count, 1e6 - 7 * count])
    }))

  it.effect("the gate and a change of the rate lock buckets as settlements do: while one waits for a key it holds none behind", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Time.freeze()
      yield* define("order")
      const keyed = (key: string, partitionKey: string) =>
        Store.enqueue({ id: `order-${key}`, queue: "order", partitionKey, rates: [rate("order", 1, key)] })
      yield* sql`INSERT INTO headgate.bucket (class, key, units, at_ms)
        SELECT 'order', k, ${BigInt(burst * windowMs)}, 0 FROM unnest(ARRAY['b', 'a']) k`
      yield* keyed("b", "first")
      yield* keyed("a", "second")
      const whileAIsHeld = Effect.fnUntraced(function*<A, E, R>(other: Effect.Effect<A, E, R>) {
        const context = yield* Effect.context<R>()
        const fiber = yield* sql.withTransaction(Effect.gen(function*() {
          yield* sql`SELECT FROM headgate.bucket WHERE class = 'order' AND key = 'a' FOR UPDATE`
          // Outside the transaction.
          const fiber = yield* Effect.forkDetach(Effect.provideContext(other, context))
          yield* Store.untilLocked
          const free = yield* sql`SELECT key FROM headgate.bucket WHERE class = 'order' AND key = 'b' FOR UPDATE NOWAIT`
          assert.lengthOf(free, 1)
          return fiber
        }))
        return yield* Fiber.join(fiber)
      })
      assert.lengthOf(yield* whileAIsHeld(Store.admit({ queues: ["order"] })), 2)
      yield* whileAIsHeld(
        Policies.use((policies) => policies.setRateClass({ name: "order", limit: 2, windowMs, burst }))
      )
      assert.deepStrictEqual([yield* tokens("order", "a"), yield* tokens("order", "b")], [99, 99])
    }))

  it.effect("no cost that can be said sinks its batch", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      yield* define("odd")
      const odd = [Number.NaN, Number.POSITIVE_INFINITY, -5, 1.4, 1e300]
      const batch = yield* Effect.forEach(odd, (actual, n) =>
        Effect.map(charged(`odd-${n}`, rate("odd", 1)), (lease) => ({
          lease,
          outcome: Outcome.success,
          charges: [{ actual, class: "odd" }, { actual: 0, class: "a\0" }]
        })))
      const answers = yield* Leases.use((leases) =>
        leases.settle(batch)
      )
      assert.isTrue(answers.every(({ _tag }) => _tag === "Applied"))
    }))

  it.effect("settlements that correct nothing go without the statement that corrects", () =>
    Effect.gen(function*() {
      const [a, b, c, d] = yield* Effect.forEach(["w1", "w2", "w3", "w4"], (id) => Store.running({ id: `way-${id}` }))
      const pieces = SettleRows.statements([
        { lease: a!, outcome: Outcome.success },
        { lease: b!, outcome: Outcome.success, charges: [{ actual: 1 }] },
        { lease: c!, outcome: Outcome.retry(1, boom) },
        { lease: d!, outcome: Outcome.crashed(boom), charges: [{ actual: 1 }] }
      ])
      assert.deepStrictEqual(
        pieces.map((piece) => piece.map((item) => [item.lease.jobId, SettleRows.isCharged(item)])),
        [[["way-w1", false]], [["way-w3", false], ["way-w4", false]], [["way-w2", true]]]
      )
    }))
})
