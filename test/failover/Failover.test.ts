import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import { type Claim, Control, Gate, Job, JobId, LeaseId, Leases, Task, WorkerId } from "@headgate/core"
import * as Outcome from "@headgate/core/Outcome"
import { Effect, Fiber, Option, Schedule, Schema } from "effect"
import * as Figure from "../faults/fixtures/Figure.ts"
import * as Site from "../faults/fixtures/Site.ts"
import * as Watch from "../faults/fixtures/Watch.ts"
import * as Pair from "./fixtures/Pair.ts"

/** Outlasts a stall of a busy machine. */
const LEASE_MS = 10_000
/** From when the address has moved. */
const BACK_MS = 10_000

const Order = Task.make("order", { payload: Schema.Void, steps: ["bill"], queue: "orders" })
const Parcel = Task.make("parcel", { payload: Schema.Void, queue: "parcels" })

/** Writes by itself and in a `once` step, both on the application's pool. */
const OrderHandler = Order.toLayer(Effect.fn(function*() {
  const { id } = yield* Job.facts
  const sql = yield* PgClient.PgClient
  yield* sql`INSERT INTO work VALUES (${id}, 'started')`
  yield* Order.once("bill", sql`INSERT INTO work VALUES (${id}, 'billed')`)
}))

const prepare = (url: string) =>
  Effect.scoped(Effect.gen(function*() {
    const site = yield* Site.open(url, { settings: { migrate: true } })
    yield* site.use(PgClient.PgClient.use((sql) => sql`CREATE TABLE work (id text NOT NULL, what text NOT NULL)`))
  }))

/** Orders one after another, each repeated until it is stored; what went wrong meanwhile, and when each was stored. */
const producer = Effect.fnUntraced(function*(site: Site.Site) {
  const stored = new Map<string, number>()
  const faults = new Set<string>()
  const one = (id: string): Effect.Effect<void> =>
    Effect.matchEffect(site.use(Order.enqueue(undefined, { id })), {
      onFailure: (error) => {
        faults.add(error._tag)
        return Effect.delay(one(id), 20)
      },
      onSuccess: () => Effect.sync(() => void stored.set(id, performance.now()))
    })
  let n = 0
  const fiber = yield* Effect.forkScoped(Effect.forever(Effect.suspend(() => Effect.delay(one(`order ${++n}`), 10))))
  return { stored, faults, stop: Fiber.interrupt(fiber) }
})

const claim = (worker: string, leaseMs: number) =>
  Effect.map(
    Gate.use((gate) =>
      gate.admit({
        worker: WorkerId.make(worker),
        leaseId: LeaseId.make(crypto.randomUUID()),
        queues: ["parcels"],
        kinds: [{ kind: "parcel", version: 1 }],
        capacity: 1,
        leaseMs,
        quantum: undefined
      })
    ),
    ({ claims }): Claim | undefined => claims[0]
  )

interface Completed {
  readonly id: string
  readonly lease: string
}

const completed = (sql: PgClient.PgClient) =>
  sql<Completed>`SELECT id, last_lease_id || ' ' || fence AS lease FROM headgate.job
    WHERE queue = 'orders' AND state = 'completed'`

/** Until the store has answered, as every caller has to in an outage. */
const persistently = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.timeout(Effect.retry(effect, Schedule.spaced(50)), "1 minute")

