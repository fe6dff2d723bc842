import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import { fingerprint } from "@headgate/core/Fingerprint"
import { Gate } from "@headgate/core/Gate"
import type { JobId } from "@headgate/core/Ids"
import { Inspect } from "@headgate/core/Inspect"
import { Leases } from "@headgate/core/Leases"
import { success } from "@headgate/core/Outcome"
import { State } from "@headgate/core/State"
import * as Announcer from "@headgate/postgres/Announcer"
import * as ControlLayer from "@headgate/postgres/Control"
import * as ControlSqlLayer from "@headgate/postgres/ControlSql"
import { ControlSql } from "@headgate/postgres/ControlSql"
import { defaults, PostgresSettings } from "@headgate/postgres/Settings"
import { Time } from "@headgate/testkit"
import { Context, Deferred, Effect, Exit, Fiber, Layer } from "effect"
import * as Jobs from "./Jobs.ts"

const id = Jobs.jobId
const key = (name: string) => `\\x${Buffer.from(name).toString("hex")}`
const inOrder = Effect.fnUntraced(function*(queue: string, capacity = 10) {
  const { claims } = yield* Gate.use((gate) =>
    gate.admit({
      worker: Jobs.workerId("w1"),
      leaseId: Jobs.leaseId,
      queues: [queue],
      kinds: [{ kind: "greet", version: 9 }, { kind: "other", version: 9 }],
      capacity,
      leaseMs: 30_000,
      quantum: undefined
    })
  )
  return claims.map(({ lease }) => String(lease.jobId))
})

