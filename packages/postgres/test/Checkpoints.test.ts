import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import type { Checkpoint, StepWrite } from "@headgate/core/Checkpoint"
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Control } from "@headgate/core/Control"
import type { Fence, LeaseRef } from "@headgate/core/Ids"
import * as Outcome from "@headgate/core/Outcome"
import * as CheckpointRows from "@headgate/postgres/CheckpointRows"
import * as ControlSql from "@headgate/postgres/ControlSql"
import { Time } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Store from "./Store.ts"

const write = (...batch: ReadonlyArray<StepWrite>) => Checkpoints.use((checkpoints) => checkpoints.write(batch))

const boundary = (lease: LeaseRef, parts: Partial<StepWrite> = {}): StepWrite => ({
  lease,
  leaseMs: 30_000,
  record: undefined,
  mark: undefined,
  cursor: undefined,
  open: undefined,
  ...parts
})

const done = (step: string, position: number, result?: string): StepWrite["record"] => ({
  step,
  kind: "step",
  position,
  result: result === undefined ? undefined : Store.bytes(result),
  wakeAtMs: undefined
})

const steps = Effect.fnUntraced(function*(id: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ step: string }>`SELECT step FROM headgate.step WHERE job_id = ${id} ORDER BY position`
  return rows.map(({ step }) => step)
})

const withStatements = ControlSql.layer.pipe(Layer.provideMerge(Store.layer))

layer(withStatements, { excludeTestServices: true })("A claim's checkpoint", (it) => {
  it.effect("is read where the claim is known, or not at all", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "resumed" })
      yield* write(boundary(lease, { record: done("a", 0) }))
      const { statement } = yield* ControlSql.ControlSql
      const read = CheckpointRows.reader(statement, "Test")
      const stepsOf = (found: ReadonlyMap<string, Checkpoint>) =>
        found.get(lease.jobId)?.records.map(({ step }) => step)
      assert.deepStrictEqual(stepsOf(yield* read([lease.jobId], lease.leaseId)), ["a"])
      assert.deepStrictEqual(stepsOf(yield* read([lease.jobId])), ["a"])
      const elsewhere = yield* Effect.flip(read([lease.jobId], Store.leaseId()))
      assert.strictEqual(elsewhere._tag, "StoreUnavailable")
    }))
})

