/**
 * What is left of a primary after a failover. Connections that were made before it go on to reach the old one, which
 * answers that it is read-only. They are ended, so that their pools make new ones: those reach whoever is the primary by
 * then. A connection that was made just now is kept: its address leads to a read-only server still.
 */
import type * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import type * as Scope from "effect/Scope"

export const READ_ONLY = "25006"

/** Looks through the connections of the pools each time it is told that one of them is read-only. Ends with the scope. */
export const watch = Effect.fnUntraced(function*(
  clients: ReadonlyArray<PgClient.PgClient>
): Effect.fn.Return<() => void, never, Scope.Scope> {
  const told = Latch.makeUnsafe(false)
  const look = Effect.forEach(clients, lookThrough, { concurrency: "unbounded", discard: true })
  const round = told.await.pipe(
    Effect.andThen(Effect.sync(() => told.closeUnsafe())),
    Effect.andThen(look),
    Effect.andThen(pause)
  )
  yield* Effect.forkScoped(Effect.withTracerEnabled(Effect.forever(round), false))
  return () => void told.openUnsafe()
})

/** Idle connections are lent in turn: as many looks as the pool may have connections reach each of them. */
const lookThrough = (client: PgClient.PgClient): Effect.Effect<void> => {
  const { config }: { readonly config: PgClient.PgPoolConfig } = client
  const look = Effect.ignoreCause(Effect.timeoutOption(client.unsafe(endSql).unprepared, patienceMillis))
  return Effect.forEach(Array.from({ length: config.maxConnections ?? 10 }), () => look, { discard: true })
}

/** Where it ends its own connection, there is no answer but the loss of it. */
const endSql = `select pg_catalog.pg_terminate_backend(a.pid) from pg_catalog.pg_stat_get_activity(
    pg_catalog.pg_backend_pid()) a
  where pg_catalog.current_setting('transaction_read_only') = 'on'
    and a.backend_start < pg_catalog.clock_timestamp() - interval '1 second'`

const patienceMillis = 2000

const pause = Effect.callback<void>((resume) => {
  const timer = setTimeout(() => resume(Effect.void), 1000)
  return Effect.sync(() => clearTimeout(timer))
})
