/**
 * Tells listening workers that a queue has new work. Called where jobs become available; heard by `Wakeups`.
 *
 * Announcements are coalesced: the first goes out at once, then one statement every few milliseconds carries whatever
 * queues have come up. After a quiet moment the transaction that makes the work available may announce it itself. One
 * that is lost costs latency, since workers poll as well. The payload is a hash of the queue's name: it carries nothing
 * a user wrote.
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
  /**
   * Whether a transaction that begins now may announce by itself what it commits, on `channelOf`: the first after a quiet
   * moment of this process, which the question itself ends. Such transactions commit one after another, in the whole
   * cluster.
   */
  readonly mayCarry: () => boolean
}>()("@headgate/postgres/Announcer") {}

export const silent: Announcer["Service"] = { announce: () => Effect.void, mayCarry: () => false }

/** At most one announcement of a queue in this time. */
const restMillis = 5
/** So long nothing was to be announced. */
const quietMillis = 10
const farewellMillis = 250

export const channelOf = (schema: string): string => `${schema}_wake`

const make = Effect.gen(function*() {
  const { schema, statement } = yield* ControlSql
  const { listen } = yield* PostgresSettings
  if (!listen) return silent
  const notify = statement("Announcer.announce", "select pg_notify($1, hashtext(queue)::text) from unnest($2) queue")
  const waiting = new Set<string>()
  let sending = new Set<string>()
  const latch = Latch.makeUnsafe(false)
  let lastAt = -Infinity
  const send = Effect.suspend(() => {
    latch.closeUnsafe()
    sending = new Set(waiting)
    waiting.clear()
    return Effect.ignoreCause(notify([channelOf(schema), Bind.texts([...sending])]))
  })
  const loop = latch.await.pipe(
    Effect.andThen(send),
    Effect.andThen(Effect.sync(() => sending.clear())),
    Effect.andThen(Effect.sleep(restMillis)),
    Effect.forever
  )
  // Runs after the loop has ended: a program that enqueues and exits is heard as well.
  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      for (const queue of sending) waiting.add(queue)
      return waiting.size === 0 ? Effect.void : Effect.asVoid(Effect.timeoutOption(send, farewellMillis))
    })
  )
  yield* Effect.forkScoped(loop)
  return Announcer.of({
    announce: (queues) =>
      Effect.sync(() => {
        lastAt = performance.now()
        for (const queue of queues) waiting.add(queue)
        if (waiting.size > 0) latch.openUnsafe()
      }),
    mayCarry: () => {
      const now = performance.now()
      const isQuiet = now - lastAt > quietMillis
      lastAt = now
      return isQuiet
    }
  })
})

export const layer: Layer.Layer<Announcer, never, ControlSql> = Layer.effect(Announcer, make)
