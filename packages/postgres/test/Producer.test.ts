import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { fingerprint } from "@headgate/core/Fingerprint"
import * as Outcome from "@headgate/core/Outcome"
import { Producer } from "@headgate/core/Producer"
import { ControlSql } from "@headgate/postgres/ControlSql"
import * as ControlSqlLayer from "@headgate/postgres/ControlSql"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase, Time } from "@headgate/testkit"
import { Deferred, Effect, Fiber, Layer, Redacted } from "effect"
import { SqlClient } from "effect/sql"
import * as Store from "./Store.ts"

const exists = Effect.fnUntraced(function*(...ids: ReadonlyArray<string>) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ id: string }>`SELECT id FROM headgate.job WHERE id = ANY(${ids}) ORDER BY id`
  return rows.map(({ id }) => id)
})

const key = Store.bytes

/** Until so many sessions wait for another one's transaction to end. */
const waiting = (sessions: number) =>
  Effect.flatMap(PgClient.PgClient, (sql) =>
    Effect.repeat(
      sql<{ n: number }>`SELECT count(*)::int AS n FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'`,
      { until: ([row]) => row?.n === sessions }
    ))

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue", (it) => {
  it.effect("each job is stored with all its fields, and answered in order", () =>
    Effect.gen(function*() {
      yield* Time.freeze()
      const now = yield* Time.now()
      const answers = yield* Store.enqueue(
        { id: "f2", pending: true },
        {
          id: "f1",
          kind: "mail",
          payload: Store.bytes("\u0000\ud83d\ude00"),
          schemaVersion: 3,
          queue: "",
          partitionKey: "shop",
          priority: -5,
          maxAttempts: 9,
          crashLimit: 2,
          delayMs: 1000,
          timeoutMs: 1,
          queueTimeoutMs: 2,
          deadlineInMs: 500,
          retentionMs: 0,
          uniqueKey: key("k"),
          headers: { a: "\"\\é" },
          tags: ["b", "a,\"\\", "NULL", "{}"]
        },
        { id: "f3", scheduledAtMs: now + 1, deadlineAtMs: now + 5 },
        { id: "f4", scheduledAtMs: now }
      )
      assert.deepStrictEqual(answers.map(({ id, state, status }) => [id, state, status]), [
        ["f2", "pending", "created"],
        ["f1", "scheduled", "created"],
        ["f3", "scheduled", "created"],
        ["f4", "available", "created"]
      ])
      const row = yield* Store.row("f1")
      assert.deepInclude(row, {
        kind: "mail",
        payload: "\\x00f09f9880",
        schema_version: 3,
        queue: "default",
        partition_key: "shop",
        priority: -5,
        max_attempts: 9,
        crash_limit: 2,
        scheduled_at_ms: now + 1000,
        timeout_ms: 1,
        queue_timeout_ms: 2,
        deadline_at_ms: now + 1500,
        retention_ms: 0,
        fence: 0,
        attempt: 0
      })
      assert.deepStrictEqual(row?.["tags"], ["NULL", "a,\"\\", "b", "{}"])
      assert.strictEqual((yield* Store.row("f3"))?.["deadline_at_ms"], now + 5)
      yield* Time.resume()
    }))

  it.effect("the fingerprint computed by the database is the one of every implementation", () =>
    Effect.gen(function*() {
      const payloads = [
        new Uint8Array(0),
        Store.bytes("x"),
        new Uint8Array(255),
        new Uint8Array(70_000),
        new Uint8Array(1_000_000)
      ]
      const kinds = ["a", "k".repeat(128)]
      for (const [k, kind] of kinds.entries()) {
        for (const [p, payload] of payloads.entries()) {
          yield* Store.enqueue({ id: `fp-${k}-${p}`, kind, payload })
          assert.deepStrictEqual(yield* Store.columns(`fp-${k}-${p}`, "fingerprint"), [
            yield* fingerprint(kind, payload)
          ])
        }
      }
      yield* Store.enqueue({ id: "fp-own", fingerprint: "mine" })
      assert.deepStrictEqual(yield* Store.columns("fp-own", "fingerprint"), ["mine"])
      const sql = yield* PgClient.PgClient
      const [empty] = yield* sql`SELECT headgate.content_fingerprint('', '') AS value`
      assert.deepStrictEqual(empty, { value: "af5570f5a1810b7af78caf4bc70a660f" })
    }))

  it.effect("the same id with the same content is there already, with other content it is a conflict", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "same" })
      assert.deepInclude((yield* Store.enqueue({ id: "same" }))[0], { status: "existing", state: "available" })
      for (
        const other of [{ kind: "wave" }, { payload: Store.bytes("grace") }, { queue: "elsewhere" }, {
          fingerprint: "x"
        }]
      ) {
        const refused = yield* Effect.flip(Store.enqueue({ id: "new" }, { id: "same", ...other }))
        assert.deepInclude(refused, { _tag: "IdConflict", id: "same", index: 1 })
      }
      assert.deepStrictEqual(yield* exists("new"), [])
    }))

  it.effect("a batch in which some jobs are there already stores the others", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "part-1" })
      const answers = yield* Store.enqueue({ id: "part-0" }, { id: "part-1" }, { id: "part-2" })
      assert.deepStrictEqual(answers.map(({ status }) => status), ["created", "existing", "created"])
    }))

  it.effect("a held unique key refuses the batch, names the holder, and is free again after its end", () =>
    Effect.gen(function*() {
      yield* Store.enqueue({ id: "u1", queue: "u", uniqueKey: key("u") })
      const refused = yield* Effect.flip(Store.enqueue({ id: "u0" }, { id: "u2", uniqueKey: key("u") }))
      assert.deepInclude(refused, { _tag: "Duplicate", existingId: "u1", index: 1, replaced: false })
      assert.deepStrictEqual(yield* exists("u0", "u2"), [])
      yield* Store.enqueue({ id: "u3", kind: "wave", uniqueKey: key("u") })
      const [claim] = yield* Store.admit({ queues: ["u"] })
      yield* Store.settle(claim!.lease, Outcome.success)
      yield* Store.enqueue({ id: "u2", uniqueKey: key("u") })
      // Sent again, it is the same finished job, whoever holds the key now.
      assert.deepInclude((yield* Store.enqueue({ id: "u1", queue: "u", uniqueKey: key("u") }))[0], {
        status: "existing"
      })
    }))

  it.effect("two jobs of one batch with one unique key are refused", () =>
    Effect.gen(function*() {
      const refused = yield* Effect.flip(
        Store.enqueue({ id: "t1", uniqueKey: key("twin") }, { id: "t2", uniqueKey: key("twin") })
      )
      assert.deepInclude(refused, { _tag: "Duplicate", existingId: "t1", index: 1 })
      assert.deepStrictEqual(yield* exists("t1", "t2"), [])
    }))

  it.effect("text that the database cannot hold is refused by name, whichever field it is in", () =>
    Effect.gen(function*() {
      for (const bad of ["a\u0000", "a\ud800"]) {
        for (
          const input of [
            { id: bad },
            { id: "nul", kind: bad },
            { id: "nul", queue: bad },
            { id: "nul", partitionKey: bad },
            { id: "nul", fingerprint: bad },
            { id: "nul", tags: [bad] },
            { id: "nul", headers: { a: bad } },
            { id: "nul", headers: { [bad]: "a" } }
          ]
        ) {
          assert.strictEqual((yield* Effect.flip(Store.enqueue(input)))._tag, "Invalid", JSON.stringify(input))
        }
      }
      assert.deepStrictEqual(yield* exists("nul"), [])
    }))

  it.effect("a batch has 1 to 10,000 jobs", () =>
    Effect.gen(function*() {
      assert.strictEqual((yield* Effect.flip(Store.enqueue()))._tag, "Invalid")
      const jobs = Array.from({ length: 10_001 }, (_, n) => ({ id: `big-${n}`, payload: Store.bytes("1") }))
      assert.strictEqual((yield* Effect.flip(Store.enqueue(...jobs)))._tag, "Invalid")
      assert.strictEqual((yield* Store.enqueue(...jobs.slice(1))).length, 10_000)
    }))
})

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue in a transaction", (it) => {
  it.effect("what is rolled back was never there, what is committed is", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Effect.exit(sql.withTransaction(Effect.andThen(Store.enqueue({ id: "back" }), Effect.fail("no"))))
      yield* sql.withTransaction(Store.enqueue({ id: "forth" }))
      assert.deepStrictEqual(yield* exists("back", "forth"), ["forth"])
    }))

  it.effect("a refusal leaves the transaction usable and nothing of the batch in it", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Store.enqueue({ id: "there", uniqueKey: key("there") })
      yield* sql.withTransaction(Effect.gen(function*() {
        const conflict = yield* Effect.flip(Store.enqueue({ id: "x1" }, { id: "there", kind: "wave" }, { id: "x2" }))
        assert.strictEqual(conflict._tag, "IdConflict")
        const duplicate = yield* Effect.flip(Store.enqueue({ id: "x1" }, { id: "x2", uniqueKey: key("there") }))
        assert.strictEqual(duplicate._tag, "Duplicate")
        yield* Store.enqueue({ id: "x3" })
      }))
      assert.deepStrictEqual(yield* exists("x1", "x2", "x3"), ["x3"])
    }))

  it.effect("a transaction of another client, or of the store's own connections, is refused", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const foreign = yield* Effect.provide(
        Effect.gen(function*() {
          const sql = yield* SqlClient.SqlClient
          const producer = yield* Producer
          return yield* Effect.flip(sql.withTransaction(producer.enqueue([Store.job({ id: "foreign" })])))
        }),
        PgClient.layer({ url: Redacted.make(url), maxConnections: 1 })
      )
      assert.strictEqual(foreign._tag, "ForeignTransaction")
      const control = yield* Effect.provide(
        Effect.gen(function*() {
          const { client } = yield* ControlSql
          return yield* Effect.flip(client.withTransaction(Store.enqueue({ id: "foreign" })))
        }),
        ControlSqlLayer.layer
      )
      assert.strictEqual(control._tag, "ForeignTransaction")
      assert.deepStrictEqual(yield* exists("foreign"), [])
    }))
})

