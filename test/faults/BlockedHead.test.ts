import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Task } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Schema } from "effect"
import * as Fixture from "../gate/Fixture.ts"
import * as Cost from "./fixtures/Cost.ts"
import * as Figure from "./fixtures/Figure.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const BLOCKED = 50_000
const LONG_AGO = 1000

/** What stands at the head of the queue, once the ten stand behind it. */
interface Head {
  readonly why: string
  readonly blocked: Partial<Fixture.NewJob>
  readonly free: (n: number) => Partial<Fixture.NewJob>
  readonly close: (queue: string) => Effect.Effect<unknown, unknown, PgClient.PgClient>
}

const limit = { onSaturated: "queue", isPaused: false, max: 1 } as const
const calls = (key: string) => ({ charges: [{ policy: "calls", key, weight: 1 }] })
const account = (key: string) => ({ slots: [{ policy: "by-key", key }] })

/** One job of the head runs already, and holds the only slot. */
const runOne = (queue: string) =>
  Fixture.run(`update headgate.job set state = 'running', worker = 'elsewhere', lease_id = gen_random_uuid(),
  lease_expires_at_ms = headgate.now_ms() + 3600000 where id = 'blocked-${queue}-1'`)

const heads: ReadonlyArray<Head> = [
  {
    why: "its rate class is closed for an hour",
    blocked: calls("a"),
    free: (n) => calls(`b${n}`),
    close: () =>
      Effect.andThen(
        Fixture.setClass("calls", { limit: 1000, windowMs: 1000, burst: 1000, isPaused: false }),
        Fixture.run(`insert into headgate.bucket (units, at_ms, closed_until_ms, class, key)
        values (1000000, headgate.now_ms(), headgate.now_ms() + 3600000, 'calls', 'a')`)
      )
  },
  {
    why: "its kind is paused",
    blocked: { kind: "paused" },
    free: () => ({}),
    close: () => Fixture.setKind("paused", true)
  },
  {
    why: "its key is at the ceiling",
    blocked: account("a"),
    free: (n) => account(`b${n}`),
    close: (queue) => Effect.andThen(Fixture.setLimit("by-key", { ...limit, scope: "key", subject: "" }), runOne(queue))
  },
  {
    why: "its partition is at the ceiling",
    blocked: { partition: "a" },
    free: (n) => ({ partition: `b${n}` }),
    close: (queue) =>
      Effect.andThen(Fixture.setLimit("by-partition", { ...limit, scope: "partition", subject: queue }), runOne(queue))
  },
  {
    why: "its partition is paused",
    blocked: { partition: "a" },
    free: (n) => ({ partition: `b${n}` }),
    close: (queue) => Fixture.setPartition(queue, "a", true, undefined)
  },
  {
    why: "it waits for another worker",
    blocked: { pin: "elsewhere" },
    free: () => ({}),
    close: () => Effect.void
  },
  {
    why: "it waits for its next attempt",
    blocked: {},
    free: () => ({}),
    close: (queue) =>
      Fixture.run(`update headgate.job set state = 'retryable', scheduled_at_ms = headgate.now_ms() + 3600000
      where id like 'blocked-${queue}%'`)
  }
]

const block = Effect.fnUntraced(function*({ blocked, close }: Head, queue: string) {
  const id = `blocked-${queue}`
  yield* Fixture.insert([{ id, queue, kind: "free", priority: 9, ...blocked }], LONG_AGO)
  yield* Fixture.run(`insert into headgate.job (id, queue, kind, state, partition_key, priority, lane_id, keys, weights,
      scheduled_at_ms, enqueued_at_ms, retention_ms, schema_version, max_attempts, crash_limit, fingerprint, payload)
    select j.id || '-' || n, j.queue, j.kind, j.state, j.partition_key, j.priority, j.lane_id, j.keys, j.weights,
      j.scheduled_at_ms + n, j.enqueued_at_ms, 0, 1, 3, 3, 'f', j.payload
    from headgate.job j cross join generate_series(1, ${BLOCKED}) n where j.id = '${id}'`)
  yield* close(queue)
})

const addTen = ({ free }: Head, queue: string, name: string) =>
  Fixture.insert(
    Array.from({ length: 10 }, (_, n) => ({ id: `${name}-${queue}-${n}`, queue, kind: "free", ...free(n) })),
    Date.now()
  )

const starts: Array<number> = []
const note = () => Effect.sync(() => void starts.push(performance.now()))

/** Four workers that have nothing to do. */
const workers = Effect.fnUntraced(function*(url: string, queue: string) {
  const handlers = Layer.mergeAll(
    Task.make("free", { payload: Schema.Null, queue }).toLayer(note),
    Task.make("paused", { payload: Schema.Null, queue }).toLayer(note)
  )
  const one = Effect.flatMap(
    Site.open(url, { pool: 2 }),
    (site) => site.work(handlers, { pollInterval: "200 millis", duties: false, shutdownGrace: 0 })
  )
  yield* Effect.all([one, one, one, one], { concurrency: "unbounded" })
})

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })(
  "50,000 jobs in front that cannot run keep ten others from nothing: they start within a second",
  (it) => {
    for (const [index, head] of heads.entries()) {
      it.effect(`when ${head.why}`, () =>
        Effect.gen(function*() {
          const { url } = yield* TestDatabase.TestDatabase
          const queue = `head-${index}`
          yield* block(head, queue)
          yield* addTen(head, queue, "measured")
          const { buffers, claimed, rows, scans } = yield* Cost.of({
            queues: [queue],
            kinds: ["free", "paused"],
            capacity: 20
          })
          assert.deepStrictEqual({ claimed, scans }, { claimed: 10, scans: 0 })
          assert.isBelow(rows, 1000, "rows read by a call")
          assert.isBelow(buffers, 2000, "buffers looked at by a call")
          yield* Fixture.run(`delete from headgate.job where id like 'measured-%'`)

          starts.length = 0
          yield* workers(url, queue)
          yield* Effect.sleep(300)
          assert.strictEqual(starts.length, 0)
          const addedAt = performance.now()
          yield* addTen(head, queue, "late")
          yield* Watch.untilTrue(() => starts.length >= 10, "the ten to start")
          assert.strictEqual(starts.length, 10)
          Figure.within(`ten jobs behind 50,000 started, when ${head.why}`, Math.max(...starts) - addedAt, 1000)
        }).pipe(Effect.scoped), 240_000)
    }
  }
)
