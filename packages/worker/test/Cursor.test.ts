import { assert, layer } from "@effect/vitest"
import { Control, Cursor, Inspect, Invalid, MAX_STEP_RESULT_BYTES, Step, Task } from "@headgate/core"
import { Deferred, Effect, Schema } from "effect"
import * as Attempts from "./Attempts.ts"

const payload = Schema.Void
const pages = { schema: Schema.Int, initial: 0 }

layer(Attempts.layer, { excludeTestServices: true })("Cursor", (it) => {
  it.effect("a cursor starts at its initial position, and goes on from the last one saved", () =>
    Effect.gen(function*() {
      const task = Task.make("paging", { payload, steps: ["pages"] })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const seen: Array<number> = []
      const handler = (failAt: number) =>
        task.cursor("pages", { ...pages, result: Schema.String }, (page, save) =>
          Effect.gen(function*() {
            for (; page < 5; page++) {
              if (page === failAt) return yield* Effect.fail("stop")
              seen.push(page)
              yield* save(page + 1)
            }
            return "done"
          }))
      yield* worker.run(task, handler(2))
      yield* Attempts.due()
      yield* worker.run(task, handler(4))
      yield* Attempts.due()
      const { exit } = yield* worker.run(task, handler(-1))
      assert.deepStrictEqual([seen, exit._tag === "Success" && exit.value], [[0, 1, 2, 3, 4], "done"])
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual([checkpoint?.records.map(({ kind }) => kind), checkpoint?.cursor], [["cursor"], undefined])
    }))

  it.effect("a finished cursor answers from its record", () =>
    Effect.gen(function*() {
      const task = Task.make("paged", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const handler = (value: number) =>
        Effect.flatMap(
          Cursor.run("pages", { ...pages, result: Schema.Int }, (_, save) => Effect.as(save(1), value)),
          Effect.fail
        )
      const first = yield* worker.run(task, handler(1))
      yield* Attempts.due()
      const second = yield* worker.run(task, handler(2))
      assert.deepStrictEqual([first, second].map(({ exit }) => Attempts.failure(exit)), [1, 1])
    }))

  it.effect("the mark is durable before the body starts", () =>
    Effect.gen(function*() {
      const task = Task.make("marked-cursor", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const marked = Effect.flatMap(yield* Attempts.markOf(id), say)
      yield* worker.run(task, Cursor.run("pages", pages, () => marked))
      assert.deepStrictEqual(entries, ["pages"])
    }))

  it.effect("a save answers when the position is durable, extends the lease, and comes back to its own cursor only", () =>
    Effect.gen(function*() {
      const task = Task.make("own-position", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const inspect = yield* Inspect
      const held = yield* worker.claim(task)
      yield* worker.finish(
        held,
        Cursor.run("one", pages, (_, save) =>
          Effect.gen(function*() {
            const extended = held.lease.extensions.length
            yield* save(7)
            assert.strictEqual(held.lease.extensions.length, extended + 1)
            const checkpoint = yield* Effect.orDie(inspect.checkpoint(id))
            assert.strictEqual(new TextDecoder().decode(checkpoint?.cursor?.bytes), "7")
            return yield* Effect.fail("stop")
          }))
      )
      yield* Attempts.due()
      const starts: Array<number> = []
      const start = (name: string) => Cursor.run(name, pages, (page) => Effect.sync(() => void starts.push(page)))
      yield* worker.run(task, Effect.andThen(start("two"), start("one")))
      assert.deepStrictEqual(starts, [0, 7])
    }))

  it.effect("a second cursor is refused while one is open, and may follow it", () =>
    Effect.gen(function*() {
      const task = Task.make("two-cursors", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          const refused = yield* Cursor.run("outer", pages, () =>
            Effect.asVoid(Effect.flip(Cursor.run("inner", pages, () =>
              say("inner")))))
          yield* Effect.ignore(Cursor.run("failing", pages, () =>
            Effect.fail("no")))
          yield* Cursor.run("next", pages, () => say("next"))
          return refused
        })
      )
      assert.deepStrictEqual([exit._tag, entries], ["Success", ["next"]])
    }))

  it.effect("a save after its cursor has ended is refused and changes nothing", () =>
    Effect.gen(function*() {
      const task = Task.make("late-save", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const late = yield* Deferred.make<Effect.Effect<void, unknown>>()
      const { exit } = yield* worker.run(
        task,
        Effect.gen(function*() {
          yield* Cursor.run("pages", pages, (_, save) => Effect.asVoid(Deferred.succeed(late, save(3))))
          return yield* Effect.flatten(Deferred.await(late))
        })
      )
      assert.instanceOf(Attempts.failure(exit), Invalid)
      assert.isUndefined((yield* (yield* Inspect).checkpoint(id))?.cursor)
    }))

  it.effect("a refused save ends the attempt", () =>
    Effect.gen(function*() {
      const task = Task.make("refused-save", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const control = yield* Control
      const { entries, say } = Attempts.log()
      const ran = yield* worker.run(
        task,
        Cursor.run("pages", pages, (_, save) =>
          Effect.andThen(Effect.orDie(control.cancel(id)), Effect.andThen(save(1), say("went on"))))
      )
      assert.deepStrictEqual([Attempts.ending(ran), entries], ["lease_lost", []])
    }))

  it.effect("a position above the limit is refused with both numbers", () =>
    Effect.gen(function*() {
      const task = Task.make("large-position", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { exit } = yield* worker.run(
        task,
        Cursor.run(
          "pages",
          { schema: Schema.String, initial: "" },
          (_, save) => save("x".repeat(MAX_STEP_RESULT_BYTES))
        )
      )
      const refusal = Attempts.failure(exit)
      assert.instanceOf(refusal, Invalid)
      assert.deepInclude(refusal, { limit: MAX_STEP_RESULT_BYTES, actual: MAX_STEP_RESULT_BYTES + 2 })
    }))

  it.effect("a stored position that no longer fits its schema makes the job undecodable, and says so", () =>
    Effect.gen(function*() {
      const task = Task.make("other-position", { payload })
      const id = yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(task, Cursor.run("pages", pages, (_, save) => Effect.andThen(save(1), Effect.fail("stop"))))
      yield* Attempts.due()
      yield* worker.run(task, Cursor.run("pages", { schema: Schema.String, initial: "" }, () => Effect.die("ran")))
      assert.strictEqual((yield* (yield* Inspect).job(id)).state, "undecodable")
      assert.include(yield* Attempts.reason(id), "the stored position of cursor pages does not fit its schema")
    }))

  it.effect("steps inside a cursor's body keep their records while its position moves", () =>
    Effect.gen(function*() {
      const task = Task.make("inner-steps", { payload })
      yield* task.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const { entries, say } = Attempts.log()
      const handler = (failAt: number) =>
        Cursor.run("pages", pages, (page, save) =>
          Effect.gen(function*() {
            for (; page < 3; page++) {
              yield* Step.run("page", say(`page ${page}`), { key: String(page) })
              if (page === failAt) return yield* Effect.fail("stop")
              yield* save(page + 1)
            }
          }))
      yield* worker.run(task, handler(1))
      yield* Attempts.due()
      yield* worker.run(task, handler(-1))
      assert.deepStrictEqual(entries, ["page 0", "page 1", "page 2"])
    }))
})
