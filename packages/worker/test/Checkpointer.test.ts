import { assert, it, layer } from "@effect/vitest"
import { Checkpoints, JobId, LeaseId, Step, type StepWrite, StoreUnavailable, Task } from "@headgate/core"
import { Deferred, Effect, Exit, Fiber, Schema, Scope } from "effect"
import * as Checkpointer from "../src/Checkpointer.ts"
import * as Attempts from "./Attempts.ts"

const payload = Schema.Void
const names = Array.from({ length: 10 }, (_, n) => `s${n}`)

layer(Attempts.layer, { excludeTestServices: true })("Checkpointer", (it) => {
  it.effect("the writes of 32 concurrent jobs share commits: at most 0.1 a step", () =>
    Effect.gen(function*() {
      const task = Task.make("grouped", { payload, steps: names })
      yield* task.enqueueAll(Array.from({ length: 32 }, () => undefined))
      const worker = yield* Attempts.worker()
      const handler = Effect.forEach(names, (name) => task.step(name, Effect.void))
      const held = yield* worker.claimAll(task, 32)
      const ran = yield* Effect.forEach(held, (held) => worker.finish(held, handler), { concurrency: 32 })
      assert.isTrue(ran.every(({ exit }) => Exit.isSuccess(exit)))
      assert.isAtMost(worker.batches.length / (32 * names.length), 0.1)
      for (const batch of worker.batches) {
        assert.strictEqual(new Set(batch.map(({ lease }) => lease.jobId)).size, batch.length)
      }
    }))

  it.effect("a write that the store cannot take does not sink the writes beside it", () =>
    Effect.gen(function*() {
      const task = Task.make("poisoned", { payload })
      yield* task.enqueueAll([undefined, undefined, undefined])
      const worker = yield* Attempts.worker()
      const held = yield* worker.claimAll(task, 3)
      const exits = yield* Effect.forEach(
        held,
        ({ attempt }, at) =>
          Effect.exit(worker.stores.checkpointer.write(mark(attempt.claim.lease, at === 1 ? "" : "a"))),
        { concurrency: 3 }
      )
      assert.deepStrictEqual(worker.batches.map((batch) => batch.length), [3, 1, 1, 1])
      assert.deepStrictEqual(exits.map(({ _tag }) => _tag), ["Success", "Failure", "Success"])
    }))

  it.effect("parallel steps of one job begin with one write, and each is recorded by its own", () =>
    Effect.gen(function*() {
      const task = Task.make("side-by-side", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const q = (key: string) => Step.run("q", Effect.sleep(5), { key })
      yield* worker.run(task, Effect.all(["1", "2", "3", "4", "5"].map(q), { concurrency: 5 }))
      assert.strictEqual(worker.batches.length, 6)
    }))
})

const lease = (job: string, fence = 1) => ({
  jobId: JobId.make(job),
  leaseId: LeaseId.make("6c1d6d0a-0c61-4d0c-9a2f-0f4b7f1f5a11"),
  fence: fence as Attempts.Held["attempt"]["claim"]["lease"]["fence"]
})

const mark = (lease: StepWrite["lease"], step: string): StepWrite => ({
  lease,
  leaseMs: 1000,
  mark: step,
  record: undefined,
  cursor: undefined,
  open: undefined
})

const record = (lease: StepWrite["lease"], step: string, bytes = 0): StepWrite => ({
  ...mark(lease, step),
  mark: undefined,
  record: { step, kind: "step", position: 0, result: new Uint8Array(bytes), wakeAtMs: undefined }
})

/** A store that answers when told to: what is decided here is which writes go out together, and when. */
const slowStore = Effect.gen(function*() {
  const sent: Array<
    { readonly batch: ReadonlyArray<StepWrite>; readonly answer: Deferred.Deferred<void, StoreUnavailable> }
  > = []
  const refused = () => Effect.die("not asked for")
  const checkpoints = Checkpoints.of({
    write: (batch) =>
      Effect.gen(function*() {
        const answer = yield* Deferred.make<void, StoreUnavailable>()
        sent.push({ batch, answer })
        yield* Deferred.await(answer)
        return batch.map(() => true)
      }),
    sleep: refused,
    remap: refused
  })
  const scope = yield* Scope.make()
  const checkpointer = yield* Checkpointer.make.pipe(
    Effect.provideService(Checkpoints, checkpoints),
    Scope.provide(scope)
  )
  const write = (write: StepWrite) => Effect.forkChild(checkpointer.write(write), { startImmediately: true })
  const turn = Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
  return {
    write,
    turn,
    checkpointer,
    close: Scope.close(scope, Exit.void),
    answer: (at: number) => Effect.andThen(Deferred.succeed(sent[at]!.answer, undefined), turn),
    fail: (at: number, error: StoreUnavailable) => Effect.andThen(Deferred.fail(sent[at]!.answer, error), turn),
    sent: () =>
      sent.map(({ batch }) =>
        batch.map(({ cursor, lease, mark, record }) =>
          `${lease.jobId}: ${[record?.step, mark, cursor?.step].map((part) => part ?? "-").join(" ")}`
        )
      )
  }
})

it.effect("what is asked for while the store is busy goes out together when it answers", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    yield* store.write(record(lease("j1"), "a"))
    yield* store.write(record(lease("j2"), "a"))
    yield* store.turn
    yield* store.write(record(lease("j3"), "a"))
    yield* store.turn
    assert.deepStrictEqual(store.sent(), [["j1: a - -", "j2: a - -"]])
    yield* store.answer(0)
    assert.deepStrictEqual(store.sent()[1], ["j3: a - -"])
  }))

