/** Random sequences. Jobs of `fair` have partitions and nothing else; `plain` has not even those; `gated` has all there is. */
import * as fc from "fast-check"
import type * as Fixture from "./Fixture.ts"
import * as Model from "./Model.ts"
import { type Sequence, type Step, subjects } from "./Sequence.ts"

const partition = fc.constantFrom("", "a", "b", "c")
const key = fc.constantFrom("", "x", "y")

const charges = fc.uniqueArray(
  fc.record({ policy: fc.constantFrom("calls", "tokens"), key, weight: fc.constantFrom(1, 1, 1, 2, 5) }),
  { maxLength: 3, selector: ({ key, policy }) => Model.bucketName(policy, key) }
).map((all) => all.sort((a, b) => a.policy < b.policy || a.policy === b.policy && a.key < b.key ? -1 : 1))

const slots = fc.uniqueArray(fc.record({ policy: fc.constantFrom("by-key", "by-other"), key }), {
  maxLength: 2,
  selector: ({ policy }) => policy
}).map((all) => all.sort((a, b) => a.policy < b.policy ? -1 : 1))

const quantum = fc.option(fc.integer({ min: 1, max: 4 }), { nil: undefined })
const isPaused = fc.constantFrom(false, false, true)

const enqueues: fc.Arbitrary<Step> = fc.oneof(
  fc.record({
    step: fc.constant("enqueue" as const),
    times: fc.integer({ min: 1, max: 5 }),
    queue: fc.constant("gated"),
    kind: fc.constantFrom("red", "blue"),
    partition,
    priority: fc.integer({ min: 0, max: 2 }),
    charges,
    slots,
    pin: fc.constantFrom("", "", "", "", "w2"),
    deadlineAt: fc.constantFrom(undefined, undefined, undefined, 1500)
  }),
  fc.record({
    step: fc.constant("enqueue" as const),
    times: fc.integer({ min: 1, max: 8 }),
    queue: fc.constant("fair"),
    kind: fc.constant("even"),
    partition: fc.constantFrom("a", "b", "c"),
    priority: fc.integer({ min: 0, max: 2 })
  }),
  fc.record({
    step: fc.constant("enqueue" as const),
    times: fc.integer({ min: 1, max: 4 }),
    queue: fc.constant("plain"),
    kind: fc.constantFrom("red", "blue"),
    priority: fc.integer({ min: 0, max: 2 })
  })
)

const admits: fc.Arbitrary<Step> = fc.record({
  step: fc.constant("admit" as const),
  worker: fc.constantFrom("w1", "w2"),
  queues: fc.constantFrom(["gated"], ["fair"], ["fair"], ["gated", "fair", "plain"]),
  capacity: fc.constantFrom(1, 2, 3, 5, 9, 20),
  quantum
})

const edits: fc.Arbitrary<Step> = fc.oneof(
  fc.record({
    step: fc.constant("class" as const),
    name: fc.constantFrom("calls", "tokens"),
    value: fc.record({
      limit: fc.integer({ min: 1, max: 5 }),
      windowMs: fc.constantFrom(1, 700, 1000, 60_000),
      burst: fc.integer({ min: 1, max: 6 }),
      isPaused
    })
  }),
  fc.record({
    step: fc.constant("close" as const),
    name: fc.constantFrom("calls", "tokens"),
    ms: fc.constantFrom(1, 2000)
  }),
  fc.record({
    step: fc.constant("limit" as const),
    name: fc.constantFrom(...Object.keys(subjects)),
    max: fc.integer({ min: 0, max: 5 }),
    isPaused
  }),
  fc.record({
    step: fc.constant("queue" as const),
    name: fc.constantFrom("gated", "fair", "plain"),
    isPaused,
    quantum
  }),
  fc.record({
    step: fc.constant("partition" as const),
    queue: fc.constant("gated"),
    name: fc.constantFrom("", "a", "b", "p00"),
    isPaused,
    quantum
  }),
  fc.record({
    step: fc.constant("partition" as const),
    queue: fc.constant("fair"),
    name: fc.constantFrom("a", "b", "p00"),
    isPaused: fc.constant(false),
    quantum
  }),
  fc.record({ step: fc.constant("kind" as const), name: fc.constantFrom("red", "blue"), isPaused })
)

const others: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      step: fc.constant("settle" as const),
      nth: fc.nat(20),
      end: fc.constantFrom<Fixture.End>("success", "success", "retry", "released", "crashed"),
      delayMs: fc.constantFrom(1, 1000)
    })
  },
  { weight: 1, arbitrary: fc.record({ step: fc.constant("cancel" as const), nth: fc.nat(20) }) },
  { weight: 1, arbitrary: fc.constant<Step>({ step: "reclaim" }) },
  {
    weight: 2,
    arbitrary: fc.record({ step: fc.constant("advance" as const), ms: fc.constantFrom(1, 334, 1000, 5000, 60_000) })
  },
  {
    weight: 1,
    arbitrary: fc.record({
      step: fc.constant("flood" as const),
      queue: fc.constantFrom("gated", "fair"),
      partitions: fc.integer({ min: 6, max: 24 })
    })
  }
)

const strategy = fc.constantFrom<Model.Strategy>("queue", "queue", "discard", "cancel_incoming", "cancel_running")

export const sequence: fc.Arbitrary<Sequence> = fc.record({
  strategies: fc.record({ "by-queue": strategy, "by-partition": strategy, "by-kind": strategy, "by-key": strategy }),
  steps: fc.array(
    fc.oneof(
      { weight: 4, arbitrary: enqueues },
      { weight: 5, arbitrary: admits },
      { weight: 3, arbitrary: others },
      { weight: 2, arbitrary: edits }
    ),
    { minLength: 10, maxLength: 30, size: "max" }
  )
})
