import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Job, Retry, Task } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Cause, Effect, Exit, Latch, Layer, Option, Schema } from "effect"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const POOL = 3
const TIMES = 20
const APP = "hygiene app"

class Declined extends Schema.TaggedError<Declined>()("Declined", {}) {}

/** What goes wrong inside the application's transaction, once for each job. */
const Fault = Schema.Literals([
  "none",
  "killed while idle",
  "killed after BEGIN",
  "killed in a query",
  "user error",
  "user error, then killed",
  "statement timeout",
  "COMMIT by hand",
  "ROLLBACK by hand"
])
type Fault = typeof Fault.Type

/** Ends a server process of the application, from a connection of its own. */
class Killer {
  readonly sql: PgClient.PgClient

  constructor(sql: PgClient.PgClient) {
    this.sql = sql
  }

  readonly kill = (pid: number) =>
    Effect.andThen(
      this.sql`SELECT pg_terminate_backend(${pid}, 60000)`,
      // The client hears of it in its own time.
      Effect.sleep(5)
    )

  readonly idle = Effect.suspend(() =>
    this.sql`SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
      WHERE application_name = ${APP} AND state = 'idle' AND datname = current_database()`
  )
}

/** Writes an effect for `id` and lets the fault happen around it, inside an open transaction. */
const write = Effect.fnUntraced(function*(id: string, fault: Fault, killer: Killer) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`
  const pid = row?.pid ?? 0
  if (fault === "killed after BEGIN") yield* killer.kill(pid)
  yield* sql`INSERT INTO effect_of VALUES (${id})`
  switch (fault) {
    case "killed in a query":
      return yield* Effect.asVoid(sql`SELECT pg_terminate_backend(pg_backend_pid())`)
    case "user error":
      return yield* new Declined()
    case "user error, then killed":
      yield* killer.kill(pid)
      return yield* new Declined()
    case "statement timeout":
      yield* sql`SET LOCAL statement_timeout = 20`
      return yield* Effect.asVoid(sql`SELECT pg_sleep(5)`)
    case "COMMIT by hand":
      return yield* Effect.asVoid(sql.unsafe("COMMIT"))
    case "ROLLBACK by hand":
      return yield* Effect.asVoid(sql.unsafe("ROLLBACK"))
    default:
      return
  }
})

const Careful = Task.make("careful", {
  payload: Fault,
  error: Declined,
  steps: ["write"],
  retry: Retry.fixed("10 millis"),
  queue: "careful"
})

const handlerWith = (killer: Killer) => {
  const struck = new Set<string>()
  return Careful.toLayer(Effect.fn(function*(fault) {
    const { fence, id } = yield* Job.facts
    if (fault === "killed while idle" && fence === 1) yield* Effect.orDie(killer.idle)
    const body = Effect.suspend(() => {
      if (struck.has(id)) return write(id, "none", killer)
      struck.add(id)
      return write(id, fault, killer)
    })
    yield* Careful.once("write", body)
  }))
}

/** The pool after all that: ten ordinary queries, three at a time, and as many transactions open at once as it has clients. */
const isClean = Effect.fnUntraced(function*() {
  const sql = yield* PgClient.PgClient
  const queries = Array.from({ length: 10 }, (_, n) =>
    sql<{ n: number; xid: string | null }>`
    SELECT ${n}::int AS n, pg_current_xact_id_if_assigned()::text AS xid, pg_sleep(0.01)`)
  const answers = yield* Effect.timeout(Effect.all(queries, { concurrency: POOL }), "1 minute")
  assert.deepStrictEqual(answers.map(([row]) => [row?.n, row?.xid]), Array.from({ length: 10 }, (_, n) => [n, null]))
  const areAllOpen = yield* Latch.make()
  let open = 0
  const one = sql.withTransaction(Effect.gen(function*() {
    yield* sql`SELECT 1`
    if (++open === POOL) yield* areAllOpen.open
    yield* areAllOpen.await
  }))
  const all = Effect.all(Array.from({ length: POOL }, () => one), { concurrency: POOL })
  assert.isTrue(Option.isSome(yield* Effect.timeoutOption(all, "1 minute")), "all clients of the pool serve again")
})

const serverSees = Effect.fnUntraced(function*(killer: Killer) {
  const [row] = yield* killer.sql<{ total: number; open: number }>`SELECT count(*)::int AS total,
    (count(*) FILTER (WHERE state LIKE 'idle in transaction%'))::int AS open
    FROM pg_stat_activity WHERE application_name = ${APP} AND datname = current_database()`
  assert.isAtMost(row?.total ?? 99, POOL)
  assert.strictEqual(row?.open, 0)
})

const counts = Effect.fnUntraced(function*(ids: ReadonlyArray<string>) {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ id: string; effects: number; records: number; keys: number }>`SELECT i.id,
      (SELECT count(*)::int FROM effect_of e WHERE e.id = i.id) AS effects,
      (SELECT count(*)::int FROM headgate.step s WHERE s.job_id = i.id) AS records,
      (SELECT count(*)::int FROM headgate.effect k WHERE k.job_id = i.id) AS keys
    FROM unnest(${ids}::text[]) AS i(id) ORDER BY 1`
})

const tables = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) => sql`CREATE TABLE effect_of (id text NOT NULL)`)
)
const live = tables.pipe(Layer.provideMerge(TestDatabase.layer))

/** How attempts ended before the last one: what the body answered counts, a lost connection does not. */
const firstEnds: Readonly<Record<Fault, ReadonlyArray<string>>> = {
  "none": [],
  "killed while idle": [],
  "killed after BEGIN": [],
  "killed in a query": [],
  "user error": ["retry Declined"],
  "user error, then killed": ["retry Declined"],
  "statement timeout": ["retry SqlError"],
  "COMMIT by hand": [],
  "ROLLBACK by hand": []
}

const faults = Fault.literals.filter((fault) => fault !== "none")

layer(live, { excludeTestServices: true })("A once step in trouble", (it) => {
  for (const fault of faults) {
    it.effect(`(${fault}) leaves one effect with its record, and a pool that serves everybody`, () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const killer = new Killer(yield* PgClient.PgClient)
        const site = yield* Site.open(url, { pool: POOL, name: APP })
        const worker = yield* site.work(handlerWith(killer), { concurrency: POOL, pollInterval: "50 millis" })
        const ids = yield* site.use(Careful.enqueueAll(Array.from({ length: TIMES }, () => fault)))
        yield* Effect.forEach(ids, (id) => site.use(Watch.reaches(id, "completed")), { concurrency: TIMES })
        yield* serverSees(killer)
        yield* site.use(isClean())
        for (const row of yield* counts(ids)) {
          assert.deepStrictEqual(row, { id: row.id, effects: 1, records: 1, keys: 1 })
        }
        const sql = yield* PgClient.PgClient
        const ends = yield* sql<
          { end: string }
        >`SELECT DISTINCT outcome || ' ' || error_tag AS end FROM headgate.attempt
          WHERE job_id = ANY(${ids}) AND outcome <> 'released'`
        assert.deepStrictEqual(ends.map(({ end }) => end), [...firstEnds[fault]])
        assert.deepStrictEqual(worker.told("LeaseLost"), [])
      }).pipe(Effect.scoped))
  }
})

/** The first failure of an exit, also where a failing rollback made a defect of it. */
const firstFault = (exit: Exit.Exit<unknown, unknown>): string => {
  if (Exit.isSuccess(exit)) return "none"
  const error: unknown = Cause.squash(exit.cause)
  return typeof error === "object" && error !== null && "_tag" in error ? String(error._tag) : String(error)
}

layer(live, { excludeTestServices: true })("An enqueue inside the application's transaction in trouble", (it) => {
  for (const fault of faults) {
    it.effect(`(${fault}) is there with the transaction's other writes or not at all, and the pool serves everybody`, () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const killer = new Killer(yield* PgClient.PgClient)
        const site = yield* Site.open(url, { pool: POOL, name: APP })
        const ids = Array.from({ length: TIMES }, (_, n) => `${fault} ${n}`)
        yield* site.use(Effect.all(ids.slice(0, POOL).map(() => Careful.enqueue("none")), { concurrency: POOL }))
        const order = (id: string) =>
          Effect.gen(function*() {
            const sql = yield* PgClient.PgClient
            yield* sql.withTransaction(Effect.andThen(Careful.enqueue("none", { id }), write(id, fault, killer)))
          })
        const exits = yield* site.use(Effect.forEach(ids, (id, n) =>
          Effect.andThen(
            fault === "killed while idle" && n % POOL === 0 ? killer.idle : Effect.void,
            Effect.exit(order(id))
          ), { concurrency: POOL }))
        yield* serverSees(killer)
        yield* site.use(isClean())
        const sql = yield* PgClient.PgClient
        const halves = yield* sql`SELECT i.id FROM unnest(${ids}::text[]) AS i(id)
          WHERE EXISTS (SELECT FROM headgate.job j WHERE j.id = i.id) <> EXISTS (SELECT FROM effect_of e WHERE e.id = i.id)`
        assert.deepStrictEqual(halves, [])
        if (fault === "killed while idle") return
        const first = fault.endsWith("by hand") ? "none" : fault.startsWith("user error") ? "Declined" : "SqlError"
        assert.deepStrictEqual([...new Set(exits.map(firstFault))], [first])
      }).pipe(Effect.scoped))
  }
})
