/**
 * What a job costs the server, by stage: enqueued, claimed and ended through the store, a batch at a time, one after
 * another. Every stage is done for all jobs of a round before the next begins, so that each can be metered by itself.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Gate } from "@headgate/core/Gate"
import { LeaseId, WorkerId } from "@headgate/core/Ids"
import { Leases, type Settlement } from "@headgate/core/Leases"
import { success } from "@headgate/core/Outcome"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import * as Redacted from "effect/Redacted"
import { randomUUID } from "node:crypto"
import { median } from "../Measurement.ts"
import { type Database, one } from "../Server.ts"
import type { GrowthTask } from "./Tasks.ts"

export const stages = ["enqueue", "claim", "end"] as const
export type Stage = typeof stages[number]

/** A job's share, medians over the rounds. */
export interface StageCost {
  readonly cpuMicros: number
  readonly walBytes: number
  readonly commits: number
  /** Pages looked at, from memory or not. */
  readonly buffers: number
}

export type CycleCost = Readonly<Record<Stage, StageCost>>

export interface CycleOptions {
  readonly task: GrowthTask
  /** In one call of each stage. */
  readonly batch: number
  /** In a round. */
  readonly jobs: number
  readonly rounds: number
}

const worker = WorkerId.make("growth")
const leaseMs = 600_000

export type Session = ManagedRuntime.ManagedRuntime<Layer.Success<ReturnType<typeof storeAt>>, unknown>

const storeAt = (url: string) =>
  PostgresStore.layerWith({ listen: false, controlConnections: 1 }).pipe(
    Layer.provideMerge(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))
  )

export const open = (url: string): Session => ManagedRuntime.make(storeAt(url))

/** One round more than is counted: the first fills caches and makes plans. */
export const measure = async (
  session: Session,
  database: Database,
  options: CycleOptions
): Promise<CycleCost> => {
  const rounds: Array<CycleCost> = []
  for (let round = 0; round <= options.rounds; round++) {
    const cost = await roundOf(session, database, options)
    if (round > 0) rounds.push(cost)
  }
  const middle = (stage: Stage): StageCost => {
    const of = (pick: (cost: StageCost) => number) => median(rounds.map((round) => pick(round[stage])))
    return {
      cpuMicros: of((cost) => cost.cpuMicros),
      walBytes: of((cost) => cost.walBytes),
      commits: of((cost) => cost.commits),
      buffers: of((cost) => cost.buffers)
    }
  }
  return { enqueue: middle("enqueue"), claim: middle("claim"), end: middle("end") }
}

const roundOf = async (
  session: Session,
  database: Database,
  { batch, jobs, task }: CycleOptions
): Promise<CycleCost> => {
  const calls = jobs / batch
  let next = 0
  const enqueue = Effect.suspend(() => task.enqueueAll(Array.from({ length: batch }, () => task.payloadOf(next++))))
  const held: Array<ReadonlyArray<Settlement>> = []
  const claim = Effect.gen(function*() {
    const gate = yield* Gate
    const settlements: Array<Settlement> = []
    while (settlements.length < batch) {
      const { claims, more } = yield* gate.admit({
        worker,
        leaseId: LeaseId.make(randomUUID()),
        queues: ["default"],
        kinds: [{ kind: task.kind, version: 1 }],
        capacity: batch - settlements.length,
        leaseMs,
        quantum: undefined
      })
      settlements.push(...claims.map(({ lease }) => ({ lease, outcome: success })))
      if (claims.length === 0 && !more) throw new Error(`${settlements.length} claims instead of ${batch}`)
    }
    held.push(settlements)
  })
  const end = Effect.suspend(() => Leases.use((leases) => leases.settle(held.shift() ?? [])))
  const stage = (call: Effect.Effect<unknown, unknown, Layer.Success<ReturnType<typeof storeAt>>>) =>
    metered(database, jobs, () => session.runPromise(Effect.repeat(call, { times: calls - 1 })))
  return { enqueue: await stage(enqueue), claim: await stage(claim), end: await stage(end) }
}

const metered = async (database: Database, jobs: number, run: () => Promise<unknown>): Promise<StageCost> => {
  const { client } = database
  await client.query("select pg_stat_statements_reset()")
  const cost = await database.meter()
  await run()
  // A process accounts for its time when it goes to sleep.
  await new Promise((resolve) => setTimeout(resolve, 2))
  const { commits, cpuMicros, walBytes } = await cost()
  const buffers = Number(
    await one(
      client,
      `select coalesce(sum(shared_blks_hit + shared_blks_read), 0) from pg_stat_statements
      where dbid = (select oid from pg_database where datname = current_database()) and query like '%headgate%'`
    )
  )
  return {
    cpuMicros: (cpuMicros ?? Number.NaN) / jobs,
    walBytes: walBytes / jobs,
    commits: commits / jobs,
    buffers: buffers / jobs
  }
}
