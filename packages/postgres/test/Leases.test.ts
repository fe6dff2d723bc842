import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Gate } from "@headgate/core/Gate"
import type { LeaseRef } from "@headgate/core/Ids"
import { Inspect } from "@headgate/core/Inspect"
import { Leases, type Settlement } from "@headgate/core/Leases"
import * as Outcome from "@headgate/core/Outcome"
import { OutputStore, ProgressStore } from "@headgate/core/Reports"
import { Time } from "@headgate/testkit"
import { Effect, Fiber } from "effect"
import * as Store from "./Store.ts"

const boom = { tag: "Boom", message: "it broke", text: "Boom: it broke" }
const renew = (leases: ReadonlyArray<LeaseRef>, leaseMs = 30_000) =>
  Effect.map(Leases.use((service) => service.renew(leases, leaseMs)), ({ lost }) => lost)
const settleAll = (batch: ReadonlyArray<Settlement>) => Leases.use((leases) => leases.settle(batch))

layer(Store.layer, { excludeTestServices: true })("Leases.settle", (it) => {
  it.effect("a success keeps its result for its retention, and the row carries no lease", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "kept", retentionMs: 5000 })
      const answer = yield* Store.settle(lease, Outcome.successWith(2, Store.bytes("42")))
      assert.deepStrictEqual(answer, { _tag: "Applied", jobId: lease.jobId, state: "completed" })
      const row = yield* Store.row("kept")
      assert.deepInclude(row, {
        state: "completed",
        result: "\\x3432",
        result_version: 2,
        lease_id: null,
        worker: null
      })
      assert.strictEqual(row?.["evict_at_ms"], Number(row?.["finished_at_ms"]) + 5000)
    }))

  it.effect("a success without retention leaves nothing behind", () =>
    Effect.gen(function*() {
      const first = yield* Store.running({ id: "gone", queue: "gone", retentionMs: 0 })
      yield* Store.settle(first, Outcome.snooze(0))
      yield* (yield* PgClient.PgClient)`UPDATE headgate.job SET state = 'available', has_steps = true WHERE id = 'gone'`
      yield* (yield* PgClient.PgClient)`INSERT INTO headgate.step (recorded_at_ms, fence, position, job_id, step, kind)
        VALUES (0, 1, 0, 'gone', 'a', 'step')`
      const [claim] = yield* Store.admit({ queues: ["gone"] })
      yield* ProgressStore.use((store) => store.report(claim!.lease, { current: 1, total: 2, message: undefined }))
      yield* OutputStore.use((store) => store.put(claim!.lease, { version: 1, bytes: Store.bytes("o") }))
      const answer = yield* Store.settle(claim!.lease, Outcome.success)
      assert.deepStrictEqual(answer, { _tag: "Applied", jobId: claim!.lease.jobId, state: "deleted" })
      assert.strictEqual(yield* Store.stateOf("gone"), "deleted")
      for (const table of ["step", "attempt", "progress", "output"] as const) {
        assert.strictEqual(yield* Store.count(table, "gone"), 0, table)
      }
    }))

  it.effect("each outcome brings the job where the state machine says", () =>
    Effect.gen(function*() {
      const cases = [
        ["retry", Outcome.retry(1000, boom), ["retryable", null, 1, 0]],
        ["timeout", Outcome.timedOut(1000, boom), ["retryable", null, 1, 0]],
        ["fatal", Outcome.fatal(boom), ["archived", "fatal", 1, 0]],
        ["non-failure", Outcome.notAFailure(1, boom), ["retryable", null, 0, 0]],
        ["limited", Outcome.rateLimited({ delayMs: 2000 }), ["scheduled", null, 0, 0]],
        ["limited-now", Outcome.rateLimited(), ["available", null, 0, 0]],
        ["snooze", Outcome.snooze(1000), ["scheduled", null, 0, 0]],
        ["skip", Outcome.skip("no need"), ["archived", "skipped", 0, 0]],
        ["undecodable", Outcome.undecodable("no such field"), ["undecodable", "undecodable", 0, 0]],
        ["stale", Outcome.checkpointStale("unknown steps"), ["undecodable", "checkpoint_stale", 0, 0]],
        ["released", Outcome.released, ["available", null, 0, 0]],
        ["crashed", Outcome.crashed(boom), ["retryable", null, 0, 1]],
        ["deadline", Outcome.deadlinePassed, ["archived", "deadline", 0, 0]]
      ] as const
      const batch = yield* Effect.forEach(cases, ([id, outcome]) =>
        Effect.map(Store.running({ id: `o-${id}` }), (lease) => ({ lease, outcome })))
      const answers = yield* settleAll(batch)
      for (const [index, [id, , expected]] of cases.entries()) {
        const found = yield* Store.columns(`o-${id}`, "state", "reason", "attempt", "crash_attempt")
        assert.deepStrictEqual(found, [...expected], id)
        const [state, reason] = expected
        const ended = reason === null ? {} : { reason, closedFingerprint: undefined }
        assert.deepStrictEqual(answers[index], {
          _tag: "Applied",
          jobId: batch[index]!.lease.jobId,
          state,
          ...ended
        })
        assert.deepStrictEqual(yield* Store.columns(`o-${id}`, "lease_id", "worker"), [null, null])
        assert.strictEqual(yield* Store.count("attempt", `o-${id}`), 1)
      }
    }))

  it.effect("revoking removes the job", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "revoked" })
      assert.deepInclude(yield* Store.settle(lease, Outcome.revoke), { _tag: "Applied", state: "deleted" })
      assert.strictEqual(yield* Store.stateOf("revoked"), "deleted")
    }))

  it.effect("a row that another transaction holds keeps none of its batch waiting, and is still the caller's", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const cases = [["success", 0], ["success", 60_000], ["retry", 60_000]] as const
      const batch = yield* Effect.forEach(
        cases,
        ([name, retentionMs], n) =>
          Effect.forEach(
            ["free", "held"],
            (kind) =>
              Effect.map(Store.running({ id: `${kind}-${n}`, retentionMs }), (lease) => ({
                lease,
                outcome: name === "success" ? Outcome.success : Outcome.retry(1000, boom)
              }))
          )
      )
      const answers = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT 1 FROM headgate.job WHERE id LIKE 'held-%' FOR UPDATE`
        return yield* settleAll(batch.flat()).pipe(Effect.timeout("1 minute"))
      }))
      assert.deepStrictEqual(answers.map(({ _tag, state }) => `${_tag} ${state}`), [
        "Applied deleted",
        "Busy running",
        "Applied completed",
        "Busy running",
        "Applied retryable",
        "Busy running"
      ])
      const held = batch.map(([, item]) => item!)
      const states = (yield* settleAll(held)).map(({ state }) => state)
      assert.deepStrictEqual(states, ["deleted", "completed", "retryable"])
    }))

  it.effect("a revoked job leaves no step of an attempt that wrote one while the revocation waited", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const lease = yield* Store.running({ id: "revoked-late" })
      const fiber = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`UPDATE headgate.job SET has_steps = true WHERE id = 'revoked-late'`
        const fiber = yield* Effect.forkDetach(Store.settle(lease, Outcome.revoke))
        yield* Store.untilLocked
        yield* sql`INSERT INTO headgate.step (recorded_at_ms, fence, position, job_id, step, kind)
          VALUES (0, 1, 0, 'revoked-late', 'a', 'step')`
        return fiber
      }))
      assert.deepInclude(yield* Fiber.join(fiber), { _tag: "Applied", state: "deleted" })
      assert.strictEqual(yield* Store.count("step", "revoked-late"), 0)
    }))

  it.effect("the last failure archives as exhausted, the last crash quarantines", () =>
    Effect.gen(function*() {
      const failed = yield* Store.running({ id: "last", maxAttempts: 1 })
      yield* Store.settle(failed, Outcome.retry(1000, boom))
      assert.deepStrictEqual(yield* Store.columns("last", "state", "reason", "attempt"), ["archived", "exhausted", 1])
      const crashed = yield* Store.running({ id: "poison", crashLimit: 1 })
      yield* Store.settle(crashed, Outcome.crashed(boom))
      const found = yield* Store.columns("poison", "state", "reason", "crash_attempt", "attempt")
      assert.deepStrictEqual(found, ["quarantined", "crash_limit", 1, 0])
    }))

  it.effect("what would be due again at its deadline is archived at once, a success still counts", () =>
    Effect.gen(function*() {
      const at = (yield* Time.now()) + 60_000
      const late = yield* Store.running({ id: "due-late", deadlineAtMs: at })
      const won = yield* Store.running({ id: "due-won", deadlineAtMs: at })
      const { queue: _queue, ...before } = (yield* Store.row("due-late"))!
      yield* Store.settle(late, Outcome.retry(120_000, boom))
      assert.deepStrictEqual(yield* Store.columns("due-late", "state", "reason", "scheduled_at_ms"), [
        "archived",
        "deadline",
        before["scheduled_at_ms"]
      ])
      yield* Time.advance(61_000)
      yield* Store.settle(won, Outcome.success)
      assert.strictEqual(yield* Store.stateOf("due-won"), "completed")
    }))

  it.effect("a stale lease settles nothing, whatever the outcome, and is told what the job had become", () =>
    Effect.gen(function*() {
      const outcomes = [
        Outcome.success,
        Outcome.retry(1, boom),
        Outcome.released,
        Outcome.revoke,
        Outcome.crashed(boom)
      ]
      for (const [index, outcome] of outcomes.entries()) {
        const stale = yield* Store.running({ id: `stale-${index}`, retentionMs: index === 0 ? 0 : 60_000 })
        yield* Store.loseLease(stale)
        const before = yield* Store.row(stale.jobId)
        assert.deepStrictEqual(yield* Store.settle(stale, outcome), {
          _tag: "Rejected",
          jobId: stale.jobId,
          state: "retryable"
        })
        assert.deepStrictEqual(yield* Store.row(stale.jobId), before)
      }
    }))

  it.effect("a settlement that meets a reclaim in progress waits for it, and is refused", () =>
    Effect.gen(function*() {
      for (const [index, outcome] of [Outcome.success, Outcome.revoke, Outcome.retry(1, boom)].entries()) {
        for (const retentionMs of [0, 60_000]) {
          const lease = yield* Store.running({ id: `meets-${index}-${retentionMs}`, retentionMs })
          const answer = yield* Store.duringReclaim([lease], Store.settle(lease, outcome))
          assert.deepStrictEqual(answer, { _tag: "Rejected", jobId: lease.jobId, state: "retryable" })
          const found = yield* Store.columns(lease.jobId, "state", "attempt", "crash_attempt")
          assert.deepStrictEqual(found, ["retryable", 0, 1])
        }
      }
    }))

  it.effect("neither another lease id nor another fence is accepted", () =>
    Effect.gen(function*() {
      const outcomes = [Outcome.success, Outcome.success, Outcome.retry(1, boom), Outcome.revoke]
      for (const [index, outcome] of outcomes.entries()) {
        const lease = yield* Store.running({ id: `other-${index}`, retentionMs: index * 60_000 })
        for (
          const other of [{ ...lease, leaseId: Store.leaseId() }, {
            ...lease,
            fence: lease.fence + 1 as typeof lease.fence
          }]
        ) {
          assert.deepInclude(yield* Store.settle(other, outcome), { _tag: "Rejected", state: "running" })
        }
        assert.strictEqual(yield* Store.stateOf(lease.jobId), "running")
      }
    }))

  it.effect("of jobs that one call gave, those that were lost or have another fence are refused, and the others settled", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      for (const retentionMs of [0, 60_000]) {
        const queue = `one-call-${retentionMs}`
        const named = (name: string) => ({ id: `${name}-${retentionMs}`, queue, retentionMs })
        yield* Store.enqueue(named("lost"), named("other-fence"), named("mine"), named("mine-too"))
        const claims = yield* Store.admit({ queues: [queue], capacity: 4 })
        const byId = new Map(claims.map(({ lease }) => [lease.jobId.split("-").slice(0, -1).join("-"), lease]))
        yield* Store.loseLease(byId.get("lost")!)
        yield* sql`UPDATE headgate.job SET fence = 7 WHERE id = ${`other-fence-${retentionMs}`}`
        const answers = yield* settleAll(claims.map(({ lease }) => ({ lease, outcome: Outcome.success })))
        const told = new Map(answers.map(({ _tag, jobId }) => [jobId.split("-").slice(0, -1).join("-"), _tag]))
        assert.deepStrictEqual(
          ["lost", "other-fence", "mine", "mine-too"].map((name) => told.get(name)),
          ["Rejected", "Rejected", "Applied", "Applied"]
        )
      }
    }))

  it.effect("a refused item, a missing job and a repeat affect no other item of the batch", () =>
    Effect.gen(function*() {
      const good = yield* Store.running({ id: "good" })
      const failed = yield* Store.running({ id: "failed" })
      const stale = yield* Store.running({ id: "refused" })
      yield* Store.loseLease(stale)
      const missing = { ...good, jobId: "nobody" as typeof good.jobId }
      const answers = yield* settleAll([
        { lease: stale, outcome: Outcome.success },
        { lease: good, outcome: Outcome.success },
        { lease: missing, outcome: Outcome.success },
        { lease: { ...good, leaseId: Store.leaseId() }, outcome: Outcome.success },
        { lease: failed, outcome: Outcome.retry(1000, boom) },
        { lease: failed, outcome: Outcome.retry(1000, boom) },
        { lease: good, outcome: Outcome.success }
      ])
      assert.deepStrictEqual(answers.map((answer) => `${answer._tag} ${answer.state}`), [
        "Rejected retryable",
        "Applied completed",
        "Rejected missing",
        "Rejected completed",
        "Applied retryable",
        "Applied retryable",
        "Applied completed"
      ])
      assert.deepStrictEqual(yield* Store.columns("failed", "attempt"), [1])
    }))

  it.effect("the current lease is served also when a stale one of the same job comes before it in the batch", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "both" })
      const answers = yield* settleAll([
        { lease: { ...lease, leaseId: Store.leaseId() }, outcome: Outcome.success },
        { lease, outcome: Outcome.success }
      ])
      assert.deepStrictEqual(answers.map(({ _tag }) => _tag), ["Rejected", "Applied"])
    }))

  it.effect("a settlement sent again is applied once, also when the job has been claimed since", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "again", queue: "again" })
      const outcome = Outcome.rateLimited({ error: boom })
      yield* Store.settle(lease, outcome)
      assert.deepInclude(yield* Store.settle(lease, outcome), { _tag: "Applied", state: "available" })
      yield* Store.admit({ queues: ["again"] })
      assert.deepInclude(yield* Store.settle(lease, outcome), { _tag: "Applied", state: "running" })
      assert.deepStrictEqual(yield* Store.columns("again", "fence", "streak"), [2, 1])
      assert.strictEqual(yield* Store.count("attempt", "again"), 1)
    }))

  it.effect("no text or delay of an outcome sinks the batch", () =>
    Effect.gen(function*() {
      const bad = "a\u0000b\ud800c"
      const batch = yield* Effect.forEach([
        Outcome.retry(Number.NaN, { tag: bad, message: bad, text: bad, encoded: new Uint8Array([0, 255]) }),
        Outcome.retry(1e300, { tag: "t".repeat(500), message: bad.repeat(9999), text: bad.repeat(99_999) }),
        Outcome.skip(bad),
        Outcome.snooze(-5.5),
        Outcome.success
      ], (outcome, index) => Effect.map(Store.running({ id: `bad-${index}` }), (lease) => ({ lease, outcome })))
      const answers = yield* settleAll(batch)
      assert.deepStrictEqual(answers.map(({ _tag }) => _tag), Array(5).fill("Applied"))
      const sql = yield* PgClient.PgClient
      const [attempt] = yield* sql`SELECT error_tag, error_text, error FROM headgate.attempt WHERE job_id = 'bad-0'`
      assert.deepStrictEqual(attempt, {
        error_tag: "a\ufffdb\ufffdc",
        error_text: "a\ufffdb\ufffdc",
        error: new Uint8Array([0, 255])
      })
    }))

  it.effect("a log is kept with every outcome but success, whatever it holds, beside attempts without", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const bad = "a\u0000b\ud800c"
      const line = { afterMs: 5, level: "Info" as const, message: bad, annotations: { [bad]: bad } }
      const log = { lines: [line, { ...line, message: "x".repeat(5000), annotations: {} }], dropped: 2 }
      const long = { lines: Array.from({ length: 1500 }, () => line), dropped: 1 }
      const batch = yield* Effect.forEach(
        [Outcome.retry(1000, boom), Outcome.crashed(boom), Outcome.rateLimited(), Outcome.snooze(1), Outcome.success],
        (outcome, index) => Effect.map(Store.running({ id: `log-${index}` }), (lease) => ({ lease, outcome }))
      )
      const [retried, crashed, limited, snoozed, succeeded] = batch
      yield* settleAll([
        { ...retried!, log },
        { ...crashed!, log: long },
        { ...limited!, log },
        snoozed!,
        { ...succeeded!, log }
      ])
      const logs = yield* Effect.forEach(
        batch,
        ({ lease: { jobId } }) =>
          Effect.map(Inspect.use((inspect) => inspect.attempts(jobId)), ([attempt]) => attempt?.log)
      )
      const clean = { ...line, message: "a\ufffdb\ufffdc", annotations: { "a\ufffdb\ufffdc": "a\ufffdb\ufffdc" } }
      assert.deepStrictEqual(logs[0]?.lines[0], clean)
      assert.strictEqual(logs[0]?.dropped, 2)
      assert.match(logs[0]?.lines[1]?.message ?? "", /^x{4000,4096}\[cut: \d+ bytes\]$/)
      assert.deepStrictEqual([logs[1]?.lines.length, logs[1]?.dropped], [1000, 501])
      assert.deepStrictEqual([logs[2]?.dropped, logs[3], logs[4]], [2, undefined, undefined])
      assert.deepStrictEqual(
        yield* sql`SELECT log::jsonb #>> '{lines,0,after_ms}' AS at FROM headgate.attempt WHERE job_id = 'log-0'`,
        [{ at: "5" }]
      )
    }))

  it.effect("a job keeps the newest hundred of its attempts", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const lease = yield* Store.running({ id: "many" })
      yield* sql`INSERT INTO headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome)
        SELECT n, 0, 0, 'many', 'w', 'snooze' FROM generate_series(1, 130) n`
      yield* sql`UPDATE headgate.job SET fence = 131 WHERE id = 'many'`
      yield* Store.settle({ ...lease, fence: 131 as typeof lease.fence }, Outcome.snooze(1))
      const [kept] =
        yield* sql`SELECT count(*)::int AS n, min(fence)::int AS oldest FROM headgate.attempt WHERE job_id = 'many'`
      assert.deepStrictEqual(kept, { n: 100, oldest: 32 })
    }))

  it.effect("a crash counts against the step that was under way, and waits in the lane of suspects", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "step-crash" })
      yield* (yield* PgClient.PgClient)`UPDATE headgate.job SET in_progress_step = 'pay' WHERE id = 'step-crash'`
      yield* Store.settle(lease, Outcome.crashed(boom))
      assert.deepStrictEqual(yield* Store.columns("step-crash", "crashes_by_step"), [{ pay: 1 }])
      const [lane] =
        yield* (yield* PgClient.PgClient)`SELECT l.suspect FROM headgate.job j JOIN headgate.lane l ON l.id = j.lane_id
        WHERE j.id = 'step-crash'`
      assert.deepStrictEqual(lane, { suspect: true })
    }))
})

