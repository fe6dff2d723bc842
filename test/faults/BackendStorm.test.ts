import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Option } from "effect"
import * as Chores from "./fixtures/Chores.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const STORM_MS = 15_000
/** So much work is done in the storm, which lasts as much longer as that takes. */
const DONE = 50

/** Ends each connection of the program with a chance of one in three, ten times a second, whatever it is at. */
const storm = PgClient.PgClient.use((sql) =>
  sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name SIMILAR TO '(stormy|headgate)%' AND random() < 0.33`.pipe(
    Effect.andThen(Effect.sleep(100)),
    Effect.forever
  )
)

/** How many of the jobs have ended, with all their effects. */
const done = Effect.fnUntraced(function*(ids: ReadonlyArray<string>) {
  return ids.length - (yield* Chores.harmed(ids)).length
})

layer(Chores.table.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "A storm of killed connections",
  (it) => {
    it.effect(
      "loses no job that was stored, charges none, and repeats no effect, while new ones keep coming",
      () =>
        Effect.gen(function*() {
          const { url } = yield* TestDatabase.TestDatabase
          const site = yield* Site.open(url, { name: "stormy", pool: 6 })
          const gauge = new Chores.Gauge()
          const worker = yield* site.work(Chores.handler(gauge), { concurrency: 10, lease: "10 seconds" })
          const producers = yield* Effect.forEach(["a", "b"], (name) =>
            Chores.producer(site, name, { millis: 50, pause: 40, keys: 5 }))
          const stored = () =>
            producers.flatMap(({ ids }) => ids)
          const isOver = Effect.repeat(Effect.delay(Effect.suspend(() => done(stored())), 500), {
            until: (n) => n > DONE
          })
          yield* Effect.raceFirst(storm, Effect.all([Effect.sleep(STORM_MS), isOver], { concurrency: 2 }))
          yield* Effect.forEach(producers, ({ stop }) => stop)
          const ids = stored()
          yield* Chores.ended(ids)
          assert.deepStrictEqual(yield* Chores.harmed(ids), [])
          assert.deepStrictEqual(worker.told("LeaseLost"), [])
          assert.strictEqual(gauge.most, 1)
          for (const { faults } of producers) assert.isTrue(Chores.isTyped(faults), [...faults].join())
          const isWell = Effect.map(
            worker.health,
            ({ status }) => status === "working" ? Option.some(status) : Option.none()
          )
          yield* Watch.until(isWell, "the worker to be well")
        }).pipe(Effect.scoped),
      240_000
    )
  }
)
