import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as Fixture from "../gate/Fixture.ts"
import * as Cost from "./fixtures/Cost.ts"

const KEYS = 100
const RUNNING = 2000
const call = { queues: ["keyed"], kinds: ["import"], capacity: KEYS }

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("A slot", (it) => {
  it.effect(
    "is counted from its own rows, though the statistics are of a time when nothing ran",
    () =>
      Effect.gen(function*() {
        yield* Fixture.run(`alter table headgate.job set (autovacuum_enabled = false)`)
        yield* Fixture.setLimit("l", { scope: "key", subject: "", max: 1000, onSaturated: "queue", isPaused: false })
        const jobs = Array.from({ length: RUNNING + 2 * KEYS }, (_, n) => ({
          id: `job-${n}`,
          queue: "keyed",
          kind: "import",
          slots: [{ policy: "l", key: `k${n % KEYS}` }]
        }))
        yield* Fixture.insert(jobs, 1000)
        yield* Fixture.run(`analyze headgate.job`)
        yield* Cost.of(call)
        yield* Fixture.run(
          `update headgate.job set state = 'running', lease_id = gen_random_uuid(), lease_expires_at_ms = 0, worker = 'w'
        where id in (select id from headgate.job order by scheduled_at_ms limit $1::text::int)`,
          [String(RUNNING)]
        )
        const { claimed, rows } = yield* Cost.of(call)
        assert.strictEqual(claimed, KEYS)
        // Of each key those that run, and those that wait.
        assert.isBelow(rows, 2 * (RUNNING + 10 * KEYS))
      }),
    60_000
  )
})
