import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Gate } from "@headgate/core/Gate"
import * as Outcome from "@headgate/core/Outcome"
import { Time } from "@headgate/testkit"
import { Effect } from "effect"
import * as Store from "./Store.ts"

const ids = (claims: ReadonlyArray<{ readonly lease: { readonly jobId: string } }>) =>
  claims.map(({ lease }) => lease.jobId)

layer(Store.layer, { excludeTestServices: true })("Gate", (it) => {
  it.effect("a claim carries all that an attempt needs, and the row its lease", () =>
    Effect.gen(function*() {
      const before = yield* Time.now()
      yield* Store.enqueue({
        id: "full",
        queue: "full",
        payload: Store.bytes("{}"),
        partitionKey: "shop",
        priority: 7,
        maxAttempts: 4,
        timeoutMs: 1500,
        deadlineInMs: 3_600_000,
        retentionMs: 5,
        headers: { "x-käse": "🧀", traceparent: "00-x" }
      })
      const leaseId = Store.leaseId()
      const [claim] = yield* Store.admit({ queues: ["full"], leaseId, leaseMs: 20_000 })
      assert(claim !== undefined)
      assert.deepInclude<object>(claim, {
        lease: { jobId: "full", leaseId, fence: 1 },
        kind: "greet",
        schemaVersion: 1,
        queue: "full",
        partitionKey: "shop",
        priority: 7,
        attempt: 0,
        maxAttempts: 4,
        crashAttempt: 0,
        streak: 0,
        timeoutMs: 1500,
        retentionMs: 5,
        headers: { "x-käse": "🧀", traceparent: "00-x" },
        checkpoint: undefined
      })
      assert.deepStrictEqual(claim.payload, Store.bytes("{}"))
      assert.strictEqual(claim.deadlineAtMs, claim.enqueuedAtMs + 3_600_000)
      assert.isAtLeast(claim.claimedAtMs, before)
      assert.deepStrictEqual(
        yield* Store.columns("full", "state", "worker", "lease_id", "fence", "lease_expires_at_ms"),
        [
          "running",
          "w1",
          leaseId,
          1,
          claim.claimedAtMs + 20_000
        ]
      )
    }))

  it.effect("eight workers that ask at once share the jobs and claim none twice", () =>
    Effect.gen(function*() {
      yield* Store.enqueue(
        ...Array.from({ length: 400 }, (_, n) => ({ id: `race-${n}`, queue: "race", kind: `k${n % 3}` }))
      )
      const kinds = { k0: 1, k1: 1, k2: 1 }
      const worker = (n: number) =>
        Effect.gen(function*() {
          const mine: Array<string> = []
          for (let empty = 0; empty < 3;) {
            const claims = yield* Store.admit({ worker: `w${n}`, queues: ["race"], kinds, capacity: 7 })
            mine.push(...ids(claims))
            if (claims.length === 0) empty++
          }
          return mine
        })
      const claimed = yield* Effect.all(Array.from({ length: 8 }, (_, n) => worker(n)), { concurrency: 8 })
      assert.strictEqual(claimed.flat().length, 400)
      assert.strictEqual(new Set(claimed.flat()).size, 400)
      assert.isAbove(claimed.filter((mine) => mine.length > 0).length, 1)
    }))

  it.effect("a job that another session holds is passed over, and so is what it had become", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Store.enqueue({ id: "held", queue: "held" }, { id: "free", queue: "held" })
      const claims = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT 1 FROM headgate.job WHERE id = 'held' FOR UPDATE`
        return yield* Store.admit({ queues: ["held"], capacity: 2 })
      }))
      assert.deepStrictEqual(ids(claims), ["free"])
      assert.strictEqual(yield* Store.stateOf("held"), "available")
    }))

  it.effect("jobs of several lanes come in queue order: priority, then due time, then id", () =>
    Effect.gen(function*() {
      const at = yield* Time.now()
      yield* Store.enqueue(
        { id: "o3", queue: "order", kind: "a", scheduledAtMs: at - 300 },
        { id: "o1", queue: "order", kind: "b", scheduledAtMs: at - 100, priority: 5 },
        { id: "o2", queue: "order", kind: "c", scheduledAtMs: at - 400 },
        { id: "o4", queue: "order", kind: "a", scheduledAtMs: at - 200 },
        { id: "o0", queue: "order", kind: "a", scheduledAtMs: at - 500, priority: 5 }
      )
      const kinds = { a: 1, b: 1, c: 1 }
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["order"], kinds, capacity: 3 })), ["o0", "o1", "o2"])
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["order"], kinds, capacity: 3 })), ["o3", "o4"])
    }))

  it.effect("one lane may win the whole capacity against many others", () =>
    Effect.gen(function*() {
      const many = Array.from({ length: 30 }, (_, n) => ({ id: `low-${n}`, queue: "wide", kind: `kind${n}` }))
      const urgent = Array.from(
        { length: 40 },
        (_, n) => ({ id: `high-${n}`, queue: "wide", kind: "urgent", priority: 1 })
      )
      yield* Store.enqueue(...many, ...urgent)
      const kinds = { urgent: 1, ...Object.fromEntries(many.map(({ kind }) => [kind, 1])) }
      const claims = yield* Store.admit({ queues: ["wide"], kinds, capacity: 40 })
      assert.deepStrictEqual(new Set(claims.map(({ kind }) => kind)), new Set(["urgent"]))
      assert.strictEqual(claims.length, 40)
    }))

  it.effect("what rivals hold of one lane is made up for by the others in the same call", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Store.enqueue(
        { id: "held-1", queue: "made-up", kind: "a" },
        { id: "held-2", queue: "made-up", kind: "a" },
        { id: "free-1", queue: "made-up", kind: "b", priority: -1 },
        { id: "free-2", queue: "made-up", kind: "b", priority: -1 },
        { id: "suspect", queue: "made-up", kind: "b", priority: -2 }
      )
      yield* sql`UPDATE headgate.job SET crash_attempt = 1,
        lane_id = headgate.lane_for(lane_id, 1, true) WHERE id = 'suspect'`
      const ask = { worker: "made-up", queues: ["made-up"], kinds: { a: 1, b: 1 }, capacity: 2 }
      const claims = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT 1 FROM headgate.job WHERE id LIKE 'held-%' FOR UPDATE`
        const two = yield* Store.admit(ask)
        return [two, yield* Store.admit(ask)]
      }))
      assert.deepStrictEqual(claims.map(ids), [["free-1", "free-2"], ["suspect"]])
    }))

  it.effect("headers that are none cost their job the headers, and no other job anything", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const bad = ["{", "[1]", "null", `{"a":"b","c":1}`]
      yield* Store.enqueue(...bad.map((_, n) => ({ id: `bad-${n}`, queue: "bad" })), {
        id: "good",
        queue: "bad",
        headers: { a: "b" }
      })
      for (const [n, text] of bad.entries()) {
        yield* sql`UPDATE headgate.job SET headers = ${Store.bytes(text)} WHERE id = ${`bad-${n}`}`
      }
      const claims = yield* Store.admit({ queues: ["bad"] })
      assert.deepStrictEqual(claims.map(({ headers }) => headers), [{}, {}, {}, { a: "b" }, { a: "b" }])
    }))

  it.effect("no row has an id that fits into no claim", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Store.enqueue({ id: "fits", queue: "fits" })
      const refused = yield* Effect.flip(sql`UPDATE headgate.job SET id = ${"ü".repeat(65)} WHERE id = 'fits'`)
      assert.include(String(refused.reason.cause), "job_id_length")
    }))

  it.effect("a worker is given no version above its own", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "v1", queue: "ver", schemaVersion: 1 }, { id: "v2", queue: "ver", schemaVersion: 2 })
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["ver"], kinds: { greet: 1 } })), ["v1"])
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["ver"], kinds: { greet: 2 } })), ["v2"])
    }))

  it.effect("a job past its deadline or its time in the queue is archived by the call that meets it, and never starts", () =>
    Effect.gen(function*() {
      yield* Store.enqueue(
        { id: "late", queue: "late", deadlineInMs: 10 },
        { id: "waited", queue: "late", queueTimeoutMs: 10 },
        { id: "fine", queue: "late", priority: -1 }
      )
      yield* Time.advance(11)
      // The places of the late ones go to the next job in the same call.
      const admission = yield* Gate.use((gate) => gate.admit(Store.request({ queues: ["late"], capacity: 1 })))
      assert.deepStrictEqual(ids(admission.claims), ["fine"])
      assert.deepStrictEqual(admission.ended.map(({ jobId }) => jobId).sort(), ["late", "waited"])
      assert.deepStrictEqual(yield* Store.columns("late", "state", "reason", "fence"), ["archived", "deadline", 0])
      assert.deepStrictEqual(yield* Store.columns("waited", "state", "reason", "fence"), [
        "archived",
        "queue_timeout",
        0
      ])
    }))

  it.effect("a worker holds one job that crashed before at a time, also when it asks twice at once", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const crashed = Outcome.crashed({ tag: "Defect", message: "boom", text: "boom" }, 0)
      const kinds = { greet: 1, wave: 1 }
      for (const [id, kind] of [["s1", "greet"], ["s2", "wave"], ["s3", "greet"]] as const) {
        yield* Store.settle(yield* Store.running({ id, kind, queue: "sus" }, { kinds }), crashed)
      }
      yield* Store.enqueue({ id: "well", queue: "sus" })
      yield* sql`UPDATE headgate.job SET state = 'available' WHERE id IN ('s1', 's2', 's3')`
      // The first call has not committed while the second one runs.
      const first = yield* sql.withTransaction(Effect.gen(function*() {
        const rows = yield* sql<{ id: string; fence: bigint }>`SELECT id, fence FROM headgate.admit('w1',
          '6c1d6d0a-0c61-4d0c-9a2f-0f4b7f1f5a11', array['sus'], array['greet', 'wave'], array[1, 1], 1, 30000)`
        assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["sus"], kinds })), ["well"])
        return rows
      }))
      assert.deepStrictEqual(first.map(({ id }) => id), ["s1"])
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["sus"], kinds })), [])
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["sus"], kinds, worker: "w2" })), ["s2"])
      yield* sql`SELECT * FROM headgate.cancel_job('s1')`
      assert.deepStrictEqual(ids(yield* Store.admit({ queues: ["sus"], kinds })), ["s3"])
    }))

  it.effect("a resumed job brings its checkpoint", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "resumed", queue: "resumed" })
      const record = { step: "a", kind: "step", position: 0, result: Store.bytes("r"), wakeAtMs: undefined } as const
      yield* Checkpoints.use((checkpoints) =>
        checkpoints.write([{
          lease,
          leaseMs: 1000,
          record,
          mark: "b",
          cursor: { step: "b", bytes: Store.bytes("c") },
          open: { stepSet: ["a", "b,c"], version: 3 }
        }])
      )
      yield* Store.settle(lease, Outcome.released)
      assert.deepStrictEqual(yield* Store.admit({ queues: ["resumed"], kinds: { greet: 2 } }), [])
      const [claim] = yield* Store.admit({ queues: ["resumed"], kinds: { greet: 3 } })
      assert.deepStrictEqual(claim?.checkpoint, {
        stepSet: ["a", "b,c"],
        version: 3,
        records: [record],
        inProgress: "b",
        cursor: { step: "b", bytes: Store.bytes("c") },
        crashesByStep: {}
      })
    }))

  it.effect("abandoning a lease hands back what it claimed, uncharged, and nothing of another lease", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "a1", queue: "lost" }, { id: "a2", queue: "lost" })
      const [lost] = yield* Store.admit({ queues: ["lost"], capacity: 1 })
      yield* Store.admit({ queues: ["lost"], capacity: 1 })
      assert.strictEqual(yield* Gate.use((gate) => gate.abandon(lost!.lease.leaseId)), 1)
      assert.strictEqual(yield* Gate.use((gate) => gate.abandon(lost!.lease.leaseId)), 0)
      const columns = yield* Store.columns("a1", "state", "fence", "attempt", "crash_attempt", "worker")
      assert.deepStrictEqual(columns, ["available", 1, 0, 0, null])
      assert.strictEqual(yield* Store.stateOf("a2"), "running")
    }))

  it.effect("a suspect given by one queue leaves nothing to ask of another that has suspects alone", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const suspects = ["poor-1", "poor-2"]
      for (const id of suspects) yield* Store.enqueue({ id, queue: id, kind: "poor", partitionKey: "p" })
      // As after an operator's edit, there is no lane for what has not crashed.
      yield* sql`DELETE FROM headgate.lane WHERE kind = 'poor' AND id <> ALL(ARRAY(SELECT headgate.lane_for(l.id, 1, true)
        FROM headgate.lane l WHERE l.kind = 'poor'))`
      yield* sql`UPDATE headgate.job j SET crash_attempt = 1, lane_id = l.id FROM headgate.lane l
        WHERE j.kind = 'poor' AND l.queue = j.queue`
      const claims = yield* Store.admit({ worker: "kind", queues: suspects, kinds: { poor: 1 } })
      assert.deepStrictEqual(ids(claims), ["poor-1"])
    }))
})
