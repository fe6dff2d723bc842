import { assert, layer } from "@effect/vitest"
import {
  CodecError,
  Control,
  Inspect,
  Invalid,
  MAX_OUTPUT_BYTES,
  Output,
  OutputStore,
  Progress,
  ProgressStore,
  StoreUnavailable,
  Task
} from "@headgate/core"
import { Effect, Schema } from "effect"
import * as Attempts from "./Attempts.ts"

const payload = Schema.Void
const down = new StoreUnavailable({ operation: "test", message: "down" })

layer(Attempts.layer, { excludeTestServices: true })("Reporting", (it) => {
  it.effect("progress and output are stored under the attempt's fence, the latest in place of the one before", () =>
    Effect.gen(function*() {
      const task = Task.make("reporting", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* Progress.report({ current: 1, total: 3 })
          yield* Progress.report({ current: 2, total: 3, message: "half" })
          yield* Output.put(Schema.String, "first")
          yield* Output.put(Schema.Struct({ n: Schema.Int }), { n: 2 }, { version: 5 })
        })
      )
      const inspect = yield* Inspect
      const output = yield* inspect.output(id)
      assert.deepInclude(yield* inspect.progress(id), { current: 2, total: 3, message: "half" })
      assert.deepStrictEqual([output?.version, new TextDecoder().decode(output?.bytes), Number(output?.fence)], [
        5,
        "{\"n\":2}",
        1
      ])
    }))

  it.effect("what breaks a rule is refused and not stored", () =>
    Effect.gen(function*() {
      const task = Task.make("refused", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          const progress = yield* Effect.flip(Progress.report({ current: 4, total: 3 }))
          const large = yield* Effect.flip(Output.put(Schema.String, "x".repeat(MAX_OUTPUT_BYTES)))
          const version = yield* Effect.flip(Output.put(Schema.String, "x", { version: 0 }))
          const value = yield* Effect.flip(Output.put(Schema.Number.check(Schema.isGreaterThan(5)), 1))
          assert.isTrue([progress, large, version].every((error) => error instanceof Invalid))
          assert.instanceOf(value, CodecError)
        })
      )
      const inspect = yield* Inspect
      assert.deepStrictEqual([exit._tag, yield* inspect.progress(id), yield* inspect.output(id)], [
        "Success",
        undefined,
        undefined
      ])
    }))

  it.effect("a refused writer ends its attempt", () =>
    Effect.gen(function*() {
      const control = yield* Control
      const reports: ReadonlyArray<Attempts.Handler> = [
        Progress.report({ current: 1, total: 2 }),
        Output.put(Schema.String, "x")
      ]
      for (const [at, report] of reports.entries()) {
        const task = Task.make(`refused-writer-${at}`, { payload })
        const id = yield* task.enqueue(undefined)
        const worker = yield* Attempts.worker()
        const { entries, say } = Attempts.log()
        const cancel = Effect.orDie(control.cancel(id))
        const ran = yield* worker.run(task, Effect.andThen(Effect.andThen(cancel, report), say("went on")))
        assert.deepStrictEqual([Attempts.ending(ran), entries], ["lease_lost", []])
      }
    }))

  it.effect("an outage drops progress, and output waits for its end", () =>
    Effect.gen(function*() {
      const task = Task.make("outage", { payload })
      const id = yield* task.enqueue(undefined)
      const real = yield* OutputStore
      let calls = 0
      const worker = yield* Attempts.worker().pipe(
        Effect.provideService(ProgressStore, ProgressStore.of({ report: () => down, track: () => down })),
        Effect.provideService(
          OutputStore,
          OutputStore.of({ put: (lease, output) => Effect.suspend(() => ++calls < 3 ? down : real.put(lease, output)) })
        )
      )
      const { exit } = yield* worker.run(
        task,
        Effect.andThen(Progress.report({ current: 1, total: 2 }), Output.put(Schema.String, "x"))
      )
      assert.deepStrictEqual([exit._tag, calls], ["Success", 3])
      assert.isDefined(yield* (yield* Inspect).output(id))
    }))

  it.effect("output that cannot be stored while the lease lasts ends the attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("long-outage", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker().pipe(
        Effect.provideService(OutputStore, OutputStore.of({ put: () => down }))
      )
      const held = yield* worker.claim(task)
      held.lease.until = performance.now() + 200
      const ran = yield* worker.finish(held, Output.put(Schema.String, "x"))
      assert.strictEqual(Attempts.ending(ran), "lease_lost")
    }))
})
