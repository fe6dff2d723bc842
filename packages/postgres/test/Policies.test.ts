import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { ConcurrencyLimit } from "@headgate/core/ConcurrencyLimit"
import type { EnvelopeInput } from "@headgate/core/Envelope"
import { Pauses } from "@headgate/core/Pauses"
import { Policies } from "@headgate/core/Policies"
import { Queue } from "@headgate/core/Queue"
import { RateClass } from "@headgate/core/RateClass"
import type { Invalid, StoreUnavailable } from "@headgate/core/Refusals"
import { Time } from "@headgate/testkit"
import { Effect, Fiber, Layer } from "effect"
import * as Store from "./Store.ts"

const shop = (options: Partial<Parameters<typeof RateClass.make>[1]> = {}) =>
  RateClass.make("shop", { limit: 10, window: "1 second", ...options })

/** Jobs of a queue of their own, which name the class of the same name. */
const charged = (name: string, count: number, weight = 1) =>
  Store.enqueue(...Array.from({ length: count }, (_, n) => ({
    id: `${name}-${String(n).padStart(4, "0")}`,
    queue: name,
    rates: [{ class: name, key: "", weight }]
  })))

const admitted = (queue: string, capacity = 100) =>
  Effect.map(Store.admit({ queues: [queue], capacity }), (claims) => claims.length)

const classOf = (name: string) =>
  Effect.map(
    Policies.use((policies) => policies.rateClasses({ limit: 200 })),
    ({ items }) => items.find((item) => item.name === name)
  )

const limitOf = (name: string) =>
  Effect.map(
    Policies.use((policies) => policies.limits({ limit: 200 })),
    ({ items }) => items.find((item) => item.name === name)
  )

const queueOf = (name: string) =>
  Effect.map(
    Policies.use((policies) => policies.queues({ limit: 200 })),
    ({ items }) => items.find((item) => item.name === name)
  )

const frozen = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.acquireUseRelease(Time.freeze(), () => effect, () => Effect.orDie(Time.resume()))