layer(Store.layer, { excludeTestServices: true })("Producer.enqueue beside rivals", (it) => {
  /** Opens a transaction that enqueues `a` and ends it when told; four others enqueue meanwhile. */
  const race = Effect.fnUntraced(function*(
    name: string,
    others: (n: number) => { readonly id: string },
    end: "commit" | "rollback"
  ) {
    const sql = yield* PgClient.PgClient
    const stored = yield* Deferred.make<void>()
    const go = yield* Deferred.make<void>()
    const first = yield* Effect.forkChild(Effect.exit(sql.withTransaction(Effect.gen(function*() {
      yield* Store.enqueue({ id: `${name}-a`, uniqueKey: key(name) })
      yield* Deferred.succeed(stored, undefined)
      yield* Deferred.await(go)
      if (end === "rollback") return yield* Effect.fail("rolled back")
    }))))
    yield* Deferred.await(stored)
    const rivals = yield* Effect.forkChild(Effect.all(
      [0, 1, 2, 3].map((n) => Effect.result(Store.enqueue({ uniqueKey: key(name), ...others(n) }))),
      { concurrency: 4 }
    ))
    yield* waiting(4)
    yield* Deferred.succeed(go, undefined)
    yield* Fiber.join(first)
    return yield* Fiber.join(rivals)
  })

  it.effect("when the holder of a unique key rolls back, exactly one rival gets in", () =>
    Effect.gen(function*() {
      const rivals = yield* race("rb", (n) => ({ id: `rb-${n}` }), "rollback")
      const winners = rivals.flatMap((result) => result._tag === "Success" ? result.success : [])
      assert.strictEqual(winners.length, 1)
      for (const result of rivals) {
        if (result._tag === "Failure") {
          assert.deepInclude(result.failure, { _tag: "Duplicate", existingId: winners[0]!.id })
        }
      }
    }))

  it.effect("when the holder of a unique key commits, every rival is told its id", () =>
    Effect.gen(function*() {
      const rivals = yield* race("co", (n) => ({ id: `co-${n}` }), "commit")
      for (const result of rivals) {
        assert(result._tag === "Failure")
        assert.deepInclude(result.failure, { _tag: "Duplicate", existingId: "co-a" })
      }
    }))

  it.effect("rivals with the same id are one job, created by exactly one of them", () =>
    Effect.gen(function*() {
      const committed = yield* race("ic", () => ({ id: "ic-a" }), "commit")
      assert.deepStrictEqual(committed.map((result) => result._tag === "Success" && result.success[0]?.status), [
        "existing",
        "existing",
        "existing",
        "existing"
      ])
      const rolledBack = yield* race("ir", () => ({ id: "ir-a" }), "rollback")
      const statuses = rolledBack.map((result) => result._tag === "Success" && result.success[0]?.status).sort()
      assert.deepStrictEqual(statuses, ["created", "existing", "existing", "existing"])
    }))

  it.effect("in a repeatable read transaction a newer rival is a retryable failure, never a second job or none", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const hasSnapshot = yield* Deferred.make<void>()
      const go = yield* Deferred.make<void>()
      yield* Store.enqueue({ id: "lane" })
      const caller = yield* Effect.forkChild(
        sql.withTransaction(Effect.gen(function*() {
          yield* sql`SELECT count(*) FROM headgate.job`
          yield* Deferred.succeed(hasSnapshot, undefined)
          yield* Deferred.await(go)
          return yield* Effect.flip(Store.enqueue({ id: "rr-1", uniqueKey: key("rr") }))
        })).pipe(
          Effect.provideService(SqlClient.BeginTransaction, "BEGIN ISOLATION LEVEL REPEATABLE READ"),
          Effect.exit
        )
      )
      yield* Deferred.await(hasSnapshot)
      yield* Store.enqueue({ id: "rr-0", uniqueKey: key("rr") })
      yield* Deferred.succeed(go, undefined)
      const exit = yield* Fiber.join(caller)
      // The failed statement ended the caller's transaction, so its commit is one more failure.
      const text = JSON.stringify(exit)
      assert.isTrue(text.includes("StoreUnavailable") || text.includes("COMMIT rolled back"), text)
      assert.deepStrictEqual(yield* exists("rr-0", "rr-1"), ["rr-0"])
    }))

  it.effect("in a repeatable read transaction a lane made meanwhile is a retryable failure as well", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const attempt = sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT count(*) FROM headgate.job`
        return yield* Effect.result(Store.enqueue({ id: "new-lane", queue: "new-lane" }))
      })).pipe(Effect.provideService(SqlClient.BeginTransaction, "BEGIN ISOLATION LEVEL REPEATABLE READ"))
      const first = yield* attempt
      assert(first._tag === "Failure")
      assert.strictEqual(first.failure._tag, "StoreUnavailable")
      assert.strictEqual((yield* attempt)._tag, "Success")
      assert.deepStrictEqual(yield* exists("new-lane"), ["new-lane"])
    }))

  it.effect("under serializable isolation by default a rival is waited for and named all the same", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const { url } = yield* TestDatabase.TestDatabase
      const client = PgClient.layer({
        url: Redacted.make(url),
        startupParameters: { default_transaction_isolation: "serializable" },
        transformResultNames: (name) => name.toUpperCase()
      })
      const store = yield* Layer.build(PostgresStore.layerWith({ listen: false }).pipe(Layer.provide(client)))
      const enqueue = (id: string) => Effect.provide(Store.enqueue({ id, uniqueKey: key("serial") }), store)
      assert.strictEqual((yield* enqueue("serial-0"))[0]?.status, "created")
      yield* sql`DELETE FROM headgate.job WHERE id = 'serial-0'`
      const stored = yield* Deferred.make<void>()
      const go = yield* Deferred.make<void>()
      const holder = yield* Effect.forkChild(sql.withTransaction(
        Store.enqueue({ id: "serial-1", uniqueKey: key("serial") }).pipe(
          Effect.andThen(Deferred.succeed(stored, undefined)),
          Effect.andThen(Deferred.await(go))
        )
      ))
      yield* Deferred.await(stored)
      const rival = yield* Effect.forkChild(Effect.flip(enqueue("serial-2")))
      yield* waiting(1)
      yield* Deferred.succeed(go, undefined)
      yield* Fiber.join(holder)
      assert.deepInclude(yield* Fiber.join(rival), { _tag: "Duplicate", existingId: "serial-1" })
    }).pipe(Effect.scoped))
})

layer(Store.layerBehindNetwork, { excludeTestServices: true })("Producer.enqueue behind a failing network", (it) => {
  it.effect("a batch whose answer is lost is created once, and said to be created", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      yield* Store.enqueue({ id: "older" })
      yield* Time.advance("1 minute")
      for (const moment of ["before", "after"] as const) {
        const cases = [[["older"], ["existing"]], [[`new-${moment}`, `lost-${moment}`], [
          "created",
          "created"
        ]]] as const
        for (const [ids, expected] of cases) {
          const { fired } = yield* network.dropOn({ sql: /insert into .*job /is, moment })
          const jobs = ids.map((id) => ({ id, ...(id === "older" ? {} : { uniqueKey: key(id) }) }))
          const answers = yield* Store.enqueue(...jobs)
          yield* fired
          assert.deepStrictEqual(answers.map(({ status }) => status), [...expected], moment)
        }
      }
      assert.deepStrictEqual(yield* exists("lost-after", "lost-before"), ["lost-after", "lost-before"])
    }))

  it.effect("a field the store cannot honour is refused, and nothing of the batch is stored", () =>
    Effect.gen(function*() {
      const refusal = yield* Effect.flip(
        Store.enqueue({ id: "honoured" }, { id: "window", uniqueKey: key("w"), uniqueWindowMs: 1000 })
      )
      assert.deepInclude(refusal, { _tag: "Invalid", field: "uniqueWindowMs" })
      assert.deepStrictEqual(yield* exists("honoured", "window"), [])
    }))

  it.effect("a database out of reach is a typed failure", () =>
    Effect.gen(function*() {
      const network = yield* Store.Network
      yield* network.cut
      assert.strictEqual((yield* Effect.flip(Store.enqueue({ id: "unreached" })))._tag, "StoreUnavailable")
      yield* network.heal
      assert.strictEqual((yield* Store.enqueue({ id: "unreached" }))[0]?.status, "created")
    }))
})
