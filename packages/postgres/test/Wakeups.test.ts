import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Duties } from "@headgate/core/Duties"
import { Wakeups as WakeupsContract } from "@headgate/core/Wakeups"
import * as Announcer from "@headgate/postgres/Announcer"
import * as ControlSql from "@headgate/postgres/ControlSql"
import * as DutiesLayer from "@headgate/postgres/Duties"
import { defaults, PostgresSettings } from "@headgate/postgres/Settings"
import * as Wakeups from "@headgate/postgres/Wakeups"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Logger, Option, Queue, Redacted, Schedule, Stream } from "effect"
import * as Jobs from "./Jobs.ts"

const store = Layer.mergeAll(Wakeups.layer, DutiesLayer.layer).pipe(
  Layer.provideMerge(Announcer.layer),
  Layer.provideMerge(ControlSql.layer)
)
const StoreTest = store.pipe(Layer.provideMerge(TestDatabase.layer))

/** Wake-ups for the queues as they come, in the scope. */
const subscribe = Effect.fnUntraced(function*(...queues: ReadonlyArray<string>) {
  const wakeups = yield* WakeupsContract
  const heard = yield* Queue.unbounded<number>()
  const begin = performance.now()
  yield* Effect.forkScoped(
    Stream.runForEach(wakeups.subscribe(queues), () => Queue.offer(heard, performance.now() - begin))
  )
  return {
    next: Effect.timeout(Queue.take(heard), "1 minute"),
    none: Effect.map(Effect.timeoutOption(Queue.take(heard), "150 millis"), Option.isNone),
    count: Effect.map(
      Queue.takeAll(heard).pipe(Effect.timeoutOption("50 millis")),
      (all) => Option.getOrElse(all, () => []).length
    )
  }
})

const announce = (...queues: ReadonlyArray<string>) =>
  Announcer.Announcer.use((announcer) => announcer.announce(queues))

/** Builds a layer of its own: nothing is shared with the layer of the test file. */
const build = Effect.fnUntraced(function*<A, E>(layer: Layer.Layer<A, E>) {
  return yield* Layer.buildWithMemoMap(layer, Layer.makeMemoMapUnsafe(), yield* Effect.scope)
})

/** The same store reached through a proxy that can fail. */
const throughProxy = Effect.gen(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const proxy = yield* TcpProxy.make(url)
  const context = yield* build(
    Layer.merge(Wakeups.layer, Announcer.layer).pipe(
      Layer.provide(ControlSql.layer),
      Layer.provide(PgClient.layer({ url: Redacted.make(proxy.url), maxConnections: 2 }))
    )
  )
  return { proxy, context }
})