it.effect("a second batch goes out beside the first when it is no smaller, a third does not", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    yield* store.write(record(lease("j1"), "a"))
    yield* store.turn
    yield* store.write(record(lease("j2"), "a"))
    yield* store.turn
    for (const job of ["j3", "j4", "j5"]) yield* store.write(record(lease(job), "a"))
    yield* store.turn
    assert.deepStrictEqual(store.sent(), [["j1: a - -"], ["j2: a - -"]])
  }))

it.effect("what rides goes out with the next writes of others from its time on, and causes none", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    const told: Array<string> = []
    const ride = (job: string, from: number) =>
      store.checkpointer.ride(mark(lease(job), "a"), from, () => void told.push(job))
    ride("now", 0)
    ride("later", Number.POSITIVE_INFINITY)
    ride("withdrawn", 0)()
    yield* store.turn
    assert.deepStrictEqual(store.sent(), [])
    yield* store.write(record(lease("j1"), "a"))
    yield* store.turn
    assert.deepStrictEqual([store.sent(), told], [[["j1: a - -", "now: - a -"]], []])
    yield* store.answer(0)
    assert.deepStrictEqual(told, ["now"])
  }))

it.effect("the writes of one job go out one after the other, in order", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    for (const step of ["a", "b", "c"]) yield* Effect.andThen(store.write(record(lease("j1"), step)), store.turn)
    assert.strictEqual(store.sent().length, 1)
    yield* store.answer(0)
    yield* store.answer(1)
    assert.deepStrictEqual(store.sent(), [["j1: a - -"], ["j1: b - -"], ["j1: c - -"]])
  }))

it.effect("marks and positions that wait join the write before them, unless that ends a cursor or is of another attempt", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    const position = (step: string) => ({
      ...mark(lease("j1"), step),
      mark: undefined,
      cursor: { step, bytes: new Uint8Array() }
    })
    const done = record(lease("j1"), "c")
    yield* store.write(record(lease("j1"), "a"))
    yield* store.turn
    yield* store.write(mark(lease("j1"), "b"))
    yield* store.write(mark(lease("j1"), "c"))
    yield* store.write(position("c"))
    yield* store.write({ ...done, record: { ...done.record!, kind: "cursor" } })
    yield* store.write(position("d"))
    yield* store.write(mark(lease("j1", 2), "e"))
    for (const at of [0, 1, 2, 3]) yield* store.answer(at)
    assert.deepStrictEqual(store.sent(), [["j1: a - -"], ["j1: - c c"], ["j1: c - -"], ["j1: - - d"], ["j1: - e -"]])
  }))

it.effect("a waiting record goes out though its attempt was interrupted, a waiting mark does not", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    yield* store.write(record(lease("j1"), "a"))
    yield* store.turn
    const recording = yield* store.write(record(lease("j1"), "b"))
    const marking = yield* store.write(mark(lease("j1", 2), "c"))
    yield* Fiber.interrupt(recording)
    yield* Fiber.interrupt(marking)
    yield* store.answer(0)
    yield* store.answer(1)
    assert.deepStrictEqual(store.sent(), [["j1: a - -"], ["j1: b - -"]])
  }))

it.effect("large results are spread over batches of bounded size", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    const megabyte = 1_048_576
    for (let n = 0; n < 12; n++) yield* store.write(record(lease(`j${n}`), "a", megabyte))
    yield* store.turn
    yield* store.answer(0)
    yield* store.answer(1)
    assert.deepStrictEqual(store.sent().map((batch) => batch.length), [5, 5, 2])
  }))

it.effect("a batch holds a bounded number of writes", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    for (let n = 0; n <= Checkpointer.MAX_BATCH_WRITES; n++) yield* store.write(record(lease(`j${n}`), "a"))
    yield* store.turn
    yield* store.answer(0)
    assert.deepStrictEqual(store.sent().map((batch) => batch.length), [Checkpointer.MAX_BATCH_WRITES, 1])
  }))

it.effect("an outage is told to everybody in the batch", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    const fibers = [yield* store.write(record(lease("j1"), "a")), yield* store.write(record(lease("j2"), "a"))]
    yield* store.turn
    yield* store.fail(0, new StoreUnavailable({ operation: "test", message: "down" }))
    const exits = yield* Effect.forEach(fibers, Fiber.await)
    assert.deepStrictEqual(exits.map(Attempts.failure).map((error) => error instanceof StoreUnavailable), [true, true])
  }))

it.effect("quiet answers when the last write of the job has been answered", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    yield* store.checkpointer.quiet(JobId.make("j1"))
    yield* store.write(record(lease("j1"), "a"))
    yield* store.write(record(lease("j1"), "b"))
    const quiet = yield* Effect.forkChild(store.checkpointer.quiet(JobId.make("j1")), { startImmediately: true })
    yield* store.turn
    yield* store.answer(0)
    assert.isUndefined(quiet.pollUnsafe())
    yield* store.answer(1)
    assert.isDefined(quiet.pollUnsafe())
  }))

it.effect("closing interrupts who still waits, and who comes later", () =>
  Effect.gen(function*() {
    const store = yield* slowStore
    const first = yield* store.write(record(lease("j1"), "a"))
    yield* store.turn
    const second = yield* store.write(record(lease("j1"), "b"))
    yield* store.close
    const third = yield* store.write(record(lease("j2"), "a"))
    const exits = yield* Effect.forEach([first, second, third], Fiber.await)
    assert.isTrue(exits.every((exit) => Exit.hasInterrupts(exit)))
  }))
