/**
 * Tells listening workers that a queue has new work. Called where jobs become available; heard by `Wakeups`.
 *
 * Announcements are coalesced: the first goes out at once, then one statement every few milliseconds carries whatever
 * queues have come up. One that is lost costs latency, since workers poll as well. The payload is a hash of the queue's
 * name: it carries nothing a user wrote.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"
import { PostgresSettings } from "./Settings.ts"

export class Announcer extends Context.Service<Announcer, {
  /** Returns at once and never fails. Call it when the work is committed. */
  readonly announce: (queues: ReadonlyArray<string>) => Effect.Effect<void>
  /** Which of the queues a transaction that begins now may announce by itself, on `channelOf`: all of them or none. */
  readonly carry: (queues: ReadonlyArray<string>) => ReadonlyArray<string>
  /** A transaction that began then, by `performance.now`, has announced them and is committed. */
  readonly carried: (queues: ReadonlyArray<string>, beganAt: number) => Effect.Effect<void>
}>()("@headgate/postgres/Announcer") {}

export const silent: Announcer["Service"] = {
  announce: () => Effect.void,
  carry: () => [],
  carried: () => Effect.void
}

/** At most one announcement of a queue in this time. */
const restMillis = 5
/** What came up in that time waits a little longer for a transaction that may carry it. */
const graceMillis = 2
const farewellMillis = 250

export const channelOf = (schema: string): string => `${schema}_wake`

const make = Effect.gen(function*() {
  const { schema, statement } = yield* ControlSql
  const { listen } = yield* PostgresSettings
  if (!listen) return silent
  const notify = statement("Announcer.announce", "select pg_notify($1, hashtext(queue)::text) from unnest($2) queue")
  const waiting = new Map<string, { readonly since: number; readonly dueAt: number }>()
  let sending: ReadonlyArray<string> = []
  let restsUntil = 0
  const latch = Latch.makeUnsafe(false)
  const send = Effect.suspend(() => {
    restsUntil = performance.now() + restMillis
    sending = [...waiting.keys()]
    waiting.clear()
    return Effect.ignoreCause(notify([channelOf(schema), Bind.texts(sending)]))
  }).pipe(Effect.andThen(Effect.sync(() => sending = [])))
  const loop = Effect.forever(Effect.suspend(() => {
    if (waiting.size === 0) {
      latch.closeUnsafe()
      return latch.await
    }
    let left = Infinity
    for (const { dueAt } of waiting.values()) left = Math.min(left, dueAt - performance.now())
    return left > 0 ? Effect.sleep(Math.ceil(left)) : send
  }))
  const wait = (queues: ReadonlyArray<string>) => {
    const since = performance.now()
    const dueAt = since < restsUntil ? restsUntil + graceMillis : since
    // The latest counts: only what committed before a transaction began is announced by it.
    for (const queue of queues) waiting.set(queue, { since, dueAt: waiting.get(queue)?.dueAt ?? dueAt })
    if (waiting.size > 0) latch.openUnsafe()
  }
  // Runs after the loop has ended: a program that enqueues and exits is heard as well.
  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      wait(sending)
      return waiting.size === 0 ? Effect.void : Effect.asVoid(Effect.timeoutOption(send, farewellMillis))
    })
  )
  yield* Effect.forkScoped(loop)
  return Announcer.of({
    announce: (queues) => queues.length === 0 ? Effect.void : Effect.sync(() => wait(queues)),
    carry: (queues) => {
      const now = performance.now()
      if (queues.length === 0 || now < restsUntil) return []
      restsUntil = now + restMillis
      return queues
    },
    carried: (queues, beganAt) =>
      Effect.sync(() => {
        for (const queue of queues) {
          const wait = waiting.get(queue)
          if (wait !== undefined && wait.since <= beganAt) waiting.delete(queue)
        }
      })
  })
})

export const layer: Layer.Layer<Announcer, never, ControlSql> = Layer.effect(Announcer, make)
