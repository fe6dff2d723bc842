import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Wakeups } from "@headgate/core/Wakeups"
import * as ControlSql from "@headgate/postgres/ControlSql"
import * as WakeupsLayer from "@headgate/postgres/Wakeups"
import { TestDatabase } from "@headgate/testkit"
import { Context, Effect, Layer, Logger, Redacted, Stream } from "effect"

/** The store's and an application's connections of their own; those that are made now. */
const connections = Effect.gen(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const client = PgClient.layer({ url: Redacted.make(url), maxConnections: 2 })
  const store = WakeupsLayer.layer.pipe(Layer.provideMerge(ControlSql.layer), Layer.provideMerge(client))
  return yield* Layer.buildWithMemoMap(store, Layer.makeMemoMapUnsafe(), yield* Effect.scope)
})

/** As an old primary does, to whom the database belongs no more: what connects from now on may only read. */
const readOnly = Effect.fnUntraced(function*(value: "on" | "off") {
  const sql = yield* PgClient.PgClient
  const { name } = yield* TestDatabase.TestDatabase
  yield* sql.unsafe(`ALTER DATABASE "${name}" SET default_transaction_read_only = ${value}`)
})

const untilWritten = <E>(write: Effect.Effect<unknown, E>) =>
  Effect.timeout(Effect.eventually(Effect.delay(write, 100)), "1 minute")

layer(TestDatabase.layer, { excludeTestServices: true })("A server that takes no writes", (it) => {
  it.effect("is a typed failure, and its connections are left, the application's as well", () =>
    Effect.gen(function*() {
      yield* readOnly("on")
      const context = yield* connections
      const { client, statement } = Context.get(context, ControlSql.ControlSql)
      const application = Context.get(context, PgClient.PgClient)
      const write = statement("Test", "delete from headgate.duty")([])
      const byApplication = application`DELETE FROM headgate.duty`
      yield* Effect.flip(byApplication)
      assert.strictEqual((yield* Effect.flip(write))._tag, "StoreUnavailable")
      yield* readOnly("off")
      yield* untilWritten(write)
      yield* untilWritten(byApplication)
      const [row] = yield* client`SELECT current_setting('transaction_read_only') AS is_read_only`
      assert.deepStrictEqual(row, { is_read_only: "off" })
    }).pipe(Effect.scoped))

  it.effect("is not listened to", () =>
    Effect.gen(function*() {
      yield* readOnly("on")
      const context = yield* connections
      let wakeups = 0
      const heard = Stream.runForEach(
        Context.get(context, Wakeups).subscribe(["default"]),
        () => Effect.sync(() => wakeups++)
      )
      yield* Effect.forkScoped(heard)
      yield* Effect.sleep("500 millis")
      assert.strictEqual(wakeups, 0)
      yield* readOnly("off")
      yield* Effect.timeout(Effect.repeat(Effect.sleep(50), { until: () => wakeups > 0 }), "1 minute")
    }).pipe(Effect.provide(Logger.layer([])), Effect.scoped))
})
