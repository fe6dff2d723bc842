import { assert, it } from "@effect/vitest"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Option } from "effect"
import * as Chores from "./fixtures/Chores.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

/** A program on a database of its own, behind a network that can fail, with work in hand. */
const open = Effect.gen(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const proxy = yield* TcpProxy.make(url)
  const site = yield* Site.open(proxy.url, { pool: 6 })
  const worker = yield* site.work(Chores.handler(new Chores.Gauge()), { concurrency: 20, lease: "45 seconds" })
  return { proxy, site, worker }
})

const live = Chores.table.pipe(Layer.provideMerge(TestDatabase.layer))

/** Both wait more than they work, so they do it together. */
const together = { timeout: 240_000, concurrent: true }

it.live(
  "half a minute without the database, half of it in silence, loses nothing and is charged nothing",
  () =>
    Effect.gen(function*() {
      const { proxy, site, worker } = yield* open
      const steady = yield* Chores.producer(site, "steady", { millis: 100, pause: 50, keys: 1000 })
      const long = yield* site.use(
        Chores.Chore.enqueueAll(Array.from({ length: 10 }, (_, n) => ({ millis: 20_000, key: `long ${n}` })))
      )
      const isInHand = () => long.every((id) => worker.told("JobStarted", id).length === 1) && steady.ids.length > 10
      yield* Watch.untilTrue(isInHand, "work in hand")
      yield* proxy.cut
      yield* Effect.sleep("15 seconds")
      yield* proxy.heal
      yield* proxy.blackhole
      yield* Effect.sleep("15 seconds")
      yield* proxy.heal
      const before = steady.ids.length
      yield* Watch.untilTrue(() => steady.ids.length > before + 5, "the producer to get through")
      yield* steady.stop
      const ids = [...steady.ids, ...long]
      yield* Chores.ended(ids)
      assert.deepStrictEqual(yield* Chores.harmed(ids), [])
      assert.isTrue(steady.faults.size > 0 && Chores.isTyped(steady.faults), [...steady.faults].join())
      // A completion whose answer was lost may be told as a loss, where the next beat comes before the look-up: it ran once.
      const lost = worker.told("LeaseLost").flatMap((event) => "jobId" in event ? [event.jobId] : [])
      assert.deepStrictEqual(lost.filter((id) => worker.told("JobStarted", id).length !== 1), [])
      const isWell = Effect.map(
        worker.health,
        ({ status }) => status === "working" ? Option.some(status) : Option.none()
      )
      yield* Watch.until(isWell, "the worker to be well")
    }).pipe(Effect.provide(live), Effect.scoped),
  together
)

it.live(
  "a database that answers after half a second costs time, and no lease",
  () =>
    Effect.gen(function*() {
      const { proxy, site, worker } = yield* open
      yield* proxy.delay(250)
      const producers = yield* Effect.forEach(["a", "b", "c"], (name) =>
        Chores.producer(site, name, { millis: 50, pause: 1, keys: 1000 }))
      yield* Watch.untilTrue(
        () =>
          producers.every(({ ids }) => ids.length >= 2),
        "jobs to be stored"
      )
      yield* Effect.forEach(producers, ({ stop }) => stop)
      const ids = producers.flatMap(({ ids }) => ids)
      yield* Chores.ended(ids)
      assert.deepStrictEqual(yield* Chores.harmed(ids), [])
      for (const { faults } of producers) assert.deepStrictEqual([...faults], [])
      for (const tag of ["LeaseLost", "StoreUnreachable"] as const) assert.deepStrictEqual(worker.told(tag), [])
      yield* proxy.delay(0)
    }).pipe(Effect.provide(live), Effect.scoped),
  together
)
