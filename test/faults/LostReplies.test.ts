import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Duplicate, Job, JobId, Output, Producer, Retry, StoreUnavailable, Task } from "@headgate/core"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Cause, Context, Effect, Exit, Layer, Schema } from "effect"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

class Declined extends Schema.TaggedError<Declined>()("Declined", {}) {}

/** What a job does, and by which of its doors. */
const How = Schema.Literals(["plain", "slow", "fail once", "step", "sleep", "once", "output", "complete"])

const Errand = Task.make("errand", {
  payload: How,
  success: Schema.String,
  error: Declined,
  steps: ["first", "second"],
  retry: Retry.fixed("10 millis"),
  queue: "errands"
})

/** Outlasts a stall of a busy machine. */
const SLOW_LEASE_MS = 12_000

/** Each start and each body leaves a row. */
const ErrandHandler = Errand.toLayer(Effect.fn(function*(how) {
  const sql = yield* PgClient.PgClient
  const { attempt, id } = yield* Job.facts
  const note = (what: string) => Effect.asVoid(sql`INSERT INTO note VALUES (${id}, ${what})`)
  yield* note("start")
  switch (how) {
    case "plain":
      return "done"
    case "slow":
      yield* Effect.sleep(SLOW_LEASE_MS / 3)
      return "done"
    case "fail once":
      return attempt === 0 ? yield* new Declined() : "done"
    case "step":
      yield* Errand.step("first", note("body"))
      yield* Errand.step("second", note("body"))
      return "done"
    case "sleep":
      yield* Errand.sleep("first", "100 millis")
      return "done"
    case "once":
      yield* Errand.once("first", note("body"))
      return "done"
    case "output":
      yield* Output.put(Schema.String, "made")
      return "done"
    case "complete":
      return yield* Errand.completeWith(Effect.as(note("body"), "done"))
  }
}))

interface Network {
  readonly proxy: TcpProxy.TcpProxy
  /** Reaches the database through the proxy. */
  readonly site: Site.Site
}

class Behind extends Context.Service<Behind, Network>()("test/Behind") {}

const behind = Layer.effect(
  Behind,
  Effect.gen(function*() {
    const sql = yield* PgClient.PgClient
    yield* sql`CREATE TABLE note (job_id text NOT NULL, what text NOT NULL)`
    const { url } = yield* TestDatabase.TestDatabase
    const proxy = yield* TcpProxy.make(url)
    return { proxy, site: yield* Site.open(proxy.url) }
  })
)

/** The server runs the next statement that matches, once, and its answer is lost with the connection. */
const loseAnswerTo = (sql: RegExp) =>
  Effect.flatMap(
    Behind,
    ({ proxy }) => Effect.map(proxy.dropOn({ sql, moment: "after" }), ({ fired }) => Effect.timeout(fired, "1 minute"))
  )