layer(StoreTest, { excludeTestServices: true })("Wakeups", (it) => {
  it.effect("a subscription is woken once when it begins to listen, then for its own queues alone", () =>
    Effect.gen(function*() {
      const heard = yield* subscribe("mine", "ours")
      yield* heard.next
      yield* announce("theirs")
      assert.isTrue(yield* heard.none)
      yield* announce("mine")
      yield* heard.next
      yield* announce("ours", "theirs")
      yield* heard.next
      assert.isTrue(yield* heard.none)
    }).pipe(Effect.scoped))

  it.effect("a wake-up says nothing of what a user wrote, however long or strange the queue's name", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const name = `q<ü>${"x".repeat(120)}`
      const heard = yield* subscribe(name)
      yield* heard.next
      const raw = yield* pg.listen("headgate_wake")
      yield* announce(name)
      yield* heard.next
      assert.match((yield* Queue.take(raw)).payload, /^-?\d{1,10}$/)
    }).pipe(Effect.scoped))

  it.effect("a thousand announcements at once are few notifications, and none is lost at the end", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const raw = yield* pg.listen("headgate_wake")
      const begin = performance.now()
      for (let n = 0; n < 1000; n++) {
        yield* announce("burst")
        if (n % 100 === 99) yield* Effect.sleep(2)
      }
      const most = 2 + (performance.now() - begin) / 5
      yield* announce("last")
      const [last] = yield* pg<{ hash: string }>`SELECT hashtext('last')::text AS hash`
      let count = 0
      while ((yield* Effect.timeout(Queue.take(raw), "1 minute")).payload !== last?.hash) count++
      assert.isAtLeast(count, 1)
      assert.isAtMost(count, most)
    }).pipe(Effect.scoped))

  it.effect("promoted jobs wake the workers of their queues", () =>
    Effect.gen(function*() {
      const heard = yield* subscribe("due")
      yield* heard.next
      yield* Jobs.seed({ id: "due", state: "scheduled", queue: "due", scheduled_at_ms: 0 })
      yield* Duties.use((duties) => duties.promoteDue(10))
      yield* heard.next
    }).pipe(Effect.scoped))

  it.effect("a program that announces and ends is heard", () =>
    Effect.gen(function*() {
      const heard = yield* subscribe("short")
      yield* heard.next
      const { url } = yield* TestDatabase.TestDatabase
      const program = build(Announcer.layer.pipe(
        Layer.provide(ControlSql.layer),
        Layer.provide(PgClient.layer({ url: Redacted.make(url) }))
      ))
      yield* Effect.scoped(Effect.flatMap(program, (context) => Effect.provideContext(announce("short"), context)))
      yield* heard.next
    }).pipe(Effect.scoped))

  it.effect("an announcement that cannot be sent disturbs nobody, and later ones are heard", () =>
    Effect.gen(function*() {
      const heard = yield* subscribe("nowhere")
      yield* heard.next
      const { context, proxy } = yield* throughProxy
      const again = Effect.provideContext(Effect.andThen(announce("nowhere"), Effect.sleep(50)), context)
      yield* proxy.cut
      yield* Effect.repeat(again, { times: 2 })
      assert.isTrue(yield* heard.none)
      yield* proxy.heal
      yield* again
      yield* heard.next
    }).pipe(Effect.scoped))

  it.effect("a lost connection is made again, and the first wake-up after it comes unasked", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const heard = yield* subscribe("again")
      yield* heard.next
      for (let n = 0; n < 3; n++) {
        yield* pg`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE application_name = 'headgate listener' AND datname = current_database()`
        yield* heard.next
        assert.isTrue(yield* heard.none)
        yield* announce("again")
        yield* heard.next
      }
    }).pipe(Effect.scoped))

  it.effect("through a long outage there is one warning and no end; afterwards it is heard within two seconds", () =>
    Effect.gen(function*() {
      const { context, proxy } = yield* throughProxy
      const messages: Array<string> = []
      const log = Logger.layer([Logger.make(({ message }) => void messages.push(String(message)))])
      const heard = yield* subscribe("outage").pipe(Effect.provideContext(context), Effect.provide(log))
      yield* heard.next
      yield* proxy.cut
      assert.isTrue(yield* heard.none)
      yield* Effect.sleep("2 seconds")
      const healed = performance.now()
      yield* proxy.heal
      yield* heard.next
      const took = Math.round(performance.now() - healed)
      console.log(`heard after an outage: ${took} ms, of at most 2500 ms on a quiet machine`)
      assert.isBelow(took, 15_000)
      yield* announce("outage")
      yield* heard.next
      assert.strictEqual(
        messages.filter((message) => message.includes("lost its connection")).length,
        1,
        messages.join()
      )
    }).pipe(Effect.scoped))

  it.effect("a connection that went silent is given up within 15 seconds", () =>
    Effect.gen(function*() {
      const { context, proxy } = yield* throughProxy
      const heard = yield* subscribe("silent").pipe(Effect.provideContext(context))
      yield* heard.next
      const silent = performance.now()
      const before = yield* proxy.connections
      yield* proxy.blackhole
      yield* announce("silent")
      // As long as the hole is there the proxy keeps its connections, so it is the listener that gives up.
      yield* Effect.repeat(proxy.connections, {
        until: (count) => count !== before,
        schedule: Schedule.spaced("100 millis")
      })
        .pipe(Effect.timeout("30 seconds"))
      yield* proxy.heal
      yield* heard.next
      const took = Math.round(performance.now() - silent)
      console.log(`a silent connection was given up: ${took} ms, of at most 15000 ms on a quiet machine`)
      assert.isBelow(took, 30_000)
    }).pipe(Effect.scoped))

  it.effect("an ended subscription leaves no connection behind, also a silent one", () =>
    Effect.gen(function*() {
      const { context, proxy } = yield* throughProxy
      const before = yield* proxy.connections
      yield* Effect.scoped(Effect.gen(function*() {
        const heard = yield* subscribe("short-lived").pipe(Effect.provideContext(context))
        yield* heard.next
        yield* proxy.blackhole
      })).pipe(Effect.timeout("30 seconds"))
      yield* proxy.heal
      yield* Effect.repeat(proxy.connections, {
        until: (count) => count === before,
        schedule: Schedule.spaced("20 millis")
      }).pipe(Effect.timeout("30 seconds"))
    }).pipe(Effect.scoped))

  for (const settings of [{ listen: false }, { transactionPooling: true }]) {
    it.effect(`with ${JSON.stringify(settings)} a subscription stays silent and opens no connection`, () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const context = yield* build(store.pipe(
          Layer.provide(PgClient.layer({ url: Redacted.make(url) })),
          Layer.provide(Layer.succeed(PostgresSettings, { ...defaults, ...settings }))
        ))
        const heard = yield* subscribe("quiet").pipe(Effect.provideContext(context))
        assert.isTrue(yield* heard.none)
        const pg = yield* PgClient.PgClient
        assert.lengthOf(
          yield* pg`SELECT FROM pg_stat_activity
          WHERE application_name = 'headgate listener' AND datname = current_database()`,
          0
        )
      }).pipe(Effect.scoped))
  }

  it.effect("with listening off nothing is announced", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const pg = yield* PgClient.PgClient
      const raw = yield* pg.listen("headgate_wake")
      const context = yield* build(Announcer.layer.pipe(
        Layer.provide(ControlSql.layer),
        Layer.provide(PgClient.layer({ url: Redacted.make(url) })),
        Layer.provide(Layer.succeed(PostgresSettings, { ...defaults, listen: false }))
      ))
      yield* Effect.provideContext(Effect.andThen(announce("off"), Effect.sleep(20)), context)
      assert.isTrue(Option.isNone(yield* Effect.timeoutOption(Queue.take(raw), "150 millis")))
    }).pipe(Effect.scoped))
})
