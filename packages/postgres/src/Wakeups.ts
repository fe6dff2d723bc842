/**
 * Hears announcements of new work by LISTEN, on a connection of its own for each subscription. The connection is made
 * again for ever when it is lost, also when it is lost in silence: it is probed, and given up within 15 seconds. One that reaches
 * a read-only server is given up as well.
 *
 * Without LISTEN (settings `listen: false`, or a pooler in transaction mode) a subscription never emits.
 */
import * as PgConnection from "@effect/sql-pg/PgConnection"
import { StoreUnavailable } from "@headgate/core/Refusals"
import { Wakeups } from "@headgate/core/Wakeups"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import { isSqlError, SqlError, UnknownError } from "effect/sql/SqlError"
import * as Stream from "effect/Stream"
import { channelOf } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql, describe } from "./ControlSql.ts"
import { PostgresSettings } from "./Settings.ts"

/** A probe every 4 s, answered within 3 s; a statement without an answer takes up to 5 s more to be given up. */
const probeEveryMillis = 4000
const probeTimeoutMillis = 3000
const firstPauseMillis = 50
const longestPauseMillis = 2000

const make = Effect.gen(function*() {
  const { client, schema } = yield* ControlSql
  const { listen, transactionPooling } = yield* PostgresSettings
  if (!listen) return Wakeups.of({ subscribe: () => Stream.never })
  if (transactionPooling) {
    const told = Effect.as(
      Effect.logInfo("LISTEN does not work through a pooler in transaction mode: new work is found by polling"),
      Stream.never
    )
    return Wakeups.of({ subscribe: () => Stream.unwrap(told) })
  }
  const config: PgConnection.Config = {
    ...client.config,
    applicationName: "headgate listener",
    keepAlive: "5 seconds",
    multiplex: false,
    prepare: false
  }
  const channel = channelOf(schema)
  return Wakeups.of({
    // Wake-ups that were not taken yet are one wake-up.
    subscribe: (queues, noteFault) =>
      Stream.callback((wakeups) => listenForEver(config, channel, queues, wakeups, reportOf(noteFault)), {
        bufferSize: 1,
        strategy: "sliding"
      })
  })
})

export const layer: Layer.Layer<Wakeups, never, ControlSql> = Layer.effect(Wakeups, make)

interface Report {
  readonly lost: (cause: Cause.Cause<SqlError>) => Effect.Effect<void>
  readonly back: Effect.Effect<void>
}

const reportOf = (noteFault: ((fault: StoreUnavailable | undefined) => void) | undefined): Report =>
  noteFault === undefined
    ? {
      lost: (cause) => Effect.logWarning("The listener for new work lost its connection and will connect again", cause),
      back: Effect.logInfo("Listening for new work again")
    }
    : {
      lost: (cause) => Effect.sync(() => noteFault(faultOf(Cause.squash(cause)))),
      back: Effect.sync(() => noteFault(undefined))
    }

const faultOf = (error: unknown): StoreUnavailable =>
  new StoreUnavailable({
    operation: "Wakeups",
    message: isSqlError(error) ? describe(error) : String(error),
    cause: error
  })

/** One report an outage; the pause grows while connecting fails, and starts anew once LISTEN was confirmed. */
const listenForEver = Effect.fnUntraced(function*(
  config: PgConnection.Config,
  channel: string,
  queues: ReadonlyArray<string>,
  wakeups: Queue.Enqueue<void, Cause.Done>,
  report: Report
) {
  let failures = 0
  const confirmed = Effect.suspend(() => {
    const isBack = failures > 0
    failures = 0
    Queue.offerUnsafe(wakeups, undefined)
    return isBack ? report.back : Effect.void
  })
  while (true) {
    const exit = yield* Effect.exit(listenOnce(config, channel, queues, wakeups, confirmed))
    if (failures === 0) yield* report.lost(causeOf(exit))
    const pause = Math.min(longestPauseMillis, firstPauseMillis * 2 ** Math.min(failures++, 10))
    yield* Effect.sleep(pause * (0.5 + Math.random() / 2))
  }
})

const causeOf = (exit: Exit.Exit<never, SqlError>): Cause.Cause<SqlError> =>
  Exit.isFailure(exit) ? exit.cause : Cause.empty

/** Ends only with the connection. */
const listenOnce = (
  config: PgConnection.Config,
  channel: string,
  queues: ReadonlyArray<string>,
  wakeups: Queue.Enqueue<void, Cause.Done>,
  confirmed: Effect.Effect<void>
): Effect.Effect<never, SqlError> =>
  Effect.scoped(Effect.gen(function*() {
    const connection = yield* connect(config)
    yield* lookAlive(connection)
    const hashes = yield* hashesOf(connection, queues)
    const notifications = yield* connection.listen(channel)
    yield* confirmed
    const hear = Effect.map(Queue.take(notifications), ({ payload }) => {
      if (hashes.has(payload)) Queue.offerUnsafe(wakeups, undefined)
    })
    return yield* Effect.raceFirst(Effect.forever(hear), probe(connection))
  }))

/**
 * The pinned view of a new connection, on which statements may run beside LISTEN. The connection is closed before
 * whatever is acquired through it: an UNLISTEN on a silent connection would wait for an answer.
 */
const connect = Effect.fnUntraced(function*(config: PgConnection.Config) {
  const listeners = yield* Scope.make()
  yield* Effect.addFinalizer((exit) => Scope.close(listeners, exit))
  const connection = yield* PgConnection.make(config)
  const pinned = yield* Scope.provide(connection.pin, listeners)
  return {
    query: pinned.query,
    listen: (channel: string) => Scope.provide(pinned.listen(channel), listeners)
  }
})

/** The server's own hash, as `Announcer` sends it. */
const hashesOf = (
  connection: Pick<PgConnection.PgConnection, "query">,
  queues: ReadonlyArray<string>
): Effect.Effect<ReadonlySet<unknown>, SqlError> =>
  Effect.map(
    connection.query("select hashtext(queue)::text as hash from unnest($1) queue", [Bind.texts(queues)]),
    ({ rows }) => new Set(rows.map((row) => row["hash"]))
  )

/** On a server that takes no writes nothing is announced: after a failover it is the old primary, which is left. */
const lookAlive = (connection: Pick<PgConnection.PgConnection, "query">): Effect.Effect<void, SqlError> =>
  connection.query("select pg_catalog.current_setting('transaction_read_only') as read_only").pipe(
    Effect.timeoutOrElse({ duration: probeTimeoutMillis, orElse: () => Effect.fail(gone("does not answer")) }),
    Effect.flatMap(({ rows: [row] }) =>
      row?.["read_only"] === "on" ? Effect.fail(gone("has become read-only")) : Effect.void
    )
  )

const probe = (connection: Pick<PgConnection.PgConnection, "query">): Effect.Effect<never, SqlError> =>
  lookAlive(connection).pipe(Effect.delay(probeEveryMillis), Effect.forever)

const gone = (what: string) =>
  new SqlError({
    reason: new UnknownError({ cause: undefined, message: `the connection ${what}`, operation: "probe" })
  })