layer(Store.layer, { excludeTestServices: true })("Policies", (it) => {
  it.effect("definitions are written once, whatever the number of starts", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const definitions = [
        RateClass.make("once", { limit: 5, window: "2 seconds", burst: 7 }),
        ConcurrencyLimit.make("once", { scope: "partition", queue: "once", max: 3, onSaturated: "discard" }),
        Queue.make("once", { weight: 4, strict: true, quantum: 2, maxUnfinishedJobs: 0 })
      ]
      const starts = yield* Effect.all(Array.from({ length: 4 }, () => policies.apply(definitions)), { concurrency: 4 })
      assert.deepStrictEqual(starts.flat(), ["once", "once", "once"])
      assert.deepStrictEqual(yield* policies.apply(definitions), [])
      assert.deepInclude(yield* classOf("once"), { limit: 5, windowMs: 2000, burst: 7, paused: false, tokens: 7 })
      assert.deepInclude(yield* limitOf("once"), {
        scope: "partition",
        subject: "once",
        max: 3,
        onSaturated: "discard"
      })
      assert.deepInclude(yield* queueOf("once"), { weight: 4, strict: true, quantum: 2, maxUnfinishedJobs: 0 })
    }))

  it.effect("an operator is obeyed until the code changes, and the code from then on", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      yield* policies.apply([shop(), Queue.make("shop", { weight: 2, quantum: 5 })])
      yield* policies.setRateClass({ name: "shop", limit: 3, windowMs: 1000 })
      yield* policies.setQueue({ name: "shop", weight: 9 })
      assert.deepStrictEqual(yield* policies.apply([shop(), Queue.make("shop", { weight: 2, quantum: 5 })]), [])
      assert.deepInclude(yield* classOf("shop"), { limit: 3, burst: 10 })
      assert.deepInclude(yield* queueOf("shop"), { weight: 9, quantum: 5 })
      assert.deepStrictEqual(yield* policies.apply([shop({ limit: 11 }), Queue.make("shop", { weight: 3 })]), [
        "shop",
        "shop"
      ])
      assert.deepInclude(yield* classOf("shop"), { limit: 11, burst: 11 })
      assert.deepInclude(yield* queueOf("shop"), { weight: 3, quantum: undefined })
      assert.deepStrictEqual(yield* policies.apply([]), [])
      assert.deepInclude(yield* classOf("shop"), { limit: 11 })
    }))

  it.effect("a pause by an operator outlasts a change of the code, unless the code changes the pause", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const halted = (options: Partial<Parameters<typeof RateClass.make>[1]> = {}) =>
        RateClass.make("halted", { limit: 10, window: "1 second", ...options })
      yield* policies.apply([halted()])
      yield* policies.setRateClass({ name: "halted", limit: 10, windowMs: 1000, paused: true })
      yield* policies.apply([halted({ limit: 20 })])
      assert.deepInclude(yield* classOf("halted"), { limit: 20, paused: true })
      yield* policies.apply([halted({ paused: true })])
      yield* policies.apply([halted()])
      assert.deepInclude(yield* classOf("halted"), { limit: 10, paused: false })
      yield* policies.setQueue({ name: "halted", paused: true })
      yield* policies.apply([Queue.make("halted", { weight: 5 })])
      assert.deepInclude(yield* queueOf("halted"), { weight: 5, paused: true })
    }))

  it.effect("two definitions of one name that differ are refused, and nothing is written", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const twice = (limit: number) => RateClass.make("twice", { limit, window: "1 second" })
      const refused = yield* Effect.flip(policies.apply([Queue.make("beside"), twice(1), twice(2)]))
      assert.include(refused, { _tag: "Invalid", field: "policies" })
      assert.isUndefined(yield* queueOf("beside"))
      assert.lengthOf(yield* policies.apply([twice(1), twice(1).weigh((n: number) => n)]), 1)
    }))

  it.effect("tokens are earned at the old rate up to the edit, kept under a new window, and cut to a new burst", () =>
    frozen(Effect.gen(function*() {
      const policies = yield* Policies
      yield* policies.setRateClass({ name: "scaled", limit: 10, windowMs: 1000 })
      yield* charged("scaled", 30)
      assert.strictEqual(yield* admitted("scaled", 8), 8)
      yield* Time.advance("300 millis")
      yield* policies.setRateClass({ name: "scaled", limit: 30, windowMs: 7000, burst: 100 })
      assert.deepInclude(yield* classOf("scaled"), { tokens: 5, keyedBuckets: 0, closedUntilMs: undefined })
      yield* policies.setRateClass({ name: "scaled", limit: 1, windowMs: 500, burst: 4 })
      assert.strictEqual((yield* classOf("scaled"))?.tokens, 4)
      const sql = yield* PgClient.PgClient
      const [bucket] = yield* sql<{ units: bigint }>`SELECT units FROM headgate.bucket WHERE class = 'scaled'`
      assert.strictEqual(bucket?.units, 2000n)
      assert.strictEqual(yield* admitted("scaled"), 4)
      yield* Time.advance("1 second")
      assert.strictEqual(yield* admitted("scaled"), 2)
    })))

  it.effect("a bucket that owes owes as many tokens after an edit", () =>
    frozen(Effect.gen(function*() {
      const policies = yield* Policies
      yield* policies.setRateClass({ name: "owing", limit: 10, windowMs: 1000 })
      yield* charged("owing", 1, 25)
      assert.strictEqual(yield* admitted("owing"), 1)
      yield* policies.setRateClass({ name: "owing", limit: 10, windowMs: 60_000 })
      assert.strictEqual((yield* classOf("owing"))?.tokens, -15)
    })))

  it.effect(
    "under edits at any moment exactly the tokens of the bucket are given away",
    () =>
      frozen(Effect.gen(function*() {
        const policies = yield* Policies
        const windows = [1000, 3000, 60_000, 2000]
        for (let round = 0; round < 6; round++) {
          const name = `raced-${round}`
          yield* policies.setRateClass({ name, limit: 60, windowMs: 1000 })
          yield* charged(name, 120)
          // A bucket that is in use: one never used is full under each window.
          const given = [yield* admitted(name, 1)]
          const gate = Effect.gen(function*() {
            for (let n = 0; n < 12; n++) given.push(yield* admitted(name, 3))
          })
          const edits = Effect.gen(function*() {
            for (let n = 0; n < 24; n++) {
              yield* policies.setRateClass({ name, limit: 60, windowMs: windows[n % windows.length]! })
            }
          })
          yield* Effect.all([gate, gate, gate, edits], { concurrency: 4 })
          given.push(yield* admitted(name))
          assert.strictEqual(given.reduce((sum, jobs) => sum + jobs), 60)
          assert.strictEqual((yield* classOf(name))?.tokens, 0)
        }
      })),
    60_000
  )

  it.effect("an edit waits for the call of the gate that decides under the policy", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const pauses = yield* Pauses
      const sql = yield* PgClient.PgClient
      const [rate, limit] = [{ name: "w", limit: 100, windowMs: 1000 }, { name: "w", max: 100 }]
      const [queue, partition] = [{ queue: "waits" }, { queue: "waits", partitionKey: "p" }]
      const ofQueue = { name: "w-queue", max: 100, scope: "queue", subject: "waits" } as const
      const edits: ReadonlyArray<Effect.Effect<unknown, unknown>> = [
        policies.setRateClass(rate),
        pauses.resume({ rateClass: "w" }),
        policies.setLimit({ ...limit, scope: "key", subject: "" }),
        policies.setLimit(ofQueue),
        pauses.resume({ limit: "w" }),
        pauses.resume({ limit: "w-queue" }),
        policies.setLimit({ ...ofQueue, subject: "elsewhere" }),
        policies.setLimit(ofQueue),
        policies.setQueue({ name: "waits", quantum: 3 }),
        pauses.resume(queue),
        policies.setPartition({ ...partition, quantum: 3 }),
        pauses.resume(partition),
        policies.removePartition(partition),
        policies.removeLimit("w-queue"),
        policies.removeLimit("w")
      ]
      yield* policies.setRateClass(rate)
      yield* policies.setLimit({ ...limit, scope: "key", subject: "" })
      for (const [n, edit] of edits.entries()) {
        yield* Store.enqueue({
          id: `waits-${n}`,
          ...partition,
          rates: [{ class: "w", key: "", weight: 1 }],
          limits: [{ limit: "w", key: "" }]
        })
        const fiber = yield* sql.withTransaction(Effect.gen(function*() {
          const claims =
            yield* sql`SELECT id FROM headgate.admit('w1', gen_random_uuid(), '{waits}', '{greet}', '{1}', 1, 30000)`
          assert.lengthOf(claims, 1, `edit ${n}`)
          const fiber = yield* Effect.forkDetach(edit)
          yield* Store.untilLocked
          return fiber
        }))
        yield* Fiber.join(fiber)
      }
    }), 240_000)

  it.effect("an edit that waits for a transaction of the application does not hold up the gate", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const sql = yield* PgClient.PgClient
      yield* policies.setRateClass({ name: "free", limit: 10, windowMs: 1000 })
      yield* charged("free", 1)
      const edit = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect) VALUES ('new-lane', 'greet', 1, false)`
        const edit = yield* Effect.forkDetach(policies.setRateClass({ name: "free", limit: 20, windowMs: 1000 }))
        yield* Store.untilLocked
        assert.strictEqual(yield* Effect.timeout(admitted("free"), "1 minute"), 1)
        return edit
      }))
      yield* Fiber.join(edit)
      assert.strictEqual((yield* classOf("free"))?.limit, 20)
    }))

  it.effect("without its class or limit a job is admitted, and removing what is not there says so", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      yield* policies.setRateClass({ name: "gone", limit: 1, windowMs: 86_400_000 })
      yield* policies.setLimit({ name: "gone", scope: "kind", subject: "greet", max: 0 })
      yield* charged("gone", 3)
      assert.strictEqual(yield* admitted("gone"), 0)
      yield* policies.removeLimit("gone")
      assert.strictEqual(yield* admitted("gone"), 1)
      yield* policies.removeRateClass("gone")
      assert.strictEqual(yield* admitted("gone"), 2)
      yield* policies.setPartition({ queue: "gone", partitionKey: "", quantum: 2 })
      const refusals = yield* Effect.all([
        Effect.flip(policies.removeLimit("gone")),
        Effect.flip(policies.removeRateClass("gone")),
        Effect.flip(policies.removePartition({ queue: "gone", partitionKey: "none" })),
        Effect.flip(policies.removePartition({ queue: "gone", partitionKey: "\u0000" }))
      ])
      assert.deepStrictEqual(refusals.map(({ _tag, name }) => [_tag, name]), [
        ["UnknownPolicy", "gone"],
        ["UnknownPolicy", "gone"],
        ["UnknownPolicy", "gone/none"],
        ["UnknownPolicy", "gone/\u0000"]
      ])
      assert.deepStrictEqual((yield* policies.partitions({ queue: "gone" })).items.map(({ quantum }) => quantum), [2])
      yield* policies.setRateClass({ name: "gone", limit: 2, windowMs: 1000 })
      assert.strictEqual((yield* classOf("gone"))?.tokens, 2)
    }))

  it.effect("a limit is listed with its fullest slots, and one that moves to another queue leaves the first", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const partitions = ["a", "b", "b", "c", "c", "c"]
      yield* Store.enqueue(...partitions.map((partitionKey, n) => ({ id: `slot-${n}`, queue: "slots", partitionKey })))
      yield* policies.setLimit({ name: "slots", scope: "partition", subject: "slots", max: 2 })
      assert.strictEqual(yield* admitted("slots"), 5)
      assert.deepStrictEqual((yield* limitOf("slots"))?.slots, [
        { key: "b", running: 2 },
        { key: "c", running: 2 },
        { key: "a", running: 1 }
      ])
      yield* policies.setLimit({ name: "slots", scope: "queue", subject: "elsewhere", max: 2 })
      assert.deepStrictEqual((yield* limitOf("slots"))?.slots, [])
      assert.strictEqual(yield* admitted("slots"), 1)
    }))

  it.effect("a queue keeps what a change leaves out, and null clears", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      yield* policies.setQueue({ name: "kept", weight: 3, strict: true, quantum: 4, maxUnfinishedJobs: 5 })
      yield* policies.setQueue({ name: "kept", paused: true })
      const kept = { name: "kept", weight: 3, strict: true, quantum: 4, maxUnfinishedJobs: 5, paused: true }
      assert.deepStrictEqual(yield* queueOf("kept"), kept)
      yield* policies.setQueue({ name: "kept", quantum: null, maxUnfinishedJobs: null })
      const cleared = { ...kept, quantum: undefined, maxUnfinishedJobs: undefined }
      assert.deepStrictEqual(yield* queueOf("kept"), cleared)
    }))

  it.effect("a queue lags by as many jobs under a new weight as under the old one", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const sql = yield* PgClient.PgClient
      yield* sql`INSERT INTO headgate.queue_turn (queue, served) VALUES ('far', 9000000), ('ahead', 5000000), ('lags', 4600000)`
      const served = Effect.map(
        sql<{ served: bigint }>`SELECT served FROM headgate.queue_turn WHERE queue = 'lags'`,
        ([row]) => Number(row?.served)
      )
      yield* policies.setQueue({ name: "lags", weight: 4 })
      assert.strictEqual(yield* served, 4_900_000)
      yield* policies.setQueue({ name: "lags", weight: 2 })
      assert.strictEqual(yield* served, 4_800_000)
      yield* policies.setQueue({ name: "lags", quantum: 3 })
      assert.strictEqual(yield* served, 4_800_000)
    }))

  it.effect("a partition is given a quantum of its own, which leaves its pause as it is", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const partition = { queue: "parts", partitionKey: "p" }
      const jobs: ReadonlyArray<Partial<EnvelopeInput> & { readonly id: string }> = [
        { id: "part-p", ...partition },
        { id: "part-o", ...partition, partitionKey: "o" }
      ]
      yield* Store.enqueue(...jobs)
      yield* policies.setPartition({ ...partition, paused: true })
      yield* policies.setPartition({ ...partition, quantum: 3 })
      assert.strictEqual(yield* admitted("parts"), 1)
      assert.strictEqual(yield* Store.stateOf("part-p"), "available")
      yield* policies.removePartition(partition)
      assert.strictEqual(yield* admitted("parts"), 1)
    }))

  it.effect("partitions are listed by key, with what waits, what runs, what is left of a turn, and who is noisy", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const keys = [...Array.from({ length: 7 }, () => "loud"), "calm", "calm", ""]
      yield* Store.enqueue(...keys.map((partitionKey, n) => ({ id: `list-${n}`, queue: "list", partitionKey })))
      yield* policies.setPartition({ queue: "list", partitionKey: "set", quantum: 3 })
      yield* policies.setPartition({ queue: "list", partitionKey: "calm", paused: true })
      yield* policies.setQueue({ name: "list", quantum: 6 })
      assert.strictEqual(yield* admitted("list", 5), 5)
      const plain = {
        queue: "list",
        quantum: undefined,
        paused: false,
        isAtLeast: false,
        inFlight: 0,
        deficit: 0,
        noisy: false
      }
      const first = yield* policies.partitions({ queue: "list", limit: 3 })
      assert.deepStrictEqual(first, {
        items: [
          { ...plain, partitionKey: "", waiting: 1 },
          { ...plain, partitionKey: "calm", waiting: 2, paused: true },
          { ...plain, partitionKey: "loud", waiting: 2, inFlight: 5, deficit: 1, noisy: true }
        ],
        next: "loud"
      })
      const rest = yield* policies.partitions({ queue: "list", after: "loud" })
      assert.deepStrictEqual(rest, {
        items: [{ ...plain, partitionKey: "set", quantum: 3, waiting: 0 }],
        next: undefined
      })
    }))

  it.effect("lists come in pages, by name", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      for (const name of ["page-3", "page-1", "page-2"]) yield* policies.setQueue({ name })
      const first = yield* policies.queues({ after: "page-", limit: 2 })
      assert.deepStrictEqual([first.items.map(({ name }) => name), first.next], [["page-1", "page-2"], "page-2"])
      const rest = yield* policies.queues({ after: "page-2", limit: 1 })
      assert.deepStrictEqual(rest.items.map(({ name }) => name), ["page-3"])
    }))

  it.effect("the strike limit is 3 until it is set", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      assert.deepStrictEqual(yield* policies.settings, { strikeLimit: 3 })
      yield* policies.setSetting("strikeLimit", 5)
      assert.deepStrictEqual(yield* policies.settings, { strikeLimit: 5 })
    }))

  it.effect("each field that breaks a limit is refused, and the refusal names the field, the limit and the value", () =>
    Effect.gen(function*() {
      const policies = yield* Policies
      const rate = { name: "r", limit: 1, windowMs: 1 }
      const limit = { name: "l", scope: "queue", subject: "q", max: 1 } as const
      const partition = { queue: "q", partitionKey: "p" }
      const refused: ReadonlyArray<readonly [Effect.Effect<unknown, Invalid | StoreUnavailable>, Partial<Invalid>]> = [
        [policies.setRateClass({ ...rate, name: "" }), { field: "name", limit: 1, actual: 0 }],
        [policies.setRateClass({ ...rate, limit: 0 }), { field: "limit", limit: 1, actual: 0 }],
        [policies.setRateClass({ ...rate, limit: 1e9 + 1 }), { field: "limit", limit: 1e9, actual: 1e9 + 1 }],
        [policies.setRateClass({ ...rate, windowMs: 0 }), { field: "window", limit: 1, actual: 0 }],
        [policies.setRateClass({ ...rate, windowMs: 86_400_001 }), { field: "window", limit: 86_400_000 }],
        [policies.setRateClass({ ...rate, burst: 0 }), { field: "burst", limit: 1, actual: 0 }],
        [policies.setRateClass({ ...rate, burst: 1e9 + 1 }), { field: "burst", limit: 1e9 }],
        [policies.setLimit({ ...limit, name: "a b" }), { field: "name" }],
        [policies.setLimit({ ...limit, max: -1 }), { field: "max", limit: 0, actual: -1 }],
        [policies.setLimit({ ...limit, max: 1_000_001 }), { field: "max", limit: 1_000_000 }],
        [policies.setLimit({ ...limit, max: 1.5 }), { field: "max", actual: 1.5 }],
        [policies.setLimit({ ...limit, subject: "" }), { field: "queue", limit: 1, actual: 0 }],
        [policies.setLimit({ ...limit, scope: "kind", subject: "" }), { field: "kind", limit: 1, actual: 0 }],
        [policies.setLimit({ ...limit, scope: "key" }), { field: "subject" }],
        [policies.setQueue({ name: "q".repeat(129) }), { field: "name", limit: 128, actual: 129 }],
        [policies.setQueue({ name: "q", weight: 0 }), { field: "weight", limit: 1, actual: 0 }],
        [policies.setQueue({ name: "q", weight: 1001 }), { field: "weight", limit: 1000, actual: 1001 }],
        [policies.setQueue({ name: "q", quantum: 0 }), { field: "quantum", limit: 1, actual: 0 }],
        [policies.setQueue({ name: "q", quantum: 10_001 }), { field: "quantum", limit: 10_000 }],
        [policies.setQueue({ name: "q", maxUnfinishedJobs: -1 }), { field: "maxUnfinishedJobs", limit: 0, actual: -1 }],
        [policies.setPartition({ ...partition, queue: "" }), { field: "queue", limit: 1 }],
        [policies.setPartition({ ...partition, partitionKey: "p".repeat(257) }), { field: "partitionKey", limit: 256 }],
        [policies.setPartition({ ...partition, quantum: 10_001 }), { field: "quantum", limit: 10_000 }],
        [policies.setSetting("strikeLimit", 0), { field: "strikeLimit", limit: 1, actual: 0 }],
        [policies.setSetting("strikeLimit", 1001), { field: "strikeLimit", limit: 1000, actual: 1001 }],
        [policies.queues({ limit: 201 }), { field: "limit", limit: 200, actual: 201 }],
        [policies.apply([{ ...shop(), limit: 0 }]), { field: "limit", limit: 1, actual: 0 }]
      ]
      for (const [change, refusal] of refused) {
        assert.deepInclude<object>(yield* Effect.flip(change), { _tag: "Invalid", ...refusal })
      }
    }))

  it.effect("a program without a worker applies definitions by a layer", () =>
    Effect.gen(function*() {
      yield* Layer.build(Policies.layer(Queue.make("by-layer", { weight: 7 })))
      assert.deepInclude(yield* queueOf("by-layer"), { weight: 7 })
    }))
})
