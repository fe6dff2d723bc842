import { PgClient } from "@effect/sql-pg"
import { assert, layer } from "@effect/vitest"
import * as TestDatabase from "@headgate/testkit/TestDatabase"
import * as Time from "@headgate/testkit/Time"
import { Effect } from "effect"

const minute = 60_000

layer(TestDatabase.layer, { excludeTestServices: true })("Time", (it) => {
  it.effect("shows real time until it is moved", () =>
    Effect.gen(function*() {
      assert.closeTo(yield* Time.now(), Date.now(), minute)
    }))

  it.effect("a statement another session prepared earlier follows the move", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Effect.scoped(Effect.gen(function*() {
        const session = yield* sql.reserve
        const read = session.execute("SELECT headgate.now_ms() AS now", [], undefined)
        for (let i = 0; i < 6; i++) yield* read // past the planner's switch to a generic plan
        const [before] = yield* read
        yield* Time.advance("1 hour")
        const [after] = yield* read
        assert.closeTo(Number(after?.["now"]) - Number(before?.["now"]), 60 * minute, minute)
      }))
    }))

  it.effect("a frozen clock stands, moves when told to, and runs on from there", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* Time.freeze(1_000_000), 1_000_000)
      assert.strictEqual(yield* Time.advance("1 minute"), 1_000_000 + minute)
      yield* Effect.sleep(5)
      assert.strictEqual(yield* Time.now(), 1_000_000 + minute)
      assert.strictEqual(yield* Time.freeze(), 1_000_000 + minute)
      yield* Time.resume()
      const resumed = yield* Time.now()
      assert.closeTo(resumed, 1_000_000 + minute, minute)
      yield* Effect.sleep(5)
      assert.isAbove(yield* Time.now(), resumed)
    }))

  it.effect("one statement sees one time", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const rows =
        yield* sql`SELECT count(DISTINCT headgate.now_ms() + 0 * n)::int AS times FROM generate_series(1, 20000) n`
      assert.deepStrictEqual(rows, [{ times: 1 }])
    }))

  it.effect("the clock stays STABLE, so that it may bound an index scan", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const rows = yield* sql`SELECT provolatile::text AS it FROM pg_proc WHERE oid = 'headgate.now_ms()'::regprocedure`
      assert.deepStrictEqual(rows, [{ it: "s" }])
    }))
})
