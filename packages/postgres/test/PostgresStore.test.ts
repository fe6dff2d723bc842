import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import { Gate } from "@headgate/core/Gate"
import { Heartbeat } from "@headgate/core/Heartbeat"
import { Inspect } from "@headgate/core/Inspect"
import { Leases } from "@headgate/core/Leases"
import * as Outcome from "@headgate/core/Outcome"
import { Producer } from "@headgate/core/Producer"
import { OutputStore, ProgressStore } from "@headgate/core/Reports"
import { Transactional } from "@headgate/core/Transactional"
import { Wakeups } from "@headgate/core/Wakeups"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Context, Effect, Layer } from "effect"
import * as Store from "./Store.ts"

/** A job from its enqueue to its end. */
const life = (id: string) =>
  Effect.gen(function*() {
    const lease = yield* Store.running({ id })
    const write = { lease, leaseMs: 1000, record: undefined, mark: "a", cursor: undefined, open: undefined }
    assert.deepStrictEqual(yield* Checkpoints.use((checkpoints) => checkpoints.write([write])), [true])
    return (yield* Store.settle(lease, Outcome.success))?.state
  })

layer(TestDatabase.layerWith({ isMigrated: false }), { excludeTestServices: true })("PostgresStore", (it) => {
  it.effect("one layer over a client of an empty database provides every contract", () =>
    Effect.gen(function*() {
      const store = yield* Layer.build(PostgresStore.layerWith({ schema: "complete", listen: false }))
      const contracts = [
        Gate,
        Leases,
        Checkpoints,
        Heartbeat,
        Wakeups,
        Duties,
        ProgressStore,
        OutputStore,
        Producer,
        Transactional,
        Control,
        Inspect
      ]
      for (const contract of contracts) assert.isTrue(store.mapUnsafe.has(contract.key), contract.key)
      assert.strictEqual(yield* Effect.provide(life("first"), store), "completed")
    }).pipe(Effect.scoped))

  it.effect("told not to migrate, it starts only on a schema that is up to date", () =>
    Effect.gen(function*() {
      const start = Effect.scoped(
        Layer.build(PostgresStore.layerWith({ schema: "later", listen: false, migrate: false }))
      )
      const refused = yield* Effect.flip(start)
      assert.deepInclude(refused, { _tag: "MigrationError", reason: "pending" })
      yield* Effect.scoped(Layer.build(PostgresStore.layerWith({ schema: "later", listen: false })))
      yield* start
    }))

  it.effect("two stores in one program, each in its schema, do not see each other", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const enqueueIn = (schema: string) =>
        Layer.effectDiscard(Store.enqueue({ id: "same" })).pipe(
          Layer.provide(PostgresStore.layerWith({ schema, listen: false }))
        )
      yield* Layer.build(Layer.merge(enqueueIn("one"), enqueueIn("two")))
      const rows = yield* sql`SELECT id FROM one.job UNION ALL SELECT id FROM two.job`
      assert.strictEqual(rows.length, 2)
    }).pipe(Effect.scoped))

  it.effect("without named statements and session settings, as behind a pooler, everything works", () =>
    Effect.gen(function*() {
      const options = { schema: "pooled", transactionPooling: true, controlConnections: 1 }
      const store = yield* Layer.build(PostgresStore.layerWith(options))
      assert.strictEqual(yield* Effect.provide(life("pooled"), store), "completed")
      const sql = yield* PgClient.PgClient
      const [named] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM pg_stat_activity
        WHERE application_name = 'headgate' AND datname = current_database()`
      assert.isAbove(named?.n ?? 0, 0)
    }).pipe(Effect.scoped))

  it.effect("its own connections are no more than told", () =>
    Effect.gen(function*() {
      const store = yield* Layer.build(
        PostgresStore.layerWith({ schema: "budget", listen: false, controlConnections: 2 })
      )
      yield* Effect.provide(
        Effect.forEach(Array.from({ length: 20 }, (_, n) => `b${n}`), life, { concurrency: 20, discard: true }),
        Context.merge(store, yield* Effect.context<never>())
      )
      const sql = yield* PgClient.PgClient
      const [named] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM pg_stat_activity
        WHERE application_name = 'headgate' AND datname = current_database() AND query LIKE '%budget%'`
      assert.isAtMost(named?.n ?? 99, 2)
    }).pipe(Effect.scoped))
})
