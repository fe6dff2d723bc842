import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import * as Chores from "./fixtures/Chores.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

/** What an administrator sets for the application's role, with the application's statements in mind. */
const settings: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "default_transaction_isolation = serializable": { default_transaction_isolation: "serializable" },
  "default_transaction_isolation = repeatable read": { default_transaction_isolation: "repeatable read" },
  "timeouts of statements and locks": { statement_timeout: "1s", lock_timeout: "200ms" },
  "timeouts of idle sessions and transactions": {
    idle_session_timeout: "700ms",
    idle_in_transaction_session_timeout: "500ms"
  }
}

layer(Chores.table.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })("A role with", (it) => {
  for (const [what, values] of Object.entries(settings)) {
    it.effect(`${what} loses nothing, is charged nothing and breaks no ceiling`, () =>
      Effect.gen(function*() {
        const { name, url } = yield* TestDatabase.TestDatabase
        const sql = yield* PgClient.PgClient
        const set = (verb: (setting: string, value: string) => string) =>
          Effect.forEach(Object.entries(values), ([setting, value]) =>
            sql.unsafe(`ALTER DATABASE "${name}" ${verb(setting, value)}`))
        yield* Effect.acquireRelease(
          set((setting, value) =>
            `SET ${setting} = '${value}'`
          ),
          () => Effect.orDie(set((setting) => `RESET ${setting}`))
        )
        const sites = [yield* Site.open(url), yield* Site.open(url)] as const
        const gauge = new Chores.Gauge()
        // Heard by LISTEN, or not within the test.
        const options = { concurrency: 10, pollInterval: "10 minutes", lease: "10 seconds" } as const
        const workers = yield* Effect.forEach(sites, (site) => site.work(Chores.handler(gauge), options))
        const producers = yield* Effect.forEach(sites, (site, n) =>
          Chores.producer(site, `${what} ${n}`, { millis: 30, pause: 30, keys: 3 }))
        yield* Watch.untilTrue(() =>
          producers.every(({ ids }) => ids.length >= 12), "enough jobs")
        yield* Effect.forEach(producers, ({ stop }) => stop)
        const ids = producers.flatMap(({ ids }) => ids)
        yield* Chores.ended(ids)
        assert.deepStrictEqual(yield* Chores.harmed(ids), [])
        assert.strictEqual(gauge.most, 1)
        for (const worker of workers) {
          assert.deepStrictEqual(worker.told("LeaseLost"), [])
          assert.deepStrictEqual(worker.told("StoreUnreachable"), [])
        }
        // A listener that is cut off now and then hears late.
        const late = yield* Chores.Chore.enqueue({ millis: 0, key: what }, { id: `${what} late` }).pipe(sites[0].use)
        yield* sites[0].use(Watch.reaches(late, "completed"))
        for (const { logged } of sites) assert.deepStrictEqual(logged, [])
      }).pipe(Effect.scoped))
  }
})