layer(Store.layer, { excludeTestServices: true })("Leases.renew", (it) => {
  it.effect("current leases are extended from the store's now, others are lost and untouched", () =>
    Effect.gen(function*() {
      const held = yield* Store.running({ id: "held" })
      const stale = yield* Store.running({ id: "stale" })
      yield* Store.loseLease(stale)
      yield* Time.freeze()
      const now = yield* Time.now()
      const before = yield* Store.row("stale")
      assert.deepStrictEqual(yield* renew([stale, held], 45_678), [{ jobId: stale.jobId, reason: "lease_lost" }])
      assert.deepStrictEqual(yield* Store.columns("held", "lease_expires_at_ms"), [now + 45_678])
      assert.deepStrictEqual(yield* Store.row("stale"), before)
      yield* Time.resume()
    }))

  it.effect("a renewal never shortens a lease that something else has extended further", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "longer" }, { leaseMs: 90_000 })
      const before = yield* Store.columns("longer", "lease_expires_at_ms")
      assert.deepStrictEqual(yield* renew([lease], 30_000), [])
      assert.deepStrictEqual(yield* Store.columns("longer", "lease_expires_at_ms"), before)
    }))

  it.effect("a lease past its time is renewed while nobody has taken the job", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "past" }, { leaseMs: 10 })
      yield* Time.advance(1000)
      assert.deepStrictEqual(yield* renew([lease]), [])
    }))

  it.effect("the reason tells a cancelled, superseded, overdue or vanished job from a lost one", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const leases = yield* Effect.forEach(["c", "s", "d", "gone"], (id) => Store.running({ id: `r-${id}` }))
      yield* sql`SELECT * FROM headgate.cancel_job('r-c')`
      yield* sql`SELECT * FROM headgate.supersede(array['r-s'])`
      yield* Store.settle(leases[2]!, Outcome.deadlinePassed)
      yield* Store.settle(leases[3]!, Outcome.revoke)
      const lost = yield* renew(leases)
      assert.deepStrictEqual(Object.fromEntries(lost.map(({ jobId, reason }) => [jobId, reason])), {
        "r-c": "operator_cancel",
        "r-s": "superseded",
        "r-d": "deadline",
        "r-gone": "lease_lost"
      })
    }))

  it.effect("the same worker's older lease on a job is lost, its newer one is not", () =>
    Effect.gen(function*() {
      const older = yield* Store.running({ id: "twice", queue: "twice" })
      yield* Store.settle(older, Outcome.released)
      const [claim] = yield* Store.admit({ queues: ["twice"], leaseId: older.leaseId })
      assert.deepStrictEqual(yield* renew([claim!.lease]), [])
      assert.deepStrictEqual(yield* renew([older]), [{ jobId: older.jobId, reason: "lease_lost" }])
    }))

  it.effect("a row that another session holds is neither waited for, extended, nor lost, and named as busy", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const busy = yield* Store.running({ id: "busy" })
      const other = yield* Store.running({ id: "other" })
      const before = yield* Store.columns("busy", "lease_expires_at_ms")
      const renewal = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT 1 FROM headgate.job WHERE id = 'busy' FOR UPDATE`
        return yield* Leases.use((leases) => leases.renew([busy, other], 99_000))
      }))
      assert.deepStrictEqual(renewal, { lost: [], busy: [busy.jobId] })
      assert.deepStrictEqual(yield* Store.columns("busy", "lease_expires_at_ms"), before)
    }))

  it.effect("a reclaim in the middle of a renewal wins or loses as a whole", () =>
    Effect.gen(function*() {
      const leases = yield* Effect.forEach([0, 1, 2, 3], (n) => Store.running({ id: `mid-${n}` }))
      yield* Effect.all([
        renew(leases),
        Effect.forEach(leases, Store.loseLease, { concurrency: 4 }),
        renew(leases)
      ], { concurrency: 3 })
      const lost = yield* renew(leases)
      for (const { jobId } of leases) {
        const isRunning = (yield* Store.stateOf(jobId)) === "running"
        assert.strictEqual(lost.some((item) => item.jobId === jobId), !isRunning)
      }
    }))
})

layer(Store.layerBehindNetwork, { excludeTestServices: true })("Leases behind a failing network", (it) => {
  it.effect("a settlement whose answer is lost is applied once and says so when sent again", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      const cases = [
        ["deleted", Outcome.success, "deleted"],
        ["completed", Outcome.success, "completed"],
        ["retried", Outcome.retry(60_000, boom), "retryable"],
        ["revoked", Outcome.revoke, "deleted"]
      ] as const
      for (const [id, outcome, state] of cases) {
        const lease = yield* Store.running({ id, retentionMs: id === "deleted" ? 0 : 60_000 })
        yield* network.dropOn({ sql: /succeed\(|settle\(/, moment: "after" })
        assert.strictEqual((yield* Effect.flip(Store.settle(lease, outcome)))._tag, "StoreUnavailable")
        assert.deepStrictEqual(yield* Store.settle(lease, outcome), { _tag: "Applied", jobId: lease.jobId, state })
      }
      assert.deepStrictEqual(yield* Store.columns("retried", "attempt"), [1])
    }))

  it.effect("a job that vanished for another reason is refused", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "vanished", retentionMs: 0 })
      yield* Store.settle(lease, Outcome.success)
      assert.deepInclude(yield* Store.settle(lease, Outcome.success), { _tag: "Rejected", state: "missing" })
    }))

  it.effect("a claim whose answer is lost can be handed back uncharged", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      yield* Store.enqueue({ id: "claimed", queue: "claimed" })
      const leaseId = Store.leaseId()
      yield* network.dropOn({ sql: /admit\w*\(/, moment: "after" })
      assert.strictEqual((yield* Effect.flip(Store.admit({ queues: ["claimed"], leaseId })))._tag, "StoreUnavailable")
      assert.strictEqual(yield* Gate.use((gate) => gate.abandon(leaseId)), 1)
      assert.deepStrictEqual(yield* Store.columns("claimed", "state", "crash_attempt"), ["available", 0])
    }))
})
