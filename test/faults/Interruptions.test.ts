import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Fence, Job, JobId, LeaseId, type LeaseRef, Leases, Task } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Cause, Deferred, Effect, Exit, Fiber, Layer, Schema } from "effect"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const STORM_MS = 20_000
/** Renewed in the storm, or lost; a busy machine that stalls for a while loses none. */
const LEASE_MS = 8000
const APP = "interrupted app"
const VICTIMS = 25
const INNOCENT = 15

/** Runs queries of 5 to 15 ms on the application's two connections, and is stopped in the middle of one. */
const Victim = Task.make("victim", {
  payload: Schema.Void,
  queue: "victims",
  retention: 0,
  maxAttempts: 1,
  steps: ["once"]
})
/** Does the same to the end of the storm, and may not notice the others. */
const Innocent = Task.make("innocent", {
  payload: Schema.Void,
  success: Schema.Int,
  queue: "innocents",
  maxAttempts: 1
})

const query = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  yield* sql`SELECT pg_sleep(${0.005 + Math.random() / 100}::float8)`
})

const VictimHandler = Victim.toLayer(() =>
  Effect.gen(function*() {
    const sql = yield* PgClient.PgClient
    const { id } = yield* Job.facts
    yield* Victim.once("once", Effect.andThen(sql`INSERT INTO effect_of VALUES (${id})`, query))
    yield* Effect.forever(query)
  })
)

const innocentHandler = (isOver: () => boolean) =>
  Innocent.toLayer(() =>
    Effect.gen(function*() {
      let n = 0
      for (; !isOver(); n++) yield* query
      return n
    })
  )

/** Makes calls for the length of the storm; answers how many, and the ways they failed. */
const keepCalling = Effect.fnUntraced(function*<E, R>(call: Effect.Effect<boolean, E, R>, isOver: () => boolean) {
  const faults: Array<string> = []
  let calls = 0
  for (; !isOver(); calls++) {
    const exit = yield* Effect.exit(call)
    if (Exit.isFailure(exit)) faults.push(Cause.pretty(exit.cause))
    else if (!exit.value) faults.push("refused")
    yield* Effect.sleep(2)
  }
  return { calls, faults }
})

/** Interrupts calls of the store itself, at random times, until the storm is over. */
const interruptCalls = Effect.fnUntraced(function*(id: string, isOver: () => boolean) {
  while (!isOver()) {
    const fiber = yield* Effect.forkChild(Effect.ignore(Effect.all([Watch.job(id), Watch.attempts(id)])))
    yield* Effect.sleep(Math.random() * 5)
    yield* Fiber.interrupt(fiber)
  }
})

/** Interrupts transactions in the middle of a query, until the storm is over; answers how many. */
const interruptQueries = Effect.fnUntraced(function*(isOver: () => boolean) {
  const sql = yield* PgClient.PgClient
  let count = 0
  for (; !isOver(); count++) {
    const hasBegun = yield* Deferred.make<void>()
    const body = Effect.andThen(Deferred.succeed(hasBegun, undefined), query)
    const fiber = yield* Effect.forkChild(Effect.ignore(sql.withTransaction(body)))
    yield* Deferred.await(hasBegun)
    yield* Effect.sleep(Math.random() * 12)
    yield* Fiber.interrupt(fiber)
  }
  return count
})

const table = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) => sql`CREATE TABLE effect_of (id text NOT NULL)`)
)

layer(table.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "Handlers that are stopped in their queries",
  (it) => {
    it.effect(
      "disturb no other query, renewal or settlement on the connections they shared",
      () =>
        Effect.gen(function*() {
          const { url } = yield* TestDatabase.TestDatabase
          const sql = yield* PgClient.PgClient
          const endsAt = performance.now() + STORM_MS
          const isOver = () => performance.now() > endsAt
          const site = yield* Site.open(url, { pool: 2, name: APP, settings: { controlConnections: 2 } })
          const handlers = Layer.merge(VictimHandler, innocentHandler(isOver))
          const innocents = yield* site.use(Innocent.enqueueAll(Array.from({ length: INNOCENT }, () => undefined)))
          const feed = Effect.gen(function*() {
            while (!isOver()) {
              const timeout = () => ({ timeout: 1 + Math.floor(Math.random() * 250) })
              yield* site.use(Victim.enqueueAll(Array.from({ length: VICTIMS }, () => undefined), timeout))
              yield* Effect.sleep(150)
            }
          })
          const feeding = yield* Effect.forkChild(feed)
          const worker = yield* site.work(handlers, {
            concurrency: VICTIMS + INNOCENT,
            lease: LEASE_MS,
            pollInterval: "50 millis"
          })
          yield* Watch.untilTrue(() => worker.told("JobStarted").length > INNOCENT, "the worker to run")
          const lease = yield* Effect.map(
            sql<{ id: string; lease_id: string; fence: bigint }>`SELECT id, lease_id::text, fence FROM headgate.job
          WHERE queue = 'innocents' AND state = 'running' LIMIT 1`,
            ([row]): LeaseRef => ({
              jobId: JobId.make(row?.id ?? ""),
              leaseId: LeaseId.make(row?.lease_id ?? ""),
              fence: Fence.make(Number(row?.fence))
            })
          )
          const renew = site.use(
            Leases.use((leases) => Effect.map(leases.renew([lease], LEASE_MS), ({ lost }) => lost.length === 0))
          )
          const five = Array.from({ length: 5 })
          const [renewals, , stopped] = yield* Effect.all([
            keepCalling(renew, isOver),
            site.use(Effect.forEach(five, () => interruptCalls(lease.jobId, isOver), { concurrency: 5 })),
            site.use(Effect.forEach(five, () => interruptQueries(isOver), { concurrency: 5 }))
          ], { concurrency: 3 })
          assert.isAbove(stopped.reduce((sum, n) => sum + n, 0), 100)
          yield* Fiber.join(feeding)
          yield* Effect.forEach(innocents, (id) => site.use(Watch.reaches(id, "completed")), { concurrency: INNOCENT })
          yield* worker.stop

          assert.deepStrictEqual(renewals.faults, [])
          assert.isAbove(renewals.calls, 50)
          assert.deepStrictEqual(yield* Watch.tally("innocents"), { "completed, attempt 0, crash_attempt 0": INNOCENT })
          const ends = yield* sql<
            { outcome: string; tag: string; n: number }
          >`SELECT outcome, error_tag AS tag, count(*)::int AS n
        FROM headgate.attempt GROUP BY 1, 2`
          assert.deepStrictEqual(ends.map(({ outcome, tag }) => `${outcome} ${tag}`), ["timed_out TaskTimeout"])
          assert.isAbove(ends[0]?.n ?? 0, 100, "many were stopped")
          const halves = yield* sql`SELECT * FROM effect_of e FULL JOIN headgate.step s ON s.job_id = e.id
        WHERE e.id IS NULL OR s.job_id IS NULL`
          assert.deepStrictEqual(halves, [], "an effect without its record, or a record without its effect")
          assert.deepStrictEqual(worker.told("LeaseLost"), [])
          assert.deepStrictEqual(worker.told("StoreUnreachable"), [])
          yield* Watch.untilRow(
            sql<{ yes: boolean }>`SELECT bool_and(state = 'idle') AS yes FROM pg_stat_activity
          WHERE application_name IN (${APP}, 'headgate') AND datname = current_database()`,
            "all server processes to be idle"
          )
        }).pipe(Effect.scoped),
      240_000
    )
  }
)