const rows = Effect.fnUntraced(function*(id: string, what: string) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM note WHERE job_id = ${id} AND what = ${what}`
  return row?.n
})

const stored = Effect.fnUntraced(function*(queue: string) {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ id: string }>`SELECT id FROM headgate.job WHERE queue = ${queue} ORDER BY id`
})

const insertJob = /insert into "headgate"\.job/

const live = behind.pipe(Layer.provideMerge(TestDatabase.layer))

layer(live, { excludeTestServices: true })("An enqueue whose answer is lost", (it) => {
  it.effect("answers the one job it has stored, as created", () =>
    Effect.gen(function*() {
      const { site } = yield* Behind
      yield* site.use(Errand.enqueue("plain", { queue: "known" }))
      const fired = yield* loseAnswerTo(insertJob)
      const envelope = yield* Errand.envelope("plain", { queue: "single" })
      const [answer] = yield* site.use(Producer.use((producer) => producer.enqueue([envelope])))
      yield* fired
      assert.deepStrictEqual(answer, { id: JobId.make(envelope.id), state: "available", status: "created" })
      assert.deepStrictEqual(yield* stored("single"), [{ id: envelope.id }])
    }))

  it.effect("answers all jobs of the batch it has stored, each once", () =>
    Effect.gen(function*() {
      const { site } = yield* Behind
      yield* site.use(Errand.enqueue("plain", { queue: "batch-known" }))
      const envelopes = yield* Effect.forEach(Array.from({ length: 100 }), () =>
        Errand.envelope("plain", { queue: "batch" }))
      const fired = yield* loseAnswerTo(insertJob)
      const answers = yield* site.use(Producer.use((producer) =>
        producer.enqueue(envelopes)
      ))
      yield* fired
      assert.deepStrictEqual(answers.map(({ id }) => id), envelopes.map(({ id }) => JobId.make(id)))
      assert.deepStrictEqual([...new Set(answers.map(({ status }) => status))], ["created"])
      assert.lengthOf(yield* stored("batch"), 100)
    }))

  it.effect("is no duplicate of itself under its unique key, and the next one is", () =>
    Effect.gen(function*() {
      const { site } = yield* Behind
      const options = { queue: "unique", uniqueKey: "k" }
      const envelope = yield* Errand.envelope("plain", options)
      const fired = yield* loseAnswerTo(insertJob)
      const [answer] = yield* site.use(Producer.use((producer) => producer.enqueue([envelope])))
      yield* fired
      assert.deepInclude({ ...answer }, { id: JobId.make(envelope.id), status: "created" })
      const refused = yield* Effect.flip(site.use(Errand.enqueue("plain", options)))
      assert.deepStrictEqual(refused, new Duplicate({ existingId: envelope.id, replaced: false, index: 0 }))
      assert.lengthOf(yield* stored("unique"), 1)
    }))

  it.effect("fails as a whole when it was part of the caller's transaction, which can be repeated", () =>
    Effect.gen(function*() {
      const { site } = yield* Behind
      yield* site.use(Errand.enqueue("plain", { queue: "inside-known" }))
      const order = Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        yield* sql`INSERT INTO note VALUES ('inside', 'order')`
        return yield* Errand.enqueue("plain", { queue: "inside" })
      })
      const fired = yield* loseAnswerTo(insertJob)
      const exit = yield* Effect.exit(site.use(inTransaction(order)))
      yield* fired
      // The caller's rollback fails as well, and its client reports that behind the first failure.
      assert.instanceOf(Exit.isFailure(exit) ? Cause.squash(exit.cause) : undefined, StoreUnavailable)
      assert.lengthOf(yield* stored("inside"), 0)
      assert.strictEqual(yield* rows("inside", "order"), 0)
      yield* site.use(inTransaction(order))
      assert.lengthOf(yield* stored("inside"), 1)
      assert.strictEqual(yield* rows("inside", "order"), 1)
    }))

  it.effect("is as unsure as the caller's own COMMIT; repeated under the same id it is stored once", () =>
    Effect.gen(function*() {
      const { site } = yield* Behind
      yield* site.use(Errand.enqueue("plain", { queue: "commit-known" }))
      const order = Errand.enqueue("plain", { queue: "commit", id: "order-1" })
      const fired = yield* loseAnswerTo(/^COMMIT/i)
      const failure = yield* Effect.flip(site.use(inTransaction(order)))
      yield* fired
      assert.strictEqual(failure._tag, "SqlError")
      assert.strictEqual(yield* site.use(inTransaction(order)), JobId.make("order-1"))
      assert.lengthOf(yield* stored("commit"), 1)
    }))
})

const inTransaction = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.flatMap(PgClient.PgClient, (sql) => sql.withTransaction(effect))

layer(live, { excludeTestServices: true })("A worker that an answer never reaches", (it) => {
  /** A repeated call is told what the job has become, which may be due again by then. */
  const waiting: ReadonlySet<string> = new Set(["retryable", "scheduled", "available"])

  /** Runs one job through a worker of its own, while the answer to one statement is lost. */
  const run = Effect.fnUntraced(
    function*(how: typeof How.Type, lost: RegExp, options: { readonly retention?: number } = {}) {
      const { site } = yield* Behind
      // One that is slow is renewed. A job that sleeps has no lease any more: no beat is to say so before the call is
      // answered when it is repeated.
      const lease = how === "slow" ? SLOW_LEASE_MS : "1 minute"
      const worker = yield* site.work(ErrandHandler, { lease, pollInterval: "30 seconds", concurrency: 4 })
      // Everything it does to start has been done once, and it asks for work next when it hears of some.
      const warm = yield* site.use(Errand.enqueue("plain"))
      yield* site.use(Watch.reaches(warm, "completed"))
      yield* Effect.sleep("200 millis")
      const fired = yield* loseAnswerTo(lost)
      const id = yield* site.use(Errand.enqueue(how, options))
      yield* fired
      yield* site.use(Watch.reaches(id, options.retention === 0 ? "deleted" : "completed"))
      yield* Watch.untilTrue(
        () => worker.told("JobEnded", id).some((event) => "state" in event && !waiting.has(event.state)),
        "the end to be told"
      )
      const ends = worker.told("JobEnded", id).map((event) =>
        "outcome" in event ? `${event.outcome} ${waiting.has(event.state) ? "waiting" : event.state}` : ""
      )
      const lostLeases = worker.told("LeaseLost").length
      const counters = options.retention === 0 ? undefined : yield* site.use(Watch.job(id))
      yield* worker.stop
      return {
        ends,
        lostLeases,
        starts: yield* rows(id, "start"),
        bodies: yield* rows(id, "body"),
        fence: counters === undefined ? undefined : Number(counters.fence),
        attempt: counters?.attempt,
        crashAttempt: counters?.crashAttempt
      }
    }
  )

  const clean = { lostLeases: 0, fence: 1, attempt: 0, crashAttempt: 0 }

  it.effect("hands back what it was given without knowing, and the job starts once, uncharged", () =>
    Effect.gen(function*() {
      const ran = yield* run("plain", /"headgate"\.admit\w*\(/)
      assert.deepStrictEqual(ran, { ...clean, fence: 2, ends: ["success completed"], starts: 1, bodies: 0 })
    }).pipe(Effect.scoped))

  it.effect("reports a success that was stored, with its result", () =>
    Effect.gen(function*() {
      const ran = yield* run("plain", /"headgate"\.succeed\(/)
      assert.deepStrictEqual(ran, { ...clean, ends: ["success completed"], starts: 1, bodies: 0 })
    }).pipe(Effect.scoped))

  it.effect("reports a success that deleted its job", () =>
    Effect.gen(function*() {
      const ran = yield* run("plain", /"headgate"\.succeed\(/, { retention: 0 })
      assert.deepInclude(ran, { lostLeases: 0, ends: ["success deleted"], starts: 1 })
    }).pipe(Effect.scoped))

  it.effect("counts a failure that was stored once", () =>
    Effect.gen(function*() {
      const ran = yield* run("fail once", /"headgate"\.settle\(/)
      assert.deepStrictEqual(ran, {
        ...clean,
        fence: 2,
        attempt: 1,
        ends: ["retry waiting", "success completed"],
        starts: 2,
        bodies: 0
      })
    }).pipe(Effect.scoped))

  it.effect("does not lose a lease whose renewal was stored", () =>
    Effect.gen(function*() {
      const ran = yield* run("slow", /"headgate"\.renew\(/)
      assert.deepStrictEqual(ran, { ...clean, ends: ["success completed"], starts: 1, bodies: 0 })
    }).pipe(Effect.scoped))

  it.effect("runs a step's body once, whichever of its writes was answered by nobody", () =>
    Effect.gen(function*() {
      const write = /with held as \([\s\S]*insert into "headgate"\.step/
      assert.deepStrictEqual(yield* run("step", write), { ...clean, ends: ["success completed"], starts: 1, bodies: 2 })
    }).pipe(Effect.scoped))

  it.effect("sleeps once", () =>
    Effect.gen(function*() {
      const ran = yield* run("sleep", /with wake as/)
      assert.deepStrictEqual(ran, {
        ...clean,
        fence: 2,
        ends: ["snooze waiting", "success completed"],
        starts: 2,
        bodies: 0
      })
    }).pipe(Effect.scoped))

  it.effect("stores an output again rather than not at all", () =>
    Effect.gen(function*() {
      const ran = yield* run("output", /insert into "headgate"\.output/)
      assert.deepStrictEqual(ran, { ...clean, ends: ["success completed"], starts: 1, bodies: 0 })
    }).pipe(Effect.scoped))

  it.effect("does not repeat a once whose COMMIT was done", () =>
    Effect.gen(function*() {
      const ran = yield* run("once", /^COMMIT/i)
      assert.deepStrictEqual(ran, { ...clean, ends: ["success completed"], starts: 1, bodies: 1 })
    }).pipe(Effect.scoped))

  it.effect("does not repeat a completion whose COMMIT was done, whether the job is kept or deleted", () =>
    Effect.gen(function*() {
      const kept = yield* run("complete", /^COMMIT/i)
      assert.deepStrictEqual(kept, { ...clean, ends: ["success completed"], starts: 1, bodies: 1 })
      const deleted = yield* run("complete", /^COMMIT/i, { retention: 0 })
      assert.deepInclude(deleted, { lostLeases: 0, ends: ["success deleted"], starts: 1, bodies: 1 })
    }).pipe(Effect.scoped))
})
