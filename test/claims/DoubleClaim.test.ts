import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import { Gate } from "@headgate/core/Gate"
import { type Fence, type JobId, LeaseId, WorkerId } from "@headgate/core/Ids"
import { Task } from "@headgate/core/Task"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Context, Effect, Layer, Redacted, Schema } from "effect"

const CLAIMERS = 8
const JOBS = 5000
const ROUNDS = 20

/** Two kinds stand in two lanes, so that the gate has to share its capacity out. */
const tasks = ["claimed:a", "claimed:b"].map((kind) => Task.make(kind, { payload: Schema.Int, queue: "claimed" }))

interface Taken {
  readonly claimer: number
  readonly jobId: JobId
  readonly fence: Fence
}

/** A gate over connections of its own, as another process has them. */
const ownGate = Effect.gen(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const store = PostgresStore.layerWith({ listen: false, migrate: false, controlConnections: 1 }).pipe(
    Layer.provide(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))
  )
  return Context.get(yield* Layer.buildWithScope(store, yield* Effect.scope), Gate)
})

/** Claims until nothing is left, each call with a lease id and a capacity of its own. */
const claimAll = Effect.fnUntraced(function*(gate: Gate["Service"], claimer: number) {
  const taken: Array<Taken> = []
  for (let call = 0;; call++) {
    const { claims } = yield* gate.admit({
      worker: WorkerId.make(`claimer-${claimer}`),
      leaseId: LeaseId.make(crypto.randomUUID()),
      queues: ["claimed"],
      kinds: tasks.map(({ kind }) => ({ kind, version: 1 })),
      capacity: 1 + (claimer * 17 + call * 29) % 60,
      leaseMs: 600_000,
      quantum: undefined
    })
    if (claims.length === 0) return taken
    for (const { lease } of claims) taken.push({ claimer, jobId: lease.jobId, fence: lease.fence })
  }
})

/** As an operator's hand back would leave them, all at once. */
const handAllBack = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  yield* sql`UPDATE headgate.job SET state = 'available', lease_id = NULL, lease_expires_at_ms = NULL, worker = NULL`
})

/** What is wrong with the claims of one round, and with the rows they left. */
const faultsOf = Effect.fnUntraced(function*(round: number, claims: ReadonlyArray<Taken>) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ id: JobId; fence: bigint; state: string; worker: string }>`
    SELECT id, fence, state, worker FROM headgate.job`
  const claimers = new Map(claims.map(({ claimer, jobId }) => [jobId, claimer]))
  return {
    claimedTwice: claims.length - claimers.size,
    notClaimed: rows.filter(({ id }) => !claimers.has(id)).length,
    wrongFence: claims.filter(({ fence }) => fence !== round).length,
    wrongRow: rows.filter(({ fence, id, state, worker }) =>
      state !== "running" || Number(fence) !== round || worker !== `claimer-${claimers.get(id)}`
    ).length
  }
})

it.live("8 claimers at once claim each of 5,000 jobs once, in each of 20 rounds", () =>
  Effect.gen(function*() {
    const gates = yield* Effect.all(Array.from({ length: CLAIMERS }, () => ownGate))
    const numbers = Array.from({ length: JOBS / tasks.length }, (_, n) => n)
    for (const task of tasks) yield* task.enqueueAll(numbers, (n) => ({ priority: n % 3 }))
    const contended = new Set<number>()
    const startedAt = performance.now()
    for (let round = 1; round <= ROUNDS; round++) {
      const taken = yield* Effect.all(gates.map(claimAll), { concurrency: "unbounded" })
      const faults = yield* faultsOf(round, taken.flat())
      assert.deepStrictEqual(faults, { claimedTwice: 0, notClaimed: 0, wrongFence: 0, wrongRow: 0 }, `round ${round}`)
      if (taken.every((claims) => claims.length > 0)) contended.add(round)
      yield* handAllBack
    }
    console.log(
      `double claim: ${ROUNDS} rounds of ${JOBS} jobs by ${CLAIMERS} claimers in ` +
        `${Math.round(performance.now() - startedAt)} ms; all of them had a share in ${contended.size} rounds`
    )
    assert.isAbove(contended.size, ROUNDS / 2, "rounds in which all claimers took part")
  }).pipe(
    Effect.provide(PostgresStore.layerWith({ listen: false }).pipe(Layer.provideMerge(TestDatabase.layer))),
    Effect.scoped
  ), 240_000)
