import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Redacted } from "effect"
import * as Fixture from "../gate/Fixture.ts"
import * as Cost from "./fixtures/Cost.ts"

const CHURNED = 120_000
const LEASE = "6c1d6d0a-0c61-4d0c-9a2f-0f4b7f1f5a11"

/** A transaction elsewhere that sees, and so keeps, all that was there when it began. */
const holdSnapshot = Effect.gen(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const elsewhere = yield* Layer.build(Layer.fresh(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 })))
  const here = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.provideContext(effect, elsewhere)
  yield* here(Fixture.run("begin isolation level repeatable read"))
  yield* here(Fixture.run("select count(*) from headgate.lane"))
})

const add = (queue: string, partitions: number, jobs: number, name: string, atMs: number) =>
  Fixture.run(
    `insert into headgate.job (id, queue, kind, state, partition_key, lane_id, scheduled_at_ms, enqueued_at_ms,
      retention_ms, schema_version, max_attempts, crash_limit, fingerprint, payload)
    select '${queue}-${name}-' || lpad(n::text, 6, '0'), l.queue, l.kind, 'available',
      case when l.is_partitioned then 'p' || n % ${partitions} else '' end, l.id, ${atMs} + n, 1000, 0, 1, 3, 3, 'f', ''
    from generate_series(1, ${jobs}) n join headgate.lane l on l.queue = '${queue}'`
  )

const laneOf = (queue: string, isPartitioned: boolean) =>
  Fixture.run(
    `insert into headgate.lane (queue, kind, version, suspect, is_partitioned) values ('${queue}', 'k', 1, false, $1)`,
    [
      isPartitioned
    ]
  )

/** A thousand at a time, each in a transaction of its own. */
const drain = (queue: string) =>
  Fixture.run(`do $$
    declare v_ids text[]; v_fences bigint[];
    begin
      loop
        select array_agg(a.id), array_agg(a.fence) into v_ids, v_fences
          from headgate.admit('w', '${LEASE}', '{${queue}}', '{k}', '{1}', 1000, 60000) a where a.fence is not null;
        exit when v_ids is null;
        perform headgate.succeed(v_ids, array_fill('${LEASE}'::uuid, array[cardinality(v_ids)]), v_fences, '{}', '{}');
        commit;
      end loop;
    end $$`)

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })(
  "A transaction that stays open while 120,000 jobs come and go",
  (it) => {
    for (const partitions of [1]) {
      it.effect(
        `makes 95 of 100 claims from ${
          partitions === 1 ? "one partition" : `${partitions} partitions`
        } look at no more than ten times the blocks`,
        () =>
          Effect.gen(function*() {
            const queue = `churned-${partitions}`
            const call = { queues: [queue], kinds: ["k"], capacity: 10 }
            yield* laneOf(queue, partitions > 1)
            yield* add(queue, partitions, 2000, "early", 1000)
            const fresh = yield* Cost.of(call)
            yield* drain(queue)
            yield* holdSnapshot
            yield* add(queue, partitions, CHURNED, "churned", 100_000)
            yield* drain(queue)
            yield* add(queue, partitions, 2000, "late", 1_000_000)
            const from = performance.now()
            const held = yield* Cost.ofEach(100, call)
            const seconds = (performance.now() - from) / 1000
            const buffers = held.map((claim) => claim.buffers).sort((a, b) => a - b)
            console.log(
              `held snapshot, ${partitions}: ${fresh.buffers} buffers fresh; held p50 ${buffers[50]}, p95 ${
                buffers[94]
              }, most ${buffers[99]}`
            )
            assert.isTrue([fresh, ...held].every(({ claimed }) => claimed === 10))
            // The place of the head is forgotten after a second: where the calls take seconds, more of them look for it.
            const many = buffers.filter((count) => count > 10 * fresh.buffers)
            assert.isAtMost(many.length, 5 + 2 * Math.floor(seconds))
          }).pipe(Effect.scoped),
        240_000
      )
    }
  }
)