it.live(
  "after a failover that lost commits work goes on within 10 seconds, no lease is accepted twice, and only what was lost runs again",
  () =>
    Effect.gen(function*() {
      const pair = yield* Pair.start(prepare)
      const site = yield* Site.open(pair.url)
      // Without word it would look for work after the test is over.
      const options = { lease: LEASE_MS, pollInterval: "10 minutes", concurrency: 10 } as const
      const workers = [yield* site.work(OrderHandler, options), yield* site.work(OrderHandler, options)]
      const load = yield* producer(site)
      yield* site.use(Parcel.enqueue(undefined, { id: "parcel" }))
      // One that the standby knows, and that is surely completed once it hears no more.
      yield* site.use(Order.enqueue(undefined, { id: "held", pending: true }))
      const promote = site.use(Control.use((control) => control.promote(JobId.make("held"))))
      const isHeldDone = (sql: PgClient.PgClient) =>
        sql<{ yes: boolean }>`SELECT state = 'completed' AS yes FROM headgate.job WHERE id = 'held'`
      yield* Watch.untilRow(
        pair.standby.sql<{ yes: boolean }>`SELECT count(*) FILTER (WHERE state = 'completed') > 20
          AND count(*) FILTER (WHERE id = 'held') = 1 AS yes FROM headgate.job`,
        "the standby to hear of the work"
      )

      yield* pair.splitOff
      const before = yield* completed(pair.standby.sql)
      const known = new Set(before.map(({ id }) => id))
      const lost = yield* site.use(claim("slow", 600_000))
      yield* promote
      yield* Watch.untilRow(isHeldDone(pair.primary.sql), "an order to be completed unheard")
      yield* Watch.untilTrue(() => load.stored.size > known.size + 50, "work that the standby does not hear of")
      yield* pair.failOver
      const movedAt = performance.now()

      // Every part finds the new primary: producers, claims, announcements, handlers' own writes and settlements.
      const isAfter = Effect.map(completed(pair.standby.sql), (rows) =>
        Option.fromUndefinedOr(rows.find(({ id }) => (load.stored.get(id) ?? 0) > movedAt)))
      yield* Watch.until(isAfter, "a new order to be completed")
      yield* persistently(site.use(PgClient.PgClient.use((sql) =>
        sql`INSERT INTO work VALUES ('', 'by hand')`
      )))
      const last = yield* persistently(site.use(Order.enqueue(undefined)))
      yield* Watch.untilRow(
        pair.standby.sql<{ yes: boolean }>`SELECT state = 'completed' AS yes FROM headgate.job WHERE id = ${last}`,
        "the last order to be completed"
      )
      Figure.within("a failover's address moved to all at work", performance.now() - movedAt, BACK_MS)
      assert.deepStrictEqual([...load.faults], ["StoreUnavailable"])
      yield* load.stop

      // The claim that was lost has the same fence as the one that follows it.
      assert.isDefined(lost)
      const next = yield* persistently(site.use(claim("quick", 600_000)))
      assert.strictEqual(next?.lease.fence, lost?.lease.fence)
      const settle = ({ lease }: Claim) =>
        persistently(Effect.repeat(
          site.use(Leases.use((leases) => leases.settle([{ lease, outcome: Outcome.success }]))),
          // Looked up on a connection that is not left yet.
          { until: ([answer]) => answer?._tag !== "Busy" }
        ))
      const renewal = yield* persistently(
        site.use(Leases.use((leases) => leases.renew([lost!.lease], LEASE_MS)))
      )
      assert.deepStrictEqual(renewal.lost.map(({ jobId }) => jobId), [lost!.lease.jobId])
      assert.deepStrictEqual((yield* settle(lost!)).map(({ _tag }) => _tag), ["Rejected"])
      assert.deepStrictEqual((yield* settle(next!)).map(({ _tag }) => _tag), ["Applied"])

      // All that the new primary knows of is done.
      yield* persistently(promote)
      yield* Watch.until(
        Effect.map(pair.standby.sql`SELECT id FROM headgate.job WHERE state <> 'completed'`, (rows) =>
          rows.length === 0 ? Option.some(true) : Option.none()),
        "all jobs to be completed"
      )
      const after = yield* completed(pair.standby.sql)
      const lostTail = (yield* completed(pair.primary.sql)).filter(({ id }) =>
        !known.has(id)
      )
      const onOld = new Map(lostTail.map(({ id, lease }) => [id, lease]))
      const twice = after.filter(({ id }) => onOld.has(id))
      assert.include(twice.map(({ id }) => id), "held")
      assert.deepStrictEqual(twice.filter(({ id, lease }) => onOld.get(id) === lease), [])
      const starts = new Map<string, number>()
      for (const worker of workers) {
        for (const event of worker.told("JobStarted")) {
          if ("jobId" in event) starts.set(event.jobId, (starts.get(event.jobId) ?? 0) + 1)
        }
      }
      assert.deepStrictEqual(before.filter(({ id }) => starts.get(id) !== 1), [])
      const billed = yield* pair.standby.sql`SELECT id FROM work WHERE what = 'billed' GROUP BY id HAVING count(*) > 1`
      assert.deepStrictEqual(billed, [])
      const charged = yield* pair.standby.sql`SELECT id FROM headgate.job WHERE attempt > 0`
      assert.deepStrictEqual(charged, [])
      for (const worker of workers) {
        yield* Watch.until(
          Effect.map(worker.health, ({ status }) => status === "working" ? Option.some(status) : Option.none()),
          "the worker to be well"
        )
      }
    }).pipe(Effect.scoped),
  240_000
)