layer(Store.layer, { excludeTestServices: true })("Checkpoints.write", (it) => {
  it.effect("a boundary stores the record and the next mark, and extends the lease, alone as in a batch", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      const now = yield* Time.now()
      const alone = yield* Store.running({ id: "alone" })
      const [first, second] = [yield* Store.running({ id: "first" }), yield* Store.running({ id: "second" })]
      const parts = { record: done("a", 0, "r"), mark: "b", leaseMs: 77_000 }
      assert.deepStrictEqual(yield* write(boundary(alone, parts)), [true])
      assert.deepStrictEqual(yield* write(boundary(first, parts), boundary(second, { mark: "a" })), [true, true])
      for (const id of ["alone", "first"]) {
        assert.deepStrictEqual(yield* steps(id), ["a"])
        const columns = yield* Store.columns(id, "in_progress_step", "has_steps", "lease_expires_at_ms")
        assert.deepStrictEqual(columns, ["b", true, now + 77_000])
      }
      assert.deepStrictEqual(yield* Store.columns("second", "in_progress_step", "has_steps"), ["a", false])
      yield* Time.resume()
    }))

  it.effect("recording the marked step clears the mark, recording another leaves it", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "mark" })
      yield* write(boundary(lease, { mark: "a" }))
      yield* write(boundary(lease, { record: done("other", 0) }))
      assert.deepStrictEqual(yield* Store.columns("mark", "in_progress_step"), ["a"])
      yield* write(boundary(lease, { record: done("a", 1) }))
      assert.deepStrictEqual(yield* Store.columns("mark", "in_progress_step"), [null])
    }))

  it.effect("a cursor moves on, and goes when its step is recorded", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "cursor" })
      for (const bytes of ["1", "2"]) {
        yield* write(boundary(lease, { cursor: { step: "pages", bytes: Store.bytes(bytes) } }))
      }
      assert.deepStrictEqual(yield* Store.columns("cursor", "cursor_step", "cursor"), ["pages", "\\x32"])
      yield* write(boundary(lease, { record: done("pages", 0) }))
      assert.deepStrictEqual(yield* Store.columns("cursor", "cursor_step", "cursor"), [null, null])
    }))

  it.effect("a stale lease stores nothing, alone and beside current ones", () =>
    Effect.gen(function*() {
      const stale = yield* Store.running({ id: "stale" })
      const current = yield* Store.running({ id: "current" })
      yield* Store.loseLease(stale)
      const before = yield* Store.row("stale")
      const parts = { record: done("a", 0), mark: "b", cursor: { step: "b", bytes: Store.bytes("1") } }
      assert.deepStrictEqual(yield* write(boundary(stale, parts)), [false])
      assert.deepStrictEqual(yield* write(boundary(stale, parts), boundary(current, parts)), [false, true])
      assert.deepStrictEqual(yield* Store.row("stale"), before)
      assert.deepStrictEqual(yield* steps("stale"), [])
      for (
        const other of [{ ...current, leaseId: Store.leaseId() }, { ...current, fence: 2 as typeof current.fence }]
      ) {
        assert.deepStrictEqual(yield* write(boundary(other, { record: done("z", 9) })), [false])
        assert.deepStrictEqual(yield* write(boundary(other, { record: done("z", 9) }), boundary(stale)), [false, false])
      }
      assert.deepStrictEqual(yield* steps("current"), ["a"])
    }))

  it.effect("a write that meets a reclaim in progress waits for it, and stores nothing", () =>
    Effect.gen(function*() {
      const alone = yield* Store.running({ id: "meets" })
      const record = { record: done("a", 0) }
      assert.deepStrictEqual(yield* Store.duringReclaim([alone], write(boundary(alone, record))), [false])
      const two = yield* Effect.forEach(["meets-1", "meets-2"], (id) => Store.running({ id }))
      const batch = write(...two.map((lease) => boundary(lease, record)))
      assert.deepStrictEqual(yield* Store.duringReclaim(two, batch), [false, false])
      for (const id of ["meets", "meets-1", "meets-2"]) assert.strictEqual(yield* Store.count("step", id), 0)
    }))

  it.effect("a write sent again after a lost answer changes nothing", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "resent" })
      const first = boundary(lease, { record: done("a", 0, "one") })
      assert.deepStrictEqual(yield* write(first), [true])
      assert.deepStrictEqual(yield* write({ ...first, record: done("a", 0, "two") }), [true])
      const sql = yield* PgClient.PgClient
      const rows = yield* sql`SELECT result FROM headgate.step WHERE job_id = 'resent'`
      assert.deepStrictEqual(rows, [{ result: Store.bytes("one") }])
    }))

  it.effect("several writes of one job in a batch are applied in their order", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "several" })
      const other = yield* Store.running({ id: "beside" })
      const answers = yield* write(
        boundary(lease, { mark: "a" }),
        boundary(lease, { record: done("a", 0), mark: "b" }),
        boundary(other, { mark: "a" }),
        boundary(lease, { record: done("b", 1) })
      )
      assert.deepStrictEqual(answers, [true, true, true, true])
      assert.deepStrictEqual(yield* steps("several"), ["a", "b"])
      assert.deepStrictEqual(yield* Store.columns("several", "in_progress_step"), [null])
    }))

  it.effect("a checkpoint of a newer version keeps the job from older workers, also from a batch", () =>
    Effect.gen(function*() {
      const open = { stepSet: ["a", "b\"{,}\\"], version: 4 }
      const [one, two] = [
        yield* Store.running({ id: "n1", queue: "n" }),
        yield* Store.running({ id: "n2", queue: "n" })
      ]
      const three = yield* Store.running({ id: "n3", queue: "n" })
      yield* write(boundary(one, { mark: "a", open }))
      yield* write(
        boundary(two, { mark: "a", open }),
        boundary(three, { mark: "a", open: { stepSet: undefined, version: 1 } })
      )
      for (const lease of [one, two, three]) yield* Store.settle(lease, Outcome.released)
      const old = yield* Store.admit({ queues: ["n"], kinds: { greet: 3 } })
      assert.deepStrictEqual(old.map(({ lease }) => lease), [{
        ...three,
        leaseId: old[0]!.lease.leaseId,
        fence: 2 as typeof three.fence
      }])
      const young = yield* Store.admit({ queues: ["n"], kinds: { greet: 4 } })
      assert.deepStrictEqual(young.map((claim) => claim.checkpoint?.stepSet), [open.stepSet, open.stepSet])
    }))

  it.effect("a step name that cannot be stored is a defect before anything is written", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "name" })
      for (const step of ["a\u0000", "\udc00", "", "s".repeat(1025)]) {
        const exit = yield* Effect.exit(
          write(boundary(lease, { mark: "fine" }), boundary(lease, { record: done(step, 0) }))
        )
        assert.strictEqual(exit._tag, "Failure")
      }
      assert.deepStrictEqual(yield* Store.columns("name", "in_progress_step"), [null])
    }))
})