layer(Jobs.layer, { excludeTestServices: true })("Control", (it) => {
  it.effect("an operation on a job that does not exist says so, also when no job could have the id", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const inspect = yield* Inspect
      const all: ReadonlyArray<Effect.Effect<unknown, { readonly _tag: string }>> = ["nobody", "a\u0000b", "\ud83d"]
        .map(id).flatMap((nobody) => [
          control.promote(nobody),
          control.cancel(nobody),
          control.retry(nobody),
          control.release(nobody),
          control.reschedule(nobody, { behind: true }),
          control.edit(nobody, { bytes: new Uint8Array(0), schemaVersion: 1 }),
          control.remove(nobody),
          inspect.job(nobody),
          inspect.attempts(nobody),
          inspect.checkpoint(nobody),
          inspect.payload(nobody),
          inspect.result(nobody),
          inspect.failure(nobody),
          inspect.progress(nobody),
          inspect.output(nobody)
        ])
      for (const operation of all) assert.strictEqual((yield* Effect.flip(operation))._tag, "NotFound")
    }))

  it.effect("moves of rows that a transaction of the application holds give up, and do not keep the others waiting", () =>
    Effect.gen(function*() {
      // Behind a pooler no session sets the time a statement waits.
      const settings = Layer.succeed(PostgresSettings, { ...defaults, transactionPooling: true })
      const parts = ControlLayer.layer.pipe(Layer.provide(Announcer.layer), Layer.provide(ControlSqlLayer.layer))
      const control = Context.get(yield* Layer.build(Layer.fresh(parts).pipe(Layer.provide(settings))), Control)
      const pg = yield* PgClient.PgClient
      const names = ["h1", "h2", "h3", "h4"]
      yield* Jobs.seed(...names.map((name) => ({ id: name, queue: "held" })), { id: "free", queue: "not held" })
      const refused = yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`SELECT 1 FROM headgate.job WHERE queue = 'held' FOR UPDATE`
        const cancels = yield* Effect.forkChild(
          Effect.forEach(names, (name) => Effect.flip(control.cancel(id(name))), { concurrency: 4 }),
          { startImmediately: true }
        )
        assert.deepStrictEqual(yield* inOrder("not held"), ["free"])
        return yield* Effect.timeout(Fiber.join(cancels), "1 minute")
      }))
      assert.deepStrictEqual(refused.map(({ _tag }) => _tag), Array(4).fill("StoreUnavailable"))
    }).pipe(Effect.scoped))

  it.effect("promoting moves a job in front of those that wait for later, and tells both states", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const now = yield* Time.freeze()
      yield* Jobs.seed(
        { id: "p1", state: "scheduled", queue: "promote", scheduled_at_ms: now + 60_000 },
        { id: "p2", queue: "promote", scheduled_at_ms: now + 1 }
      )
      assert.deepStrictEqual(yield* control.promote(id("p1")), { id: id("p1"), from: "scheduled", to: "available" })
      assert.deepStrictEqual(yield* Jobs.columns("p1", "scheduled_at_ms"), [now])
      assert.deepStrictEqual(yield* inOrder("promote"), ["p1", "p2"])
      const refused = yield* Effect.flip(control.promote(id("p1")))
      assert.deepInclude(refused, { _tag: "WrongState", operation: "promote", state: "running" })
    }))

  it.effect("cancelling a running job refuses its holder from then on and leaves a record", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const leases = yield* Leases
      const now = yield* Time.freeze()
      yield* Jobs.seed({ id: "c1", state: "running", retention_ms: 5000, in_progress_step: "a", attempt: 2 })
      const lease = Jobs.lease("c1")
      assert.strictEqual(yield* control.cancel(id("c1")), "cancelled")
      assert.deepStrictEqual((yield* leases.renew([lease], 1000)).lost, [{
        jobId: id("c1"),
        reason: "operator_cancel"
      }])
      const [settled] = yield* leases.settle([{ lease, outcome: success }])
      assert.strictEqual(settled?._tag === "Rejected" && settled.state, "cancelled")
      assert.deepStrictEqual(
        yield* Jobs.columns(
          "c1",
          "state",
          "reason",
          "finished_at_ms",
          "evict_at_ms",
          "last_worker",
          "attempt",
          "fence"
        ),
        ["cancelled", "operator_cancel", now, now + 5000, "w1", 2, 1]
      )
      const pg = yield* PgClient.PgClient
      assert.deepStrictEqual(yield* pg`SELECT outcome, worker, step FROM headgate.attempt WHERE job_id = 'c1'`, [
        { outcome: "operator_cancel", worker: "w1", step: "a" }
      ])
      assert.strictEqual(yield* control.cancel(id("c1")), "cancelled")
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.attempt WHERE job_id = 'c1'`, 1)
    }))

  it.effect("cancelling a job that ended otherwise answers how it ended and changes nothing", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const over = ["completed", "archived", "quarantined", "undecodable"] as const
      yield* Jobs.seed(
        ...over.map((state) => ({ id: `c ${state}`, state })),
        { id: "c superseded", state: "cancelled", reason: "superseded" }
      )
      for (const state of [...over, "superseded"] as const) {
        const before = yield* Jobs.row(`c ${state}`)
        const answer = yield* control.cancel(id(`c ${state}`))
        assert.strictEqual(answer, state === "superseded" ? "already_cancelled" : `already_${state}`)
        assert.deepStrictEqual(yield* Jobs.row(`c ${state}`), before)
      }
    }))

  it.effect("of a cancel and a settle at the same moment one wins, and each is told the truth", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const leases = yield* Leases
      const names = Array.from({ length: 40 }, (_, n) => `race ${n}`)
      yield* Jobs.seed(...names.map((name) => ({ id: name, state: "running" as const })))
      yield* Effect.forEach(names, (name) =>
        Effect.gen(function*() {
          const [answer, [settled]] = yield* Effect.all([
            control.cancel(id(name)),
            leases.settle([{ lease: Jobs.lease(name), outcome: success }])
          ], { concurrency: 2 })
          const state = yield* Jobs.stateOf(name)
          assert.include(["cancelled", "completed"], state)
          assert.strictEqual(answer, state === "cancelled" ? "cancelled" : "already_completed")
          assert.strictEqual(settled?._tag, state === "cancelled" ? "Rejected" : "Applied")
        }), { concurrency: 4 })
    }))

  it.effect("an operation waits for the one before it and sees what that one left", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const pg = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "w1" }, { id: "w2", state: "archived" }, { id: "w3", state: "scheduled" })
      const waiting = yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`SELECT 1 FROM headgate.cancel_job('w1'), headgate.retry_job('w2', false, null), headgate.promote_job('w3')`
        const operations: ReadonlyArray<Effect.Effect<unknown, unknown>> = [
          control.cancel(id("w1")),
          control.retry(id("w2")),
          control.promote(id("w3"))
        ]
        const fibers = yield* Effect.forEach(operations, (operation) => Effect.forkDetach(Effect.exit(operation)))
        yield* Jobs.waitingForLocks(3)
        return fibers
      }))
      const [first, second, third] = yield* Effect.forEach(waiting, Fiber.join)
      assert.deepStrictEqual(first, Exit.succeed("cancelled"))
      for (const exit of [second, third]) assert.match(JSON.stringify(exit), /"WrongState".*"available"/)
    }))

  it.effect("a move from outside that waits for the end of an attempt finds it ended, and touches nothing", () =>
    Effect.gen(function*() {
      const { client } = yield* ControlSql
      const pg = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "s1", state: "running" }, { id: "s2" })
      const moved = yield* Deferred.make<ReadonlyArray<unknown>>()
      yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`UPDATE headgate.job SET state = 'completed', lease_id = null, lease_expires_at_ms = null, worker = null
          WHERE id = 's1'`
        yield* pg`SELECT FROM headgate.cancel_job('s2')`
        const moves = Effect.all([
          client`SELECT FROM headgate.supersede(ARRAY['s1'])`,
          client`SELECT FROM headgate.discard(ARRAY['s2'])`
        ], { concurrency: 2 })
        yield* Effect.forkDetach(Effect.flatMap(moves, (rows) => Deferred.succeed(moved, rows)))
        yield* Jobs.waitingForLocks(2)
      }))
      assert.deepStrictEqual(yield* Deferred.await(moved), [[], []])
      assert.deepStrictEqual([yield* Jobs.stateOf("s1"), yield* Jobs.stateOf("s2")], ["completed", "cancelled"])
      assert.lengthOf(yield* pg`SELECT FROM headgate.attempt WHERE job_id = 's1'`, 0)
    }))

  it.effect("a retried job starts anew: counters and end are cleared, its progress is kept", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const now = yield* Time.freeze()
      const pg = yield* PgClient.PgClient
      yield* Jobs.seed({
        id: "r1",
        state: "archived",
        reason: "exhausted",
        attempt: 5,
        crash_attempt: 2,
        streak: 3,
        fence: 7,
        orphaned: true,
        has_steps: true,
        checkpoint_version: 4,
        in_progress_step: "b",
        crashes_by_step: { b: 2 },
        scheduled_at_ms: now - 5000,
        evict_at_ms: now + 5
      })
      yield* pg`INSERT INTO headgate.step (recorded_at_ms, fence, position, job_id, step, kind) VALUES (0, 1, 0, 'r1', 'a', 'step')`
      yield* pg`INSERT INTO headgate.effect (recorded_at_ms, fence, key, job_id, step) VALUES (0, 1, 'r1:a', 'r1', 'a')`
      yield* Time.advance(10)
      assert.deepStrictEqual(yield* control.retry(id("r1")), { id: id("r1"), from: "archived", to: "available" })
      const row = yield* Jobs.row("r1")
      assert.deepInclude(row, {
        state: "available",
        reason: null,
        attempt: 0,
        crash_attempt: 0,
        streak: 0,
        finished_at_ms: null,
        evict_at_ms: null,
        scheduled_at_ms: now + 10,
        fence: 7,
        orphaned: true,
        in_progress_step: "b"
      })
      const [lane] = yield* pg`SELECT version, suspect FROM headgate.lane WHERE id = ${row?.["lane_id"] as number}`
      assert.deepStrictEqual(lane, { version: 4, suspect: false })
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.step WHERE job_id = 'r1'`, 1)
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect WHERE job_id = 'r1'`, 1)
    }))

  it.effect("a retried undecodable job keeps its counters, and stays a suspect if it crashed", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "r2", state: "undecodable", attempt: 2, crash_attempt: 1 })
      yield* Control.use((control) => control.retry(id("r2")))
      const [job] = yield* pg`SELECT j.attempt, j.crash_attempt, l.suspect FROM headgate.job j
        JOIN headgate.lane l ON l.id = j.lane_id WHERE j.id = 'r2'`
      assert.deepStrictEqual(job, { attempt: 2, crash_attempt: 1, suspect: true })
    }))

  it.effect("a passed deadline must be replaced or cleared to retry, and counts as it was asked for", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const now = yield* Time.freeze()
      for (const name of ["dl1", "dl2", "dl3"]) {
        yield* Jobs.seed({ id: name, state: "archived", reason: "deadline", deadline_at_ms: now })
      }
      for (const deadline of [undefined, { deadlineAtMs: now }, { deadlineAtMs: 1.5 }, { deadlineAtMs: -1 }]) {
        const refused = yield* Effect.flip(control.retry(id("dl1"), deadline))
        assert.deepInclude(refused, { _tag: "Invalid", field: "deadline" })
      }
      assert.strictEqual(yield* Jobs.stateOf("dl1"), "archived")
      yield* control.retry(id("dl1"), { deadlineAtMs: now + 1 })
      yield* control.retry(id("dl2"), { deadlineAtMs: null })
      assert.deepStrictEqual(yield* Jobs.columns("dl1", "state", "deadline_at_ms"), ["available", now + 1])
      assert.deepStrictEqual(yield* Jobs.columns("dl2", "state", "deadline_at_ms"), ["available", null])
    }))

  it.effect("a job cannot come back while another holds its unique key, and the holder is named", () =>
    Effect.gen(function*() {
      const control = yield* Control
      yield* Jobs.seed(
        { id: "k1", state: "archived", unique_key: key("k") },
        { id: "k2", state: "quarantined", unique_key: key("k") },
        { id: "k3", state: "running", unique_key: key("k") }
      )
      for (const back of [control.retry(id("k1")), control.release(id("k2"))]) {
        assert.deepInclude(yield* Effect.flip(back), { _tag: "KeyTaken", holderId: "k3" })
      }
      assert.strictEqual(yield* Jobs.stateOf("k1"), "archived")
      yield* control.cancel(id("k3"))
      yield* control.retry(id("k1"))
      assert.deepInclude(yield* Effect.flip(control.release(id("k2"))), { _tag: "KeyTaken", holderId: "k1" })
    }))

  it.effect("when several jobs of one unique key are retried at the same moment, one comes back", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const names = Array.from({ length: 8 }, (_, n) => `same ${n}`)
      yield* Jobs.seed(...names.map((name) => ({ id: name, state: "archived" as const, unique_key: key("same") })))
      const exits = yield* Effect.forEach(names, (name) => Effect.exit(control.retry(id(name))), { concurrency: 8 })
      assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
      for (const exit of exits) if (Exit.isFailure(exit)) assert.match(JSON.stringify(exit), /"KeyTaken"/)
    }))

  it.effect("a retry that waits for a rival enqueue of the same key is refused once the rival commits, else it passes", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const pg = yield* PgClient.PgClient
      for (const ends of ["commits", "rolls back"] as const) {
        const [old, rival] = [`old ${ends}`, `rival ${ends}`]
        yield* Jobs.seed({ id: old, state: "archived", unique_key: key(ends) })
        const retried = yield* Deferred.make<Exit.Exit<unknown, unknown>>()
        yield* pg.withTransaction(Effect.gen(function*() {
          yield* Jobs.seed({ id: rival, unique_key: key(ends) })
          yield* Effect.forkDetach(
            Effect.flatMap(Effect.exit(control.retry(id(old))), (exit) => Deferred.succeed(retried, exit))
          )
          yield* Jobs.waitingForLocks(1)
          if (ends === "rolls back") return yield* Effect.fail("rolls back" as const)
        })).pipe(Effect.catch((error) => error === "rolls back" ? Effect.void : Effect.fail(error)))
        const exit = yield* Deferred.await(retried)
        assert.strictEqual(Exit.isSuccess(exit), ends === "rolls back")
        if (Exit.isFailure(exit)) assert.match(JSON.stringify(exit), new RegExp(`"KeyTaken".*"${rival}"`))
      }
    }))

  it.effect("a released job has a clean crash count, and its failures stay counted", () =>
    Effect.gen(function*() {
      yield* Jobs.seed({ id: "q1", state: "quarantined", reason: "crash_limit", attempt: 2, crash_attempt: 3 })
      yield* Control.use((control) => control.release(id("q1")))
      assert.deepStrictEqual(
        yield* Jobs.columns("q1", "state", "reason", "attempt", "crash_attempt", "finished_at_ms"),
        ["available", null, 2, 0, null]
      )
      assert.deepStrictEqual(yield* inOrder("default", 100).pipe(Effect.map((ids) => ids.includes("q1"))), true)
    }))

  it.effect("a job that is sent behind starts after all work of its priority in its queue, whatever its kind", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const now = yield* Time.freeze()
      yield* Jobs.seed(
        { id: "b1", queue: "behind", scheduled_at_ms: now - 9 },
        { id: "b2", queue: "behind", kind: "other" },
        { id: "b3", queue: "behind" },
        { id: "b0", queue: "behind", priority: -1, scheduled_at_ms: now - 99 },
        { id: "b9", queue: "elsewhere", scheduled_at_ms: now + 5000 }
      )
      yield* control.reschedule(id("b1"), { behind: true })
      assert.deepStrictEqual(yield* Jobs.columns("b1", "scheduled_at_ms", "state"), [now + 1, "available"])
      assert.deepStrictEqual(yield* inOrder("behind"), ["b2", "b3", "b1", "b0"])
    }))

  it.effect("a new due time decides whether a job waits for it or is available", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const now = yield* Time.freeze()
      const [past, future] = [now - 5, now + 60_000]
      const cases = [
        ["pending", past, "pending"],
        ["pending", future, "pending"],
        ["scheduled", past, "available"],
        ["scheduled", future, "scheduled"],
        ["retryable", past, "available"],
        ["retryable", future, "scheduled"],
        ["available", past, "available"],
        ["available", future, "scheduled"]
      ] as const
      for (const [from, atMs, to] of cases) {
        const name = `at ${from} ${atMs}`
        yield* Jobs.seed({ id: name, state: from, queue: "due" })
        assert.deepStrictEqual(yield* control.reschedule(id(name), { atMs }), { id: id(name), from, to }, name)
        assert.deepStrictEqual(yield* Jobs.columns(name, "scheduled_at_ms"), [atMs])
      }
      for (const atMs of [-1, 0.5, Number.NaN, 1e18]) {
        const refused = yield* Effect.flip(control.reschedule(id("at pending"), { atMs }))
        assert.deepInclude(refused, { _tag: "Invalid", field: "atMs" })
      }
    }))

  it.effect("sending a job behind never makes it start before its due time", () =>
    Effect.gen(function*() {
      const now = yield* Time.freeze()
      yield* Jobs.seed({ id: "far", state: "scheduled", scheduled_at_ms: now + 60_000, queue: "far" })
      yield* Control.use((control) => control.reschedule(id("far"), { behind: true }))
      assert.deepStrictEqual(yield* Jobs.columns("far", "state", "scheduled_at_ms"), ["scheduled", now + 60_000])
    }))

  it.effect("an edited job carries the new payload, and goes to workers that know its version", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const pg = yield* PgClient.PgClient
      const [before, after] = [new TextEncoder().encode("before"), new TextEncoder().encode("after ü")]
      yield* Jobs.seed(
        { id: "e1", payload: key("before"), fingerprint: yield* fingerprint("greet", before), crash_attempt: 1 },
        { id: "e2", payload: key("before"), fingerprint: "mine" }
      )
      for (const name of ["e1", "e2"]) yield* control.edit(id(name), { bytes: after, schemaVersion: 6 })
      const rows = yield* pg`SELECT j.payload, j.fingerprint, j.schema_version, l.version, l.suspect FROM headgate.job j
        JOIN headgate.lane l ON l.id = j.lane_id WHERE j.id IN ('e1', 'e2') ORDER BY j.id`
      const common = { payload: after, schema_version: 6, version: 6 }
      assert.deepStrictEqual(rows, [
        { ...common, fingerprint: yield* fingerprint("greet", after), suspect: true },
        { ...common, fingerprint: "mine", suspect: false }
      ])
      const bad = [{ bytes: after, schemaVersion: 0 }, { bytes: new Uint8Array(1_048_577), schemaVersion: 1 }]
      for (const payload of bad) {
        assert.strictEqual((yield* Effect.flip(control.edit(id("e1"), payload)))._tag, "Invalid")
      }
    }))

  it.effect("a removed job is gone with all that belongs to it; one that runs is not removed", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const pg = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "x1", state: "archived" }, { id: "x2", state: "running" })
      for (const name of ["x1", "x2"]) {
        yield* pg`INSERT INTO headgate.step (recorded_at_ms, fence, position, job_id, step, kind) VALUES (0, 1, 0, ${name}, 'a', 'step')`
        yield* pg`INSERT INTO headgate.effect (recorded_at_ms, fence, key, job_id, step) VALUES (0, 1, ${name}, ${name}, 'a')`
      }
      assert.deepStrictEqual(yield* control.remove(id("x1")), { id: id("x1"), from: "archived", to: "deleted" })
      assert.deepInclude(yield* Effect.flip(control.remove(id("x2"))), { _tag: "WrongState", state: "running" })
      assert.deepStrictEqual(yield* pg`SELECT job_id FROM headgate.step WHERE job_id IN ('x1', 'x2')`, [{
        job_id: "x2"
      }])
      assert.lengthOf(yield* pg`SELECT 1 FROM headgate.effect WHERE job_id IN ('x1', 'x2')`, 2)
    }))

  it.effect("a newcomer writes what it names over the waiting holder of its key, and nothing over another state", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const now = yield* Time.freeze()
      yield* Jobs.seed({ id: "n1", payload: key("old"), priority: 1, max_attempts: 5 }, { id: "n2", state: "running" })
      const replace = (name: string, fields: number) =>
        pg`SELECT from_state, to_state FROM headgate.replace_job(${name}, ${fields}::int, 'new'::bytea, 2, 'fp',
          ${BigInt(now + 5000)}::bigint, 9::smallint, 7)`
      const seen = () =>
        Jobs.columns("n1", "payload", "fingerprint", "state", "scheduled_at_ms", "priority", "max_attempts")
      yield* replace("n1", 8)
      assert.deepStrictEqual(yield* seen(), [key("old"), "n1", "available", now, 1, 7])
      yield* replace("n1", 1 + 4)
      assert.deepStrictEqual(yield* seen(), [key("new"), "fp", "available", now, 9, 7])
      assert.deepStrictEqual(yield* replace("n1", 2), [{ from_state: "available", to_state: "scheduled" }])
      assert.deepStrictEqual(yield* seen(), [key("new"), "fp", "scheduled", now + 5000, 9, 7])
      assert.deepStrictEqual(yield* replace("n2", 15), [{ from_state: "running", to_state: null }])
    }))

  it.effect("every refused operation names the state and leaves the row as it was", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const operations: Readonly<Record<string, (job: JobId) => Effect.Effect<unknown, { readonly _tag: string }>>> = {
        promote: control.promote,
        retry: control.retry,
        release: control.release,
        reschedule: (job) => control.reschedule(job, { behind: true }),
        edit: (job) => control.edit(job, { bytes: new Uint8Array(1), schemaVersion: 2 })
      }
      for (const [operation, run] of Object.entries(operations)) {
        for (const state of State.literals) {
          const name = `${operation} ${state}`
          yield* Jobs.seed({ id: name, state })
          const before = yield* Jobs.row(name)
          const exit = yield* Effect.exit(run(id(name)))
          if (Exit.isSuccess(exit)) continue
          assert.match(JSON.stringify(exit), new RegExp(`"WrongState".*"${operation}".*"${state}"`))
          assert.deepStrictEqual(yield* Jobs.row(name), before)
        }
      }
    }))
})
