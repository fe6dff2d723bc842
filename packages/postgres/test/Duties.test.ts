import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import { Leases } from "@headgate/core/Leases"
import { revoke, success } from "@headgate/core/Outcome"
import { Time } from "@headgate/testkit"
import { Effect } from "effect"
import * as Jobs from "./Jobs.ts"

const day = 86_400_000
/** 30 days. */
const EFFECT_RETENTION_MS = 2_592_000_000

layer(Jobs.layer, { excludeTestServices: true })("Duties", (it) => {
  it.effect("a duty has one holder at a time, who keeps it by claiming it again", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const [a, b] = [Jobs.workerId("a"), Jobs.workerId("b")]
      yield* Time.freeze()
      assert.isTrue(yield* duties.claimDuty("sweep", a, 1000))
      assert.isFalse(yield* duties.claimDuty("sweep", b, 1000))
      assert.isTrue(yield* duties.claimDuty("other", b, 1000))
      yield* Time.advance(600)
      assert.isTrue(yield* duties.claimDuty("sweep", a, 1000))
      yield* Time.advance(600)
      assert.isFalse(yield* duties.claimDuty("sweep", b, 1000))
      yield* Time.advance(400)
      assert.isTrue(yield* duties.claimDuty("sweep", b, 1000))
      assert.isFalse(yield* duties.claimDuty("sweep", a, 1000))
    }))

  it.effect("of rivals for a free duty one gets it", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const rivals = Array.from({ length: 10 }, (_, n) => duties.claimDuty("race", Jobs.workerId(`w${n}`), 1000))
      const held = yield* Effect.all(rivals, { concurrency: 10 })
      assert.strictEqual(held.filter((isHeld) => isHeld).length, 1)
    }))

  it.effect("a duty is resigned by its holder alone", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const [a, b] = [Jobs.workerId("a"), Jobs.workerId("b")]
      yield* duties.claimDuty("resigned", a, 1000)
      yield* duties.releaseDuty("resigned", b)
      assert.isFalse(yield* duties.claimDuty("resigned", b, 1000))
      yield* duties.releaseDuty("resigned", a)
      assert.isTrue(yield* duties.claimDuty("resigned", b, 1000))
    }))

  it.effect("jobs that fall due become available, earliest first, and keep their place", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const now = yield* Time.freeze()
      yield* Jobs.seed(
        { id: "d1", state: "scheduled", scheduled_at_ms: now - 20 },
        { id: "d2", state: "retryable", scheduled_at_ms: now - 10 },
        { id: "d3", state: "scheduled", scheduled_at_ms: now },
        { id: "d4", state: "scheduled", scheduled_at_ms: now + 700 },
        { id: "d5", state: "pending", scheduled_at_ms: now - 20 }
      )
      assert.deepStrictEqual(yield* duties.promoteDue(2), { promoted: 2, nextDueInMs: 0 })
      assert.deepStrictEqual(yield* Jobs.stateOf("d3"), "scheduled")
      assert.deepStrictEqual(yield* duties.promoteDue(2), { promoted: 1, nextDueInMs: 700 })
      for (const id of ["d1", "d2", "d3"]) assert.strictEqual(yield* Jobs.stateOf(id), "available")
      assert.strictEqual(yield* Jobs.stateOf("d5"), "pending")
      assert.deepStrictEqual(yield* Jobs.columns("d1", "scheduled_at_ms"), [now - 20])
      yield* Time.advance(700)
      assert.deepStrictEqual(yield* duties.promoteDue(2), { promoted: 1, nextDueInMs: undefined })
    }))

  it.effect("a sweep passes over a row that another session holds", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const pg = yield* PgClient.PgClient
      const now = yield* Time.now()
      yield* Jobs.seed(
        { id: "held", state: "scheduled", scheduled_at_ms: now - 10, deadline_at_ms: now - 5 },
        { id: "free", state: "scheduled", scheduled_at_ms: now - 10, deadline_at_ms: now - 5 },
        { id: "held late", state: "scheduled", scheduled_at_ms: now - 10, queue_timeout_ms: 5 },
        { id: "held old", state: "completed", evict_at_ms: now - 10 }
      )
      yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`SELECT FROM headgate.job WHERE id IN ('held', 'held late', 'held old') FOR UPDATE`
        assert.deepStrictEqual(yield* duties.expireDue(10), [Jobs.jobId("free")])
        assert.strictEqual((yield* duties.promoteDue(10)).promoted, 0)
        assert.strictEqual(yield* duties.evictRetained(10), 0)
      })).pipe(Effect.timeout("1 minute"))
      assert.deepStrictEqual([...(yield* duties.expireDue(10))].sort(), ["held", "held late"])
    }))

  it.effect("a job past its deadline is archived from every unfinished state, and no other job", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const now = yield* Time.freeze()
      const states = ["pending", "scheduled", "available", "retryable", "running"] as const
      const over = ["completed", "archived", "cancelled", "quarantined", "undecodable"] as const
      yield* Jobs.seed(
        ...[...states, ...over].map((state) => ({ id: `past ${state}`, state, deadline_at_ms: now })),
        ...states.map((state) => ({ id: `before ${state}`, state, deadline_at_ms: now + 1 }))
      )
      const expired = yield* duties.expireDue(100)
      assert.deepStrictEqual([...expired].sort(), states.map((state) => `past ${state}`).sort())
      for (const state of states) {
        assert.deepStrictEqual(
          yield* Jobs.columns(`past ${state}`, "state", "reason", "finished_at_ms", "evict_at_ms"),
          ["archived", "deadline", now, null]
        )
      }
    }))

  it.effect("the holder of a job that was archived at its deadline is refused and told why", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const leases = yield* Leases
      const now = yield* Time.now()
      yield* Jobs.seed({ id: "late", state: "running", deadline_at_ms: now, in_progress_step: "b" })
      yield* duties.expireDue(100)
      const lease = Jobs.lease("late")
      assert.deepStrictEqual((yield* leases.renew([lease], 1000)).lost, [{ jobId: lease.jobId, reason: "deadline" }])
      const [settled] = yield* leases.settle([{ lease, outcome: success }])
      assert.strictEqual(settled?._tag === "Rejected" && settled.state, "archived")
      const pg = yield* PgClient.PgClient
      const attempts = yield* pg`SELECT outcome, worker, step FROM headgate.attempt WHERE job_id = 'late'`
      assert.deepStrictEqual(attempts, [{ outcome: "deadline_passed", worker: "w1", step: "b" }])
      assert.deepStrictEqual(yield* Jobs.columns("late", "last_worker", "attempt"), ["w1", 0])
    }))

  it.effect("a success that commits before the sweep wins over the deadline", () =>
    Effect.gen(function*() {
      const now = yield* Time.now()
      yield* Jobs.seed({ id: "won", state: "running", deadline_at_ms: now - 1 })
      const [settled] = yield* Leases.use((leases) => leases.settle([{ lease: Jobs.lease("won"), outcome: success }]))
      assert.strictEqual(settled?._tag, "Applied")
      assert.deepStrictEqual(yield* Duties.use((duties) => duties.expireDue(100)), [])
    }))

  it.effect("a job that waited longer than its queue timeout is archived; one that runs or is pending is not", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      const states = ["scheduled", "available", "retryable", "pending", "running", "completed"] as const
      yield* Jobs.seed(
        ...states.map((state) => ({ id: `waited ${state}`, state, scheduled_at_ms: now - 500, queue_timeout_ms: 500 })),
        { id: "waits", scheduled_at_ms: now - 499, queue_timeout_ms: 500 }
      )
      const expired = yield* Duties.use((duties) => duties.expireDue(100))
      assert.deepStrictEqual([...expired].sort(), ["waited available", "waited retryable", "waited scheduled"])
      assert.deepStrictEqual(yield* Jobs.columns("waited available", "state", "reason"), ["archived", "queue_timeout"])
    }))

  it.effect("one call archives no more than its limit, whatever the reason", () =>
    Effect.gen(function*() {
      const now = yield* Time.now()
      yield* Jobs.seed(
        ...[1, 2].map((n) => ({ id: `limit d${n}`, deadline_at_ms: now - n })),
        ...[1, 2].map((n) => ({ id: `limit q${n}`, scheduled_at_ms: now - 1000, queue_timeout_ms: n }))
      )
      const sizes: Array<number> = []
      for (let n = 0; n < 3; n++) sizes.push((yield* Duties.use((duties) => duties.expireDue(3))).length)
      assert.deepStrictEqual(sizes, [3, 1, 0])
    }))

  it.effect("a job past its retention is removed with all that belongs to it; unfinished ones never", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const pg = yield* PgClient.PgClient
      yield* pg`DELETE FROM headgate.job`
      yield* pg`DELETE FROM headgate.attempt`
      const now = yield* Time.freeze()
      const over = ["completed", "archived", "cancelled", "quarantined", "undecodable"] as const
      const live = ["pending", "scheduled", "available", "retryable", "running"] as const
      yield* Jobs.seed(
        ...[...over, ...live].map((state) => ({ id: state, state, evict_at_ms: now })),
        { id: "kept", state: "completed", evict_at_ms: now + 1 },
        { id: "for ever", state: "archived" }
      )
      for (const id of ["completed", "kept"]) {
        yield* pg`INSERT INTO headgate.step (recorded_at_ms, fence, position, job_id, step, kind)
          VALUES (0, 1, 0, ${id}, 'a', 'step')`
        yield* pg`INSERT INTO headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome)
          VALUES (1, 0, 0, ${id}, 'w1', 'retry')`
        yield* pg`INSERT INTO headgate.progress (fence, current, total, updated_at_ms, job_id) VALUES (1, 0, 1, 0, ${id})`
        yield* pg`INSERT INTO headgate.output (fence, version, updated_at_ms, job_id, bytes) VALUES (1, 1, 0, ${id}, '')`
      }
      assert.strictEqual(yield* duties.evictRetained(3), 3)
      assert.strictEqual(yield* duties.evictRetained(3), 2)
      assert.strictEqual(yield* duties.evictRetained(3), 0)
      const left = yield* pg<{ id: string }>`SELECT id FROM headgate.job ORDER BY id`
      assert.deepStrictEqual(left.map(({ id }) => id), [...live, "kept", "for ever"].sort())
      const parts = yield* pg`SELECT job_id FROM headgate.step UNION ALL SELECT job_id FROM headgate.attempt
        UNION ALL SELECT job_id FROM headgate.progress UNION ALL SELECT job_id FROM headgate.output`
      assert.deepStrictEqual(parts, Array.from({ length: 4 }, () => ({ job_id: "kept" })))
    }))

  it.effect("an effect key outlives its job, and goes once it is older than its retention", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const pg = yield* PgClient.PgClient
      const now = yield* Time.freeze()
      const [limit] = yield* pg<{ ms: bigint }>`SELECT headgate.effect_retention_ms() AS ms`
      assert.strictEqual(Number(limit?.ms), EFFECT_RETENTION_MS)
      yield* Jobs.seed({ id: "alive", state: "archived" })
      const keys = [
        ["old", "gone", EFFECT_RETENTION_MS],
        ["young", "gone", EFFECT_RETENTION_MS - 1],
        ["used", "alive", EFFECT_RETENTION_MS * 2]
      ] as const
      for (const [key, job, age] of keys) {
        yield* pg`INSERT INTO headgate.effect (recorded_at_ms, fence, key, job_id, step)
          VALUES (${BigInt(now - age)}, 1, ${key}, ${job}, 's')`
      }
      yield* duties.evictRetained(10)
      const left = yield* pg<{ key: string }>`SELECT key FROM headgate.effect ORDER BY key`
      assert.deepStrictEqual(left.map(({ key }) => key), ["used", "young"])
    }))

  it.effect("the retention of an effect key starts when its job is removed, whichever way", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const leases = yield* Leases
      const control = yield* Control
      const now = yield* Time.freeze()
      yield* pg`DELETE FROM headgate.effect`
      const ways = ["succeeded", "revoked", "removed", "evicted"]
      yield* Jobs.seed(
        { id: "succeeded", state: "running", retention_ms: 0, has_steps: true },
        { id: "revoked", state: "running", has_steps: true },
        { id: "removed", state: "archived", has_steps: true },
        { id: "evicted", state: "completed", has_steps: true, evict_at_ms: now }
      )
      yield* pg`INSERT INTO headgate.effect (recorded_at_ms, fence, key, job_id, step)
        SELECT ${BigInt(now - 2 * EFFECT_RETENTION_MS)}, 1, way, way, 's' FROM unnest(${ways}::text[]) way`
      yield* leases.settle([
        { lease: Jobs.lease("succeeded"), outcome: success },
        { lease: Jobs.lease("revoked"), outcome: revoke }
      ])
      yield* control.remove(Jobs.jobId("removed"))
      yield* Duties.use((duties) => duties.evictRetained(10))
      for (const way of ways) assert.strictEqual(yield* Jobs.stateOf(way), "deleted")
      const kept = yield* pg`SELECT DISTINCT recorded_at_ms FROM headgate.effect`
      assert.deepStrictEqual(kept, [{ recorded_at_ms: BigInt(now) }])
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect`, 4)
      yield* Time.advance(EFFECT_RETENTION_MS)
      yield* Duties.use((duties) => duties.evictRetained(10))
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect`, 0)
    }))

  it.effect("effect keys of jobs that are kept do not hide the others, and go after their jobs", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const pg = yield* PgClient.PgClient
      const now = yield* Time.now()
      yield* pg`DELETE FROM headgate.effect`
      yield* Jobs.seed({ id: "for ever", state: "archived" }).pipe(Effect.ignoreCause)
      yield* pg`INSERT INTO headgate.effect (recorded_at_ms, fence, key, job_id, step)
        SELECT ${BigInt(now - EFFECT_RETENTION_MS * 2)} + n / 20, 1, 'k' || n,
          CASE WHEN n <= 50 THEN 'for ever' ELSE 'gone' END, 's' FROM generate_series(1, 100) n`
      for (let n = 0; n < 21; n++) yield* duties.evictRetained(5)
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect WHERE job_id = 'gone'`, 0)
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect WHERE job_id = 'for ever'`, 50)
      yield* pg`DELETE FROM headgate.job WHERE id = 'for ever'`
      for (let n = 0; n < 21; n++) yield* duties.evictRetained(5)
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect`, 0)
    }))

  it.effect("the bucket of a key goes when it is full again; one in use, pushed back or of no key stays", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const now = yield* Time.freeze()
      yield* sql`INSERT INTO headgate.rate_class (name, rate_limit, window_ms, burst) VALUES ('evicted', 10, 1000, 5)`
      const at = BigInt(now)
      const [full, half] = [5000n, 2500n]
      yield* sql`INSERT INTO headgate.bucket (class, key, units, at_ms, closed_until_ms)
        SELECT 'evicted', k.key, k.units, ${at}, k.closed FROM (VALUES ('', ${full}, 0), ('full', ${full}, 0),
          ('half', ${half}, 0), ('held', ${full}, ${at + 60_000n})) AS k(key, units, closed)`
      const left = () => sql`SELECT key FROM headgate.bucket WHERE class = 'evicted' ORDER BY key`
      const keys = (...names: ReadonlyArray<string>) => names.map((key) => ({ key }))
      const duties = yield* Duties
      yield* duties.evictRetained(10)
      assert.deepStrictEqual(yield* left(), keys("", "half", "held"))
      yield* Time.advance(250)
      yield* duties.evictRetained(10)
      assert.deepStrictEqual(yield* left(), keys("", "held"))
    }))

  it.effect("effect keys and delivered deaths, which no answer counts, go ten times as many at once as jobs", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const old = BigInt((yield* Time.now()) - 2 * EFFECT_RETENTION_MS)
      yield* pg`DELETE FROM headgate.effect`
      yield* pg`INSERT INTO headgate.effect (recorded_at_ms, fence, key, job_id, step)
        SELECT ${old}, 1, 'many' || n, 'gone', 's' FROM generate_series(1, 25) n`
      yield* pg`INSERT INTO headgate.callback (archived_at_ms, due_at_ms, ended_at_ms, schema_version, attempt,
          crash_attempt, key, job_id, kind, queue, partition_key, reason, state)
        SELECT ${old}, ${old}, ${old}, 1, 1, 0, 'many' || n, 'gone', 'many', 'q', '', 'fatal', 'delivered'
        FROM generate_series(1, 25) n`
      yield* Duties.use((duties) => duties.evictRetained(2))
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect`, 5)
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.callback WHERE kind = 'many'`, 5)
    }))

  it.effect("a worker that was not seen for a day is forgotten", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const now = yield* Time.freeze()
      for (const [id, age] of [["dead", day + 1], ["asleep", day - 1]] as const) {
        yield* pg`INSERT INTO headgate.worker (started_at_ms, seen_at_ms, lease_ms, capacity, running, id, queues, kinds, versions)
          VALUES (0, ${BigInt(now - age)}, 1000, 1, 0, ${id}, '{}', '{}', '{}')`
      }
      yield* Duties.use((duties) => duties.evictRetained(10))
      assert.deepStrictEqual(yield* pg`SELECT id FROM headgate.worker`, [{ id: "asleep" }])
    }))
})

layer(Jobs.layer, { excludeTestServices: true })("Duties.reclaimExpired", (it) => {
  it.effect("a sweep takes back the jobs whose lease has run out, and no other", () =>
    Effect.gen(function*() {
      const duties = yield* Duties
      const now = yield* Time.freeze()
      yield* Jobs.seed(
        { id: "run out", state: "running", fence: 1, lease_expires_at_ms: now },
        { id: "current", state: "running", fence: 1, lease_expires_at_ms: now + 1 }
      )
      const reclaimed = yield* duties.reclaimExpired(10)
      assert.deepStrictEqual(reclaimed.map(({ crashAttempt, jobId, state }) => [jobId, state, crashAttempt]), [
        ["run out", "retryable", 1]
      ])
      const counters = ["state", "attempt", "crash_attempt", "orphaned", "scheduled_at_ms"]
      assert.deepStrictEqual(yield* Jobs.columns("run out", ...counters), ["retryable", 0, 1, true, now + 1000])
      assert.strictEqual(yield* Jobs.stateOf("current"), "running")
    }))

  it.effect("a sweep leaves what its owner settles or renews at that moment, and takes back the rest", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const duties = yield* Duties
      const now = yield* Time.freeze()
      const names = ["settled", "renewed", "left alone"]
      yield* Jobs.seed(...names.map((id) => ({ id, state: "running" as const, fence: 1, lease_expires_at_ms: now })))
      const reclaimed = yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`UPDATE headgate.job SET state = 'completed', lease_id = null, lease_expires_at_ms = null, worker = null
          WHERE id = 'settled'`
        yield* pg`UPDATE headgate.job SET lease_expires_at_ms = ${now + 1000} WHERE id = 'renewed'`
        return yield* duties.reclaimExpired(10)
      }))
      assert.deepStrictEqual(reclaimed.map(({ jobId }) => jobId), [Jobs.jobId("left alone")])
      assert.deepStrictEqual(yield* duties.reclaimExpired(10), [])
      assert.deepStrictEqual(yield* Jobs.columns("settled", "state", "crash_attempt"), ["completed", 0])
      assert.deepStrictEqual(yield* Jobs.columns("renewed", "state", "crash_attempt", "fence"), ["running", 0, 1])
    }))
})
