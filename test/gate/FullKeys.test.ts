import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as Fixture from "./Fixture.ts"

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("The gate", (it) => {
  it.effect("keys that are full, however many, do not hide the one behind them", () =>
    Effect.gen(function*() {
      const keyed = (prefix: string, key: string) => ({
        id: `${prefix}-${key}`,
        queue: "gated",
        kind: "red",
        slots: [{ policy: "by-key", key }]
      })
      const keys = Array.from({ length: 2000 }, (_, n) => `k${String(n).padStart(4, "0")}`)
      yield* Fixture.clear
      yield* Fixture.setLimit("by-key", { scope: "key", subject: "", max: 1, onSaturated: "queue", isPaused: false })
      yield* Fixture.insert(keys.map((key) => keyed("held", key)), 1000)
      yield* Fixture.run(`update headgate.job set state = 'running', lease_id = gen_random_uuid(), worker = 'w2',
        lease_expires_at_ms = 9000000000000000`)
      yield* Fixture.insert(keys.map((key) => keyed("waiting", key)), 2000)
      yield* Fixture.insert([keyed("free", "z")], 9000)
      const found = yield* Effect.repeat(claimed(4), { until: (ids) => ids.length > 0, times: 50 })
      assert.deepStrictEqual(found, ["free-z"])
    }))
})

const claimed = (capacity: number) =>
  Effect.map(
    Fixture.admit({
      worker: "w1",
      leaseId: crypto.randomUUID(),
      leaseMs: 60_000,
      queues: ["gated"],
      capacity,
      quantum: undefined
    }, ["red"]),
    (answers) => answers.flatMap(({ fence, id }) => fence === null || id === null ? [] : [id])
  )
