import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { ControlSql, inSchema } from "@headgate/postgres/ControlSql"
import * as ControlSqlLayer from "@headgate/postgres/ControlSql"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Cause, Effect, Exit, Layer, Redacted } from "effect"
import { SqlError } from "effect/sql"

const Control = ControlSqlLayer.layer.pipe(
  Layer.provideMerge(TestDatabase.layerWith({
    client: {
      transformResultNames: (name) => name.toUpperCase(),
      startupParameters: {
        default_transaction_isolation: "serializable",
        statement_timeout: "19s",
        idle_session_timeout: "29s",
        idle_in_transaction_session_timeout: "39s"
      }
    }
  }))
)

layer(Control, { excludeTestServices: true })("ControlSql", (it) => {
  it.effect("rows keep their names and isolation is read committed, whatever the application's client does", () =>
    Effect.gen(function*() {
      const { statement } = yield* ControlSql
      const rows = yield* statement("Test", "select current_setting('transaction_isolation') as isolation_level")([])
      assert.deepStrictEqual(rows, [{ isolation_level: "read committed" }])
    }))

  it.effect("limits that are set for the application's statements are not the store's", () =>
    Effect.gen(function*() {
      const { statement } = yield* ControlSql
      const sql = `select current_setting('statement_timeout') as statement,
        current_setting('idle_session_timeout') as idle,
        current_setting('idle_in_transaction_session_timeout') as idle_in_transaction`
      assert.deepStrictEqual(yield* statement("Test", sql)([]), [
        { statement: "0", idle: "0", idle_in_transaction: "10s" }
      ])
    }))

  it.effect("a statement that loses to a concurrent one is tried again", () =>
    Effect.gen(function*() {
      const { client, statement } = yield* ControlSql
      yield* client`CREATE SEQUENCE public.tries`
      yield* client`CREATE FUNCTION public.fails(n int, code text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('public.tries') < n THEN RAISE EXCEPTION 'no' USING ERRCODE = code; END IF; RETURN 1; END $$`
      for (const code of ["40001", "40P01"]) {
        yield* client`ALTER SEQUENCE public.tries RESTART`
        assert.deepStrictEqual(yield* statement("Test", "select public.fails(4, $1) as n")([code]), [{ n: 1 }])
      }
      yield* client`ALTER SEQUENCE public.tries RESTART`
      assert.strictEqual(
        (yield* Effect.flip(statement("Test", "select public.fails(99, '40001')")([])))._tag,
        "StoreUnavailable"
      )
      // Inside a transaction a second try could only fail.
      yield* client`ALTER SEQUENCE public.tries RESTART`
      const inside = client.withTransaction(statement("Test", "select public.fails(4, '40001')")([]))
      assert.strictEqual((yield* Effect.flip(inside))._tag, "StoreUnavailable")
    }))

  it.effect("a function of the user's does not stand in for a built-in one", () =>
    Effect.gen(function*() {
      const { client, statement } = yield* ControlSql
      yield* client`CREATE FUNCTION public.cardinality(int[]) RETURNS int LANGUAGE sql AS $$ SELECT -1 $$`
      assert.deepStrictEqual(yield* statement("Test", "select cardinality(array[1, 2]) as n")([]), [{ n: 2 }])
    }))

  it.effect("a row that the application holds is waited for a bounded time, then it is a typed failure", () =>
    Effect.gen(function*() {
      const { client, statement } = yield* ControlSql
      const application = yield* PgClient.PgClient
      yield* client`INSERT INTO headgate.duty (name, holder, expires_at_ms) VALUES ('d', 'w', 0)`
      const refused = yield* application.withTransaction(Effect.gen(function*() {
        yield* application`SELECT 1 FROM headgate.duty FOR UPDATE`
        return yield* Effect.flip(statement("Test", "delete from headgate.duty")([])).pipe(Effect.timeout("1 minute"))
      }))
      assert.strictEqual(refused._tag, "StoreUnavailable")
    }))

  it.effect("a fault of the statement is a defect, a fault of the server a typed failure", () =>
    Effect.gen(function*() {
      const { statement } = yield* ControlSql
      const exits = yield* Effect.forEach(
        ["select 1/0", "selec", "insert into headgate.lane (queue) values (null)"],
        (sql) => Effect.exit(statement("Test", sql)([]))
      )
      for (const exit of exits) assert.isTrue(Exit.isFailure(exit) && Cause.hasDies(exit.cause))
      for (const sql of ["select pg_terminate_backend(pg_backend_pid())", "select * from headgate.nowhere"]) {
        const failure = yield* Effect.flip(statement("Test.operation", sql)([]))
        assert.deepInclude(failure, { _tag: "StoreUnavailable", operation: "Test.operation" })
      }
      assert.deepStrictEqual(yield* statement("Test", "select 1 as one")([]), [{ one: 1 }])
    }))

  it.effect("a database that cannot be reached, or that refuses the login, is a typed failure", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const nobody = new URL(url)
      nobody.username = "nobody_at_all"
      for (const address of [proxy.url, nobody.href]) {
        yield* proxy.cut
        const unreachable = Effect.provide(
          Effect.flatMap(ControlSql, ({ statement }) => Effect.flip(statement("Test", "select 1")([]))),
          Layer.fresh(ControlSqlLayer.layer).pipe(Layer.provide(PgClient.layer({ url: Redacted.make(address) })))
        )
        assert.strictEqual((yield* unreachable)._tag, "StoreUnavailable")
      }
    }).pipe(Effect.scoped))

  it.effect("a socket's error is no SQLSTATE, also where its code is as long as one", () =>
    Effect.gen(function*() {
      for (const code of ["EPIPE", "ECONNRESET", "ECONNREFUSED"]) {
        const reason = new SqlError.ConnectionError({ cause: Object.assign(new Error("the socket's"), { code }) })
        const failure = yield* Effect.flip(ControlSqlLayer.toUnavailable("Test")(new SqlError.SqlError({ reason })))
        assert.strictEqual(failure._tag, "StoreUnavailable", code)
      }
    }))

  it.effect("only the schema's own prefix is renamed", () =>
    Effect.sync(() => {
      assert.strictEqual(
        inSchema("jobs", "select headgate.now_ms(), my_headgate.x"),
        "select \"jobs\".now_ms(), my_headgate.x"
      )
    }))
})