layer(Store.layer, { excludeTestServices: true })("Checkpoints.sleep and remap", (it) => {
  const sleep = (lease: LeaseRef, step: string, until: { readonly delayMs: number } | { readonly wakeAtMs: number }) =>
    Checkpoints.use((checkpoints) => checkpoints.sleep({ lease, step, position: 0, until, open: undefined }))

  it.effect("a sleep ends the lease, and the job is due when it ends, however often it is entered", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      const now = yield* Time.now()
      const lease = yield* Store.running({ id: "sleep", queue: "sleep" })
      yield* sleep(lease, "nap", { delayMs: 5000 })
      const state = yield* Store.columns("sleep", "state", "scheduled_at_ms", "lease_id", "attempt", "crash_attempt")
      assert.deepStrictEqual(state, ["scheduled", now + 5000, null, 0, 0])
      assert.strictEqual(yield* Store.count("attempt", "sleep"), 0)
      // Sent again after a lost answer.
      yield* sleep(lease, "nap", { delayMs: 5000 })
      yield* Time.advance(1000)
      yield* (yield* PgClient.PgClient)`UPDATE headgate.job SET state = 'available' WHERE id = 'sleep'`
      const [claim] = yield* Store.admit({ queues: ["sleep"] })
      assert.deepStrictEqual(claim?.checkpoint?.records.map(({ kind, step, wakeAtMs }) => [kind, step, wakeAtMs]), [
        ["sleep", "nap", now + 5000]
      ])
      yield* sleep(claim!.lease, "nap", { delayMs: 5000 })
      assert.deepStrictEqual(yield* Store.columns("sleep", "scheduled_at_ms"), [now + 5000])
      yield* Time.resume()
    }))

  it.effect("a sleep sent again after a lost answer is told as stored, wherever the job has come to since", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const first = yield* Store.running({ id: "slept" })
      const claim = Effect.gen(function*() {
        yield* control.promote(first.jobId)
        const [claim] = yield* Store.admit({ queues: ["q-slept"] })
        return claim!.lease
      })
      const told = (lease: LeaseRef, step: string) => sleep(lease, step, { delayMs: 60_000 })
      yield* told(first, "nap")
      const second = yield* claim
      assert.strictEqual(yield* told(first, "nap"), "scheduled")
      const steps = [{ from: "nap", to: ["rest"] }]
      yield* Checkpoints.use(({ remap }) => remap({ lease: second, stepSet: [], version: 1, steps }))
      yield* Store.settle(second, Outcome.snooze(60_000))
      assert.strictEqual(yield* told(first, "nap"), "scheduled")
      // Woken early, the third attempt sleeps on in the same step.
      const third = yield* claim
      yield* told(third, "rest")
      yield* control.cancel(first.jobId)
      yield* control.retry(first.jobId)
      assert.strictEqual(yield* told(third, "rest"), "scheduled")
      yield* Store.admit({ queues: ["q-slept"] })
      assert.strictEqual(yield* told(third, "rest"), "scheduled")
    }))

  it.effect("a sleep is no other attempt's, under whichever fence, and is unknown where the job is gone", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const lease = yield* Store.running({ id: "others" })
      yield* sleep(lease, "nap", { delayMs: 60_000 })
      const refused = (lease: LeaseRef) => Effect.flip(sleep(lease, "nap", { delayMs: 60_000 }))
      // After a failover that lost a claim its fence is given out again, under another lease.
      const others = [{ ...lease, leaseId: Store.leaseId() }, { ...lease, fence: 2 as Fence }]
      for (const other of others) assert.deepInclude(yield* refused(other), { state: "scheduled" })
      yield* control.cancel(lease.jobId)
      yield* control.remove(lease.jobId)
      assert.deepInclude(yield* refused(lease), { _tag: "LeaseRejected", state: "missing" })
    }))

  it.effect("a sleep that ended its job is told so when sent again, also after a redrive", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const lease = yield* Store.running({ id: "over-again", deadlineInMs: 60_000 })
      const told = sleep(lease, "nap", { delayMs: 60_001 })
      yield* told
      yield* control.retry(lease.jobId)
      yield* Store.admit({ queues: ["q-over-again"] })
      assert.strictEqual(yield* told, "archived")
    }))

  it.effect("a sleep ends a row of attempts that were not failures, as a snooze does", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "streak" })
      yield* (yield* PgClient.PgClient)`UPDATE headgate.job SET streak = 3 WHERE id = 'streak'`
      assert.strictEqual(yield* sleep(lease, "nap", { delayMs: 5000 }), "scheduled")
      assert.deepStrictEqual(yield* Store.columns("streak", "streak"), [0])
    }))

  it.effect("a write never shortens a lease that a renewal has extended further", () =>
    Effect.gen(function*() {
      const one = yield* Store.running({ id: "longer-1" }, { leaseMs: 90_000 })
      const two = yield* Store.running({ id: "longer-2" }, { leaseMs: 90_000 })
      const expiries = Effect.forEach(["longer-1", "longer-2"], (id) => Store.columns(id, "lease_expires_at_ms"))
      const before = yield* expiries
      yield* write(boundary(one, { mark: "a" }))
      yield* write(boundary(one, { mark: "a" }), boundary(two, { mark: "a" }))
      assert.deepStrictEqual(yield* expiries, before)
    }))

  it.effect("a stale lease cannot put a job to sleep", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "stale-sleep" })
      yield* Store.loseLease(lease)
      const before = yield* Store.row("stale-sleep")
      const refused = yield* Effect.flip(sleep(lease, "nap", { delayMs: 1 }))
      assert.deepInclude(refused, { _tag: "LeaseRejected", state: "retryable" })
      assert.deepStrictEqual(yield* Store.row("stale-sleep"), before)
      assert.strictEqual(yield* Store.count("step", "stale-sleep"), 0)
    }))

  it.effect("a sleep past the deadline ends the job", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "over", deadlineInMs: 60_000 })
      for (const _ of ["first", "sent again"]) {
        assert.strictEqual(yield* sleep(lease, "nap", { delayMs: 60_001 }), "archived")
      }
      assert.deepStrictEqual(yield* Store.columns("over", "state", "reason"), ["archived", "deadline"])
    }))

  it.effect("a remap renames, splits, keeps and drops what is stored", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "remap" })
      yield* write(
        boundary(lease, { open: { stepSet: ["old", "keep", "gone"], version: 1 }, record: done("old", 0, "r") })
      )
      yield* write(boundary(lease, { record: done("old[1]", 1) }))
      yield* write(boundary(lease, { record: done("keep", 2), mark: "old[2]" }))
      yield* write(boundary(lease, { record: done("gone", 3), cursor: { step: "gone", bytes: Store.bytes("1") } }))
      const remap = { lease, stepSet: ["keep", "x", "y"], version: 2, steps: [{ from: "old", to: ["x", "y"] }] }
      yield* Checkpoints.use((checkpoints) => checkpoints.remap(remap))
      assert.deepStrictEqual((yield* steps("remap")).sort(), ["keep", "x", "x[1]", "y", "y[1]"])
      const columns = yield* Store.columns(
        "remap",
        "step_set",
        "in_progress_step",
        "cursor_step",
        "cursor",
        "checkpoint_version"
      )
      assert.deepStrictEqual(columns, [["keep", "x", "y"], "x[2]", null, null, 2])
    }))

  it.effect("a remap sent again after a lost answer leaves each record under the name it was given", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "remap-again" })
      yield* write(
        boundary(lease, { open: { stepSet: ["a", "b"], version: 1 }, record: done("a", 0, "of a") })
      )
      yield* write(boundary(lease, { record: done("b", 1, "of b") }))
      const names = [{ from: "a", to: ["b"] }, { from: "b", to: ["c"] }]
      const remap = { lease, stepSet: ["b", "c"], version: 2, steps: names }
      yield* Checkpoints.use((checkpoints) => checkpoints.remap(remap))
      yield* Checkpoints.use((checkpoints) => checkpoints.remap(remap))
      const sql = yield* PgClient.PgClient
      const rows = yield* sql`SELECT step, convert_from(result, 'UTF8') AS result FROM headgate.step
        WHERE job_id = 'remap-again' ORDER BY step`
      assert.deepStrictEqual(rows, [{ step: "b", result: "of a" }, { step: "c", result: "of b" }])
    }))

  it.effect("a stale lease cannot remap", () =>
    Effect.gen(function*() {
      const lease = yield* Store.running({ id: "stale-remap" })
      yield* write(boundary(lease, { record: done("old", 0) }))
      yield* Store.loseLease(lease)
      const remap = { lease, stepSet: [], version: 9, steps: [] }
      const refused = yield* Effect.flip(Checkpoints.use((checkpoints) => checkpoints.remap(remap)))
      assert.strictEqual(refused._tag, "LeaseRejected")
      assert.deepStrictEqual(yield* steps("stale-remap"), ["old"])
    }))
})
