import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Duties, Gate, LeaseId, Quarantine, Task, WorkerId } from "@headgate/core"
import { Time } from "@headgate/testkit"
import { Effect, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Struct({ name: Schema.String })
const poison = { name: "poison" }
const STRIKE_LIMIT = 3

const many = (count: number) => Array.from({ length: count }, (_, n) => n)

const strikes = Effect.gen(function*() {
  const { items } = yield* Quarantine.use((quarantine) => quarantine.list())
  return items.map(({ closedAtMs, strikes }) => [strikes, closedAtMs !== undefined])
})

const crashedJobs = Effect.fnUntraced(function*(queue: string) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.job
    WHERE queue = ${queue} AND crash_attempt > 0`
  return row?.n ?? 0
})

const counted = (queue: string, wanted: Readonly<Record<string, number>>) =>
  Workers.until(
    Effect.map(Workers.counts(queue), (counts) =>
      Object.entries(wanted).every(([state, n]) => counts[state] === n) ? Option.some(counts) : Option.none()),
    `queue ${queue} to hold ${JSON.stringify(wanted)}`,
    60_000
  )

/** What becomes of the handler is up to the payload. */
const taskOf = (kind: string) => {
  const task = Task.make(kind, { payload, crashLimit: 10 })
  let deaths = 0
  const handler = task.toLayer(({ name }) =>
    name === poison.name ? Effect.suspend(() => Effect.die(`death ${++deaths}`)) : Effect.void
  )
  return { task, handler, deaths: () => deaths }
}

layer(Workers.layer, { excludeTestServices: true })("Poison that dies in its handler", (it) => {
  it.effect("costs no more crashes than the limit, others finish, and after a release the next crash closes it again", () =>
    Effect.gen(function*() {
      const { deaths, handler, task } = taskOf("dies")
      yield* task.enqueueAll(many(200).map(() => poison), { queue: "dies" })
      yield* task.enqueueAll(many(50).map((n) => ({ name: `good ${n}` })), { queue: "dies" })
      const worker = yield* Workers.start(handler, { queues: ["dies"], concurrency: 1, prefetch: 0 })
      yield* counted("dies", { completed: 50, quarantined: 200 })
      assert.strictEqual(deaths(), STRIKE_LIMIT)
      assert.deepStrictEqual(yield* strikes, [[STRIKE_LIMIT, true]])
      assert.deepInclude(worker.told("FingerprintClosed")[0], { kind: "dies" })
      const told = worker.events.flatMap((event) =>
        event._tag === "JobsTurnedAway" ? event.jobs.map(({ jobId }) => jobId) : []
      )
      assert.strictEqual(told.length + worker.told("JobQuarantined").length, 200)

      const { items: [entry] } = yield* Quarantine.use((quarantine) => quarantine.list())
      const release = (limit?: number) =>
        Quarantine.use((quarantine) => quarantine.release(entry!.fingerprint, { limit }))
      assert.deepStrictEqual(yield* release(10), { released: 10, keyTaken: 0 })
      yield* counted("dies", { completed: 50, quarantined: 200 })
      assert.strictEqual(deaths(), STRIKE_LIMIT + 1)
      assert.strictEqual(worker.told("FingerprintClosed").length, 2)
      assert.deepStrictEqual(yield* release(), { released: 200, keyTaken: 0 })
      yield* counted("dies", { completed: 50, quarantined: 200 })
      assert.strictEqual(deaths(), STRIKE_LIMIT + 2)
    }))

  it.effect("costs beyond that at most what was already started, however much was claimed ahead", () =>
    Effect.gen(function*() {
      const { deaths, handler, task } = taskOf("dies:together")
      const concurrency = 8
      yield* task.enqueueAll(many(200).map(() => poison), { queue: "together" })
      yield* Workers.start(handler, { queues: ["together"], concurrency, prefetch: 100 })
      yield* counted("together", { quarantined: 200 })
      assert.isAtMost(deaths(), STRIKE_LIMIT + concurrency - 1)
    }))
})

layer(Workers.layer, { excludeTestServices: true })("Poison that takes its worker with it", (it) => {
  it.effect("costs no more workers than the limit, and the jobs that died beside it finish", () =>
    Effect.gen(function*() {
      const { deaths, handler, task } = taskOf("kills")
      const queue = "kills"
      yield* task.enqueueAll(many(200).map((n) => n % 4 === 0 ? { name: `good ${n}` } : poison), { queue })
      const claim = (worker: string) =>
        Gate.use((gate) =>
          gate.admit({
            worker: WorkerId.make(worker),
            leaseId: LeaseId.make(crypto.randomUUID()),
            queues: [queue],
            kinds: [{ kind: "kills", version: 1 }],
            capacity: 20,
            leaseMs: 30_000,
            quantum: undefined
          })
        )
      // Each dies with all that it claimed, as long as there is poison among it.
      const sql = yield* PgClient.PgClient
      let workers = 0
      for (const n of many(20)) {
        const { claims } = yield* claim(`dead-${n}`)
        const ids = claims.map(({ lease }) => lease.jobId)
        const [held] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.job
          WHERE id = ANY(${ids}) AND position('poison' in convert_from(payload, 'UTF8')) > 0`
        if (held?.n === 0) break
        workers++
        yield* Time.advance("31 seconds")
        yield* Duties.use((duties) => duties.reclaimExpired(1000))
        yield* Duties.use((duties) => duties.promoteDue(1000))
      }
      assert.strictEqual(workers, STRIKE_LIMIT)
      assert.isAtMost(yield* crashedJobs(queue), STRIKE_LIMIT * 20)
      yield* Time.advance("1 hour")
      yield* Workers.start(handler, { queues: [queue] })
      yield* counted(queue, { completed: 50, quarantined: 150 })
      assert.strictEqual(deaths(), 0)
      assert.deepStrictEqual(yield* strikes, [[STRIKE_LIMIT, true]])
    }))
})
