/** The whole store over a fresh database, and jobs that come to be as they do in life: enqueued, then admitted. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Envelope, type EnvelopeInput } from "@headgate/core/Envelope"
import { Gate } from "@headgate/core/Gate"
import { LeaseId, type LeaseRef, WorkerId } from "@headgate/core/Ids"
import { Leases } from "@headgate/core/Leases"
import type { Outcome } from "@headgate/core/Outcome"
import { Producer } from "@headgate/core/Producer"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Context, Effect, Fiber, Layer, Redacted } from "effect"
import * as Crypto from "node:crypto"

export const layer = PostgresStore.layerWith({ listen: false }).pipe(Layer.provideMerge(TestDatabase.layer))

/** The network between the store and its database. */
export class Network extends Context.Service<Network, TcpProxy.TcpProxy>()("test/Network") {}

const network = Layer.effect(Network, Effect.flatMap(TestDatabase.TestDatabase, ({ url }) => TcpProxy.make(url)))

/** As `layer`, behind a network that can fail. */
export const layerBehindNetwork = PostgresStore.layerWith({ listen: false }).pipe(
  Layer.provideMerge(
    Layer.unwrap(Effect.map(Network, ({ url }) => PgClient.layer({ url: Redacted.make(url), maxConnections: 4 })))
  ),
  Layer.provideMerge(network),
  Layer.provideMerge(TestDatabase.layer)
)

export const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)

export const job = (input: Partial<EnvelopeInput> & { readonly id: string }): Envelope =>
  Envelope.make({ kind: "greet", payload: bytes("ada"), retentionMs: 60_000, ...input })

export const enqueue = (...jobs: ReadonlyArray<Partial<EnvelopeInput> & { readonly id: string }>) =>
  Producer.use((producer) => producer.enqueue(jobs.map(job)))

export const leaseId = (): LeaseId => LeaseId.make(Crypto.randomUUID())

export interface Ask {
  readonly worker?: string
  readonly queues?: ReadonlyArray<string>
  readonly kinds?: Readonly<Record<string, number>>
  readonly capacity?: number
  readonly leaseMs?: number
  readonly leaseId?: LeaseId
}

export const request = (ask: Ask = {}) => ({
  worker: WorkerId.make(ask.worker ?? "w1"),
  leaseId: ask.leaseId ?? leaseId(),
  queues: ask.queues ?? ["default"],
  kinds: Object.entries(ask.kinds ?? { greet: 1 }).map(([kind, version]) => ({ kind, version })),
  capacity: ask.capacity ?? 10,
  leaseMs: ask.leaseMs ?? 30_000,
  quantum: undefined
})

export const admit = (ask?: Ask) => Effect.map(Gate.use((gate) => gate.admit(request(ask))), ({ claims }) => claims)

/** Enqueues one job, of a fingerprint of its own, and claims it. */
export const running = Effect.fnUntraced(function*(input: Partial<EnvelopeInput> & { readonly id: string }, ask?: Ask) {
  const queue = `q-${input.id}`
  yield* enqueue({ queue, fingerprint: input.id.replaceAll(/[^!-~]/g, "_"), ...input })
  const [claim] = yield* admit({ queues: [input.queue ?? queue], ...ask })
  if (claim === undefined) return yield* Effect.die(new Error(`${input.id} was not admitted`))
  return claim.lease
})

export const settle = (lease: LeaseRef, outcome: Outcome) =>
  Effect.map(Leases.use((leases) => leases.settle([{ lease, outcome }])), ([answer]) => answer)

/** The row of a job as JSON; undefined when it is gone. */
export const row = Effect.fnUntraced(function*(id: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<
    { job: Record<string, unknown> }
  >`SELECT to_jsonb(j) AS job FROM headgate.job j WHERE j.id = ${id}`
  return rows[0]?.job
})

/** The given columns of a job. */
export const columns = Effect.fnUntraced(function*(id: string, ...names: ReadonlyArray<string>) {
  const found = yield* row(id)
  return names.map((name) => found?.[name])
})

export const stateOf = (id: string) => Effect.map(row(id), (found) => found?.["state"] ?? "deleted")

/** How many rows a table of the store holds for a job. */
export const count = Effect.fnUntraced(
  function*(table: "step" | "attempt" | "progress" | "output" | "effect", id: string) {
    const sql = yield* PgClient.PgClient
    const rows = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.${
      sql.literal(table)
    } WHERE job_id = ${id}`
    return rows[0]?.n ?? 0
  }
)

/** Ends the job's lease as a sweep does: another attempt may own it from now on. */
export const loseLease = Effect.fnUntraced(function*(lease: LeaseRef) {
  const sql = yield* PgClient.PgClient
  yield* sql`UPDATE headgate.job SET lease_expires_at_ms = 0 WHERE id = ${lease.jobId}`
  yield* sql`SELECT * FROM headgate.reclaim_expired(1000)`
})

/** Runs `write` while a sweep has taken the jobs away but has not committed yet; the answer comes when it has. */
export const duringReclaim = Effect.fnUntraced(function*<A, E, R>(
  leases: ReadonlyArray<LeaseRef>,
  write: Effect.Effect<A, E, R>
) {
  const sql = yield* PgClient.PgClient
  const ids = leases.map(({ jobId }) => jobId)
  yield* sql`UPDATE headgate.job SET lease_expires_at_ms = 0 WHERE id = ANY(${ids})`
  const context = yield* Effect.context<R>()
  const fiber = yield* sql.withTransaction(Effect.gen(function*() {
    yield* sql`SELECT * FROM headgate.reclaim_expired(1000)`
    // Outside the transaction.
    const fiber = yield* Effect.forkDetach(Effect.provideContext(write, context))
    yield* untilLocked
    return fiber
  }))
  return yield* Fiber.join(fiber)
})

/** Until a statement of the store waits for a row. */
export const untilLocked = Effect.flatMap(PgClient.PgClient, (sql) =>
  Effect.repeat(
    sql<{ n: number }>`SELECT pg_stat_clear_snapshot()::text, (SELECT count(*)::int FROM pg_stat_activity
      WHERE datname = current_database() AND application_name = 'headgate' AND wait_event_type = 'Lock') AS n`,
    { until: ([row]) => row?.n === 1 }
  ).pipe(Effect.timeout("1 minute")))
