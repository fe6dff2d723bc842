/** Sequences that the gate once got wrong, cut down to what matters. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as Fixture from "./Fixture.ts"
import { play, type Sequence, type Step } from "./Sequence.ts"

const gated = { step: "enqueue", times: 1, queue: "gated", kind: "red" } as const
const fair = { step: "enqueue", times: 1, queue: "fair", kind: "even" } as const
const admit = (queue: string, capacity: number, quantum?: number): Step => ({
  step: "admit",
  worker: "w1",
  queues: [queue],
  capacity,
  quantum
})
const weighing = (policy: string, weight: number) => ({ policy, key: "", weight })

const sequences: Readonly<Record<string, Sequence>> = {
  "a call does not end the jobs it has just claimed to make room for more": {
    strategies: { "by-queue": "cancel_running" },
    steps: [
      gated,
      { ...gated, times: 4, partition: "a" },
      admit("gated", 1),
      { step: "advance", ms: 1 },
      admit("gated", 5)
    ]
  },
  "a suspect beyond the first look of a call is found by the next look": {
    strategies: {},
    steps: [
      { ...fair, times: 2, partition: "a" },
      admit("fair", 1),
      { step: "settle", nth: 0, end: "crashed", delayMs: 1 },
      { step: "flood", queue: "fair", partitions: 11 },
      admit("fair", 2),
      { step: "advance", ms: 1000 },
      admit("fair", 20, 1)
    ]
  },
  "what is left of a turn goes to nobody else when its partition has run empty": {
    strategies: {},
    steps: [
      { ...fair, times: 2, partition: "a" },
      { ...fair, times: 4, partition: "b" },
      { ...fair, times: 4, partition: "c" },
      admit("fair", 1, 3),
      { step: "cancel", nth: 1 },
      admit("fair", 3, 3)
    ]
  },
  "a job that waits for one class does not hold back those that share another one with it": {
    strategies: {},
    steps: [
      { ...gated, times: 2, charges: [weighing("tokens", 1)] },
      admit("gated", 2),
      { ...gated, partition: "a", priority: 1, charges: [weighing("calls", 3), weighing("tokens", 3)] },
      { ...gated, partition: "b", charges: [weighing("calls", 1)] },
      admit("gated", 5)
    ]
  }
}

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("The gate", (it) => {
  for (const [promise, sequence] of Object.entries(sequences)) {
    it.effect(promise, () => Effect.map(play(sequence), (faults) => assert.deepStrictEqual(faults, [])))
  }

  it.effect("partitions that are paused, however many, do not hide the one behind them", () =>
    Effect.gen(function*() {
      const names = Array.from({ length: 400 }, (_, n) => `p${String(n).padStart(3, "0")}`)
      yield* Fixture.clear
      yield* Fixture.insert(names.map((partition) => ({ id: partition, queue: "gated", kind: "red", partition })), 1000)
      yield* Fixture.run(`insert into headgate.partition (queue, partition_key, is_paused)
        select 'gated', partition_key, true from headgate.job where partition_key <> 'p399'`)
      assert.deepStrictEqual(yield* claimed(4), ["p399"])
    }))
})

/** The ids that one call claims, together with those of the calls it asks for. */
const claimed = (capacity: number): Effect.Effect<ReadonlyArray<string>, never, PgClient.PgClient> =>
  Effect.orDie(Effect.map(
    Fixture.admit({
      worker: "w1",
      leaseId: crypto.randomUUID(),
      leaseMs: 60_000,
      queues: ["gated"],
      capacity,
      quantum: undefined
    }, ["red"]),
    (answers) => answers.flatMap(({ fence, id }) => fence === null || id === null ? [] : [id])
  ))
