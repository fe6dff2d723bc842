import { assert, it } from "@effect/vitest"
import {
  type Death,
  deathHandlersIn,
  type DeathOptions,
  Invalid,
  JobId,
  type RecordedDeath,
  Task
} from "@headgate/core"
import { Context, Effect, Layer, Result, Schema } from "effect"

class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}
class Mail extends Context.Service<Mail, { readonly from: string }>()("test/Mail") {}

const task = Task.make("fragile", { payload: Schema.Struct({ n: Schema.Int }), error: Broken })

const bytes = (json: unknown) => new TextEncoder().encode(JSON.stringify(json))

const recorded: RecordedDeath = {
  key: "j1:1",
  jobId: JobId.make("j1"),
  kind: "fragile",
  queue: "default",
  partitionKey: "",
  reason: "exhausted",
  error: { tag: "Broken", message: "p" },
  encodedError: bytes({ _tag: "Broken", part: "p" }),
  payload: bytes({ n: 1 }),
  schemaVersion: 1,
  attempt: 25,
  crashAttempt: 0,
  archivedAtMs: 1,
  tags: [],
  headers: {},
  call: 1
}

/** What the handler is told of a death. */
const told = (death: RecordedDeath) =>
  Effect.gen(function*() {
    let told: Death<{ readonly n: number }, Broken> | undefined
    const handler = task.onDeath((death) => Effect.sync(() => void (told = death)))
    const [registration] = deathHandlersIn(yield* Layer.build(handler))
    yield* registration!.run(death)
    return told!
  }).pipe(Effect.scoped)

it.effect("a death handler is told the payload and the task's own error, decoded", () =>
  Effect.gen(function*() {
    const death = yield* told(recorded)
    assert.deepStrictEqual(death.failure, new Broken({ part: "p" }))
    assert.deepStrictEqual(yield* death.payload, { n: 1 })
    assert.notProperty(death, "encodedError")
  }))

it.effect("an error of another shape, and a payload that does not decode, take nothing from the rest", () =>
  Effect.gen(function*() {
    const death = yield* told({ ...recorded, encodedError: bytes("other"), payload: bytes("none") })
    assert.strictEqual(death.failure, undefined)
    assert.deepStrictEqual(death.error, { tag: "Broken", message: "p" })
    assert.isTrue(Result.isFailure(yield* Effect.result(death.payload)))
  }))

it.effect("what a handler needs is taken where its layer is built", () =>
  Effect.gen(function*() {
    let from = ""
    const handler = task.onDeath(() => Mail.use((mail) => Effect.sync(() => void (from = mail.from))))
    const context = yield* Layer.build(Layer.provide(handler, Layer.succeed(Mail, { from: "ada" })))
    const [registration] = deathHandlersIn(context)
    yield* Effect.provideContext(registration!.run(recorded), registration!.context)
    assert.strictEqual(from, "ada")
  }).pipe(Effect.scoped))

it("an option out of its bounds is refused where the handler is defined", () => {
  const refused = (options: DeathOptions) => {
    try {
      task.onDeath(() => Effect.void, options)
    } catch (error) {
      return error instanceof Invalid ? [error.field, error.limit, error.actual] : error
    }
    return "accepted"
  }
  assert.deepStrictEqual(refused({ maxCalls: 0 }), ["maxCalls", 1, 0])
  assert.deepStrictEqual(refused({ concurrency: 1001 }), ["concurrency", 1000, 1001])
  assert.deepStrictEqual(refused({ timeout: "2 hours" }), ["timeout", 3_600_000, 7_200_000])
  assert.deepStrictEqual(refused({ timeout: 0 }), ["timeout", 1, 0])
  assert.strictEqual(refused({ maxCalls: 1, timeout: "1 hour", concurrency: 1000 }), "accepted")
})
