/**
 * How producers and handlers write their part of the account: on connections of their own that go straight to the
 * server, and again until it has been written. What is said before a deed may not have happened; what is said after one
 * was answered has.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Config from "effect/Config"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import type { SqlError } from "effect/sql/SqlError"
import { Job } from "headgate"
import { type Order, rulesOf } from "./Orders.ts"

/** Before: `start`, `body`, `fail`, `die`, `finish`. After: `durable`, of a step that answered. */
export type What = "start" | "body" | "fail" | "die" | "finish" | "durable"

export interface Said {
  readonly step?: string
  readonly nonce?: string
}

/** The kind of what was no fault of ours. */
export const SLOW = "machine too slow"

export class Audit extends Context.Service<Audit, {
  readonly say: (what: What, said?: Said) => Effect.Effect<void, never, Job>
  readonly intend: (orders: ReadonlyArray<Order>) => Effect.Effect<void>
  readonly answered: (jobId: string, said: string, holder?: string) => Effect.Effect<void>
  readonly cancelling: (jobId: string, said?: string) => Effect.Effect<void>
  /** Since then, of `performance.now()`, the machine has kept this process waiting, or all of them. */
  readonly slow: (who: "this process" | "all", from: number) => Effect.Effect<void>
  /** Jobs that are not finished: producers wait while there are too many. */
  readonly backlog: Effect.Effect<number>
}>()("soak/Audit") {
  /** Over the client that there is. */
  static readonly layerClient = Layer.effect(
    this,
    Effect.map(PgClient.PgClient, (sql) =>
      Audit.of({
        say: Effect.fnUntraced(
          function*(what, { nonce = null, step = null }: Partial<Record<keyof Said, string | null>> = {}) {
            const { fence, id } = yield* Job.facts
            const token = crypto.randomUUID()
            yield* persistently(sql`INSERT INTO audit.word (token, job_id, fence, what, step, nonce)
            VALUES (${token}, ${id}, ${fence}, ${what}, ${step}, ${nonce}) ON CONFLICT DO NOTHING`)
          }
        ),
        intend: (orders) =>
          Effect.forEach(
            orders,
            (order) => persistently(sql`INSERT INTO audit.intent ${sql.insert(toRow(order))} ON CONFLICT DO NOTHING`),
            { discard: true }
          ),
        answered: (jobId, said, holder = "") =>
          persistently(sql`INSERT INTO audit.answer (job_id, said, holder) VALUES (${jobId}, ${said}, ${holder})`),
        cancelling: (jobId, said) =>
          persistently(sql`INSERT INTO audit.cancelling (job_id, said) VALUES (${jobId}, ${said ?? null})`),
        slow: (who, from) => {
          const to = performance.now()
          return persistently(Effect.suspend(() => {
            const sinceMs = performance.now() - to
            return sql`INSERT INTO audit.fault (kind, pids, began_ms, ended_ms) VALUES (${SLOW},
              nullif(${who === "all" ? "" : `{${process.pid}}`}, '')::text::int[],
              audit.now_ms() - ${Math.ceil(sinceMs + to - from)}::int, audit.now_ms() - ${Math.floor(sinceMs)}::int)`
          }))
        },
        backlog: Effect.map(
          again(sql<{ n: number }>`SELECT count(*)::int AS n FROM headgate.job
            WHERE state IN ('available', 'scheduled', 'retryable', 'running')`),
          ([row]) => row?.n ?? 0
        )
      }))
  )

  static readonly layer = this.layerClient.pipe(
    Layer.provide(PgClient.layerConfig({
      url: Config.Redacted("AUDIT_URL"),
      applicationName: Config.succeed("soak audit"),
      maxConnections: Config.succeed(3)
    }))
  )
}

/** The server comes back within a minute, whatever is done to it. */
export const again = <A>(query: Effect.Effect<A, SqlError>): Effect.Effect<A> =>
  Effect.orDie(Effect.retry(query, { schedule: Schedule.spaced("50 millis"), times: 1200 }))

const persistently = <A>(query: Effect.Effect<A, SqlError>): Effect.Effect<void> => Effect.asVoid(again(query))

const toRow = (order: Order) => {
  const { crashLimit, maxAttempts } = rulesOf(order)
  return {
    job_id: order.id,
    kind: order.kind,
    failures: order.plan.failures,
    deaths: order.plan.deaths,
    max_attempts: maxAttempts,
    crash_limit: crashLimit,
    is_kept: order.isKept,
    unique_key: order.uniqueKey ?? null,
    family: order.family ?? null
  }
}
