import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as Fixture from "../gate/Fixture.ts"
import * as Cost from "./fixtures/Cost.ts"

const WAITING = 200_000
const PARTITIONS = 10_000
const KINDS = Array.from({ length: 20 }, (_, n) => `kind-${n}`)

/** Like the first ten, in other partitions and of other priorities. */
const multiply = (rows: number, state: "available" | "scheduled" | "completed") =>
  Fixture.run(
    `insert into headgate.job (id, queue, kind, state, partition_key, priority, lane_id, keys, scheduled_at_ms,
      enqueued_at_ms, retention_ms, schema_version, max_attempts, crash_limit, fingerprint, payload)
    select '${state}-' || n, j.queue, j.kind, '${state}', case when j.partition_key = '' then '' else 'p' || n % ${PARTITIONS} end,
      n % 5, j.lane_id, j.keys, 1000 + n, 1000, 0, 1, 3, 3, 'f', j.payload
    from generate_series(1, ${rows}) n
    join (select row_number() over (order by id) - 1 as nth, * from headgate.job where id like 'first-%') j
      on j.nth = n % ${KINDS.length * 2}`
  )

/** Each kind in a queue with partitions, a ceiling and a rate, and in one without. */
const first = Effect.gen(function*() {
  yield* Fixture.run(`alter table headgate.job set (autovacuum_enabled = false)`)
  yield* Fixture.setLimit("l", { scope: "partition", subject: "gated", max: 3, onSaturated: "queue", isPaused: false })
  yield* Fixture.setClass("calls", { limit: 100_000, windowMs: 1000, burst: 100_000, isPaused: false })
  const charges = [{ policy: "calls", key: "", weight: 1 }]
  yield* Fixture.insert(
    KINDS.flatMap((kind, n) => [
      { id: `first-${kind}-plain`, queue: "plain", kind },
      { id: `first-${kind}-gated`, queue: "gated", kind, partition: `p${n}`, charges }
    ]),
    1000
  )
})

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("The gate", (it) => {
  it.effect(
    "reads by index, and little, among 200,000 jobs: without statistics, with them, and with as many finished beside",
    () =>
      Effect.gen(function*() {
        yield* first
        yield* Fixture.run(`analyze headgate.job`)
        // Plans are made now.
        for (const queue of ["plain", "gated"]) yield* Cost.of({ queues: [queue], kinds: KINDS, capacity: 100 })
        yield* multiply(WAITING, "available")
        yield* multiply(WAITING / 4, "scheduled")
        for (const state of ["no statistics", "statistics", "finished beside"]) {
          if (state === "statistics") yield* Fixture.run(`analyze headgate.job`)
          if (state === "finished beside") yield* multiply(WAITING, "completed")
          for (const queue of ["plain", "gated"]) {
            for (const capacity of [10, 100]) {
              const { buffers, claimed, rows, scans } = yield* Cost.of({ queues: [queue], kinds: KINDS, capacity })
              assert.deepStrictEqual({ claimed, scans }, { claimed: capacity, scans: 0 }, `${state}, ${queue}`)
              // Each kind shows its head, whatever it gives.
              assert.isBelow(rows, 15 * (capacity + KINDS.length), `rows read, ${state}, ${queue}`)
              assert.isBelow(buffers, 100 * (capacity + KINDS.length), `buffers looked at, ${state}, ${queue}`)
            }
          }
        }
      }),
    240_000
  )
})
