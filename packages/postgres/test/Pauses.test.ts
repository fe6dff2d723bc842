import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import type { EnvelopeInput } from "@headgate/core/Envelope"
import { type Pausable, Pauses } from "@headgate/core/Pauses"
import { Policies } from "@headgate/core/Policies"
import { Wakeups } from "@headgate/core/Wakeups"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Queue, Stream } from "effect"
import * as Store from "./Store.ts"

const admitted = (queue: string) =>
  Effect.map(
    Store.admit({ queues: [queue], kinds: { greet: 1, other: 1 } }),
    (claims) => claims.map(({ lease }) => lease.jobId).sort()
  )

interface Case {
  readonly name: string
  readonly what: Pausable
  readonly job: Partial<EnvelopeInput>
  /** What goes on beside it, in the same queue; nothing under a paused queue. */
  readonly beside?: Partial<EnvelopeInput>
}

const cases: ReadonlyArray<Case> = [
  { name: "queue", what: { queue: "paused-queue" }, job: {} },
  {
    name: "partition",
    what: { queue: "paused-partition", partitionKey: "p" },
    job: { partitionKey: "p" },
    beside: { partitionKey: "o" }
  },
  { name: "kind", what: { kind: "other" }, job: { kind: "other" }, beside: {} },
  {
    name: "rate-class",
    what: { rateClass: "halt" },
    job: { rates: [{ class: "halt", key: "", weight: 1 }] },
    beside: {}
  },
  { name: "limit", what: { limit: "halt" }, job: { limits: [{ limit: "halt", key: "k" }] }, beside: {} }
]

layer(Store.layer, { excludeTestServices: true })("Pauses", (it) => {
  for (const { beside, job, name, what } of cases) {
    it.effect(`a paused ${name} admits nothing until it is resumed, and the rest goes on`, () =>
      Effect.gen(function*() {
        const pauses = yield* Pauses
        const policies = yield* Policies
        yield* policies.setRateClass({ name: "halt", limit: 100, windowMs: 1000 })
        yield* policies.setLimit({ name: "halt", scope: "key", subject: "", max: 100 })
        const queue = `paused-${name}`
        const soon = { queue, ...job, deadlineInMs: 1_800_000 }
        yield* Store.enqueue({ id: `${name}-1`, ...soon }, { id: `${name}-2`, ...soon, delayMs: 60_000 })
        yield* Store.enqueue({ id: `${name}-3`, ...soon, deadlineInMs: 7_200_000 })
        if (beside !== undefined) {
          yield* Store.enqueue({ id: `${name}-beside`, queue, ...beside, deadlineInMs: 1000_000 })
        }
        assert.deepStrictEqual(yield* pauses.pause(what), { deadlinesWithinHour: 2, isApproximate: false })
        assert.deepStrictEqual(yield* pauses.pause(what), { deadlinesWithinHour: 2, isApproximate: false })
        assert.deepStrictEqual(yield* pauses.paused, [what])
        assert.deepStrictEqual(yield* admitted(queue), beside === undefined ? [] : [`${name}-beside`])
        yield* pauses.resume(what)
        yield* pauses.resume(what)
        assert.deepStrictEqual(yield* pauses.paused, [])
        assert.deepStrictEqual(yield* admitted(queue), [`${name}-1`, `${name}-3`])
      }))
  }

  it.effect("a class or a limit that is not there cannot be paused, and what has no valid name is refused", () =>
    Effect.gen(function*() {
      const pauses = yield* Pauses
      const noClass = yield* Effect.flip(pauses.pause({ rateClass: "none" }))
      assert.include(noClass, { _tag: "UnknownPolicy", policy: "rate_class", name: "none" })
      const noLimit = yield* Effect.flip(pauses.resume({ limit: "none" }))
      assert.include(noLimit, { _tag: "UnknownPolicy", policy: "concurrency_limit", name: "none" })
      const invalid: ReadonlyArray<readonly [Pausable, string]> = [
        [{ queue: "" }, "queue"],
        [{ queue: "q", partitionKey: "\u0000" }, "partitionKey"],
        [{ kind: " " }, "kind"],
        [{ rateClass: "" }, "rateClass"],
        [{ limit: "" }, "limit"]
      ]
      for (const [what, field] of invalid) {
        assert.include(yield* Effect.flip(pauses.pause(what)), { _tag: "Invalid", field })
      }
    }))
  it.effect("to resume what nobody paused leaves nothing behind", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const pauses = yield* Pauses
      yield* pauses.resume({ queue: "never" })
      yield* pauses.resume({ queue: "never", partitionKey: "p" })
      yield* pauses.resume({ kind: "never" })
      const left = yield* sql`SELECT name FROM headgate.queue WHERE name = 'never'
        UNION ALL SELECT name FROM headgate.kind WHERE name = 'never'
        UNION ALL SELECT queue FROM headgate.partition WHERE queue = 'never'`
      assert.deepStrictEqual(left, [])
    }))
})

const listening = PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))

layer(listening, { excludeTestServices: true })("Pauses, heard", (it) => {
  it.effect("resuming or loosening a policy wakes idle workers of the queues that it governs", () =>
    Effect.gen(function*() {
      const pauses = yield* Pauses
      const policies = yield* Policies
      yield* policies.setRateClass({ name: "held", limit: 1, windowMs: 1000 })
      yield* policies.setLimit({ name: "held", scope: "kind", subject: "greet", max: 0 })
      yield* Store.enqueue({ id: "heard", queue: "heard", rates: [{ class: "held", key: "", weight: 1 }] })
      const heard = yield* Queue.unbounded<void>()
      const wakeups = yield* Wakeups
      yield* Effect.forkScoped(Stream.runForEach(wakeups.subscribe(["heard"]), () => Queue.offer(heard, undefined)))
      const wakes = (edit: Effect.Effect<unknown, unknown>) =>
        Effect.gen(function*() {
          // What was announced before may still come.
          yield* Effect.sleep("50 millis")
          yield* Queue.takeAll(heard).pipe(Effect.timeoutOption("1 milli"))
          yield* edit
          yield* Effect.timeout(Queue.take(heard), "1 minute")
        })
      yield* Queue.take(heard)
      for (const what of [{ queue: "heard" }, { kind: "greet" }, { rateClass: "held" }, { limit: "held" }]) {
        yield* pauses.pause(what)
        yield* wakes(pauses.resume(what))
      }
      yield* wakes(policies.setRateClass({ name: "held", limit: 5, windowMs: 1000 }))
      yield* wakes(policies.removeRateClass("held"))
      yield* wakes(policies.setQueue({ name: "heard", weight: 2 }))
      yield* wakes(policies.setLimit({ name: "held", scope: "queue", subject: "elsewhere", max: 0 }))
    }))
})
