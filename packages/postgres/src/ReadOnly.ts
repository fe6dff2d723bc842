/**
 * What is left of a primary after a failover. Connections that were made before it go on to reach the old one, which
 * answers that it is read-only. They are ended, so that their pools make new ones: those reach whoever is the primary by
 * then. A connection that was made just now is kept for a while: its address leads to a read-only server still.
 */
import type * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import type * as Scope from "effect/Scope"

export const READ_ONLY = "25006"

/** Looks through the connections of the pools from when it is told that one is read-only until it has met none for a while. */
export const watch = Effect.fnUntraced(function*(
  clients: ReadonlyArray<PgClient.PgClient>
): Effect.fn.Return<() => void, never, Scope.Scope> {
  const told = Latch.makeUnsafe(false)
  let quietRounds = 0
  const tell = () => {
    quietRounds = 0
    told.openUnsafe()
  }
  const round = Effect.gen(function*() {
    yield* told.await
    const found = yield* Effect.forEach(clients, lookThrough, { concurrency: "unbounded" })
    quietRounds = found.some((isFound) => isFound) ? 0 : quietRounds + 1
    if (quietRounds >= enoughRounds) told.closeUnsafe()
    yield* pause
  })
  yield* Effect.forkScoped(Effect.withTracerEnabled(Effect.forever(round), false))
  return tell
})

/**
 * Whether it met a read-only one. Idle connections are lent in turn, so that as many looks as the pool may have
 * connections reach each of them; what is in use is met in a later round.
 */
const lookThrough = (client: PgClient.PgClient): Effect.Effect<boolean> => {
  const { config }: { readonly config: PgClient.PgPoolConfig } = client
  const answered = Effect.timeoutOption(client.unsafe(endSql).unprepared, patienceMillis)
  const look = Effect.matchCause(answered, {
    // The loss of the connection that was ended.
    onFailure: () => true,
    onSuccess: (rows) => rows._tag === "None" || rows.value.length > 0
  })
  const looks = Effect.forEach(Array.from({ length: config.maxConnections ?? 10 }), () => look)
  return Effect.map(looks, (found) => found.some((isFound) => isFound))
}

const endSql = `select case when a.backend_start < pg_catalog.clock_timestamp() - interval '1 second'
    then pg_catalog.pg_terminate_backend(a.pid) end
  from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a
  where pg_catalog.current_setting('transaction_read_only') = 'on'`

const patienceMillis = 2000
const enoughRounds = 3

const pause = Effect.callback<void>((resume) => {
  const timer = setTimeout(() => resume(Effect.void), 1000)
  return Effect.sync(() => clearTimeout(timer))
})
