import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, it } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Redacted } from "effect"
import * as Dice from "../crash/fixtures/Dice.ts"
import * as Fleet from "../crash/fixtures/Fleet.ts"
import * as Trail from "../crash/fixtures/Trail.ts"
import * as Fixture from "../gate/Fixture.ts"
import * as Gauged from "./fixtures/gauged.ts"

const KIND_CEILING = 3
const KEY_CEILING = 1
const KEYS = 5
const BACKLOG = 150
const CALM_MS = 5000
const KILLED_MS = 9000
/** So many processes are killed, which takes longer where a new one takes its time to start. */
const KILLED = 3
const dice = Dice.make(66)

const keyOf = (id: string): string => id.split("|")[1]!

let made = 0
const add = (jobs: number) =>
  Fixture.insert(
    Array.from({ length: jobs }, () => {
      const n = made++
      const key = `k${n % KEYS}`
      const id = `${String(n).padStart(6, "0")}|${key}`
      return { id, queue: "gauged", kind: "gauged", priority: n % 3, slots: [{ policy: "by-key", key }] }
    }),
    1000
  )

const left = Effect.map(Fixture.run<{ n: number }>("select count(*)::int as n from headgate.job"), ([row]) => row!.n)

/** Each transaction stays open up to 0.3 s, so that jobs appear in another order than they were made in. */
const produce = (url: string) =>
  Effect.forever(
    Effect.gen(function*() {
      if ((yield* left) > BACKLOG) return yield* Effect.sleep(50)
      yield* Fixture.run("begin")
      yield* add(12)
      yield* Effect.sleep(dice.between(0, 300))
      yield* Fixture.run("commit")
    })
  ).pipe(Effect.provide(Layer.fresh(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))))

const wrongNow = `
  select 'the kind runs ' || count(*) as fault from headgate.job where state = 'running' having count(*) > ${KIND_CEILING}
  union all select 'key ' || keys || ' runs ' || count(*) from headgate.job where state = 'running'
    group by keys having count(*) > ${KEY_CEILING}`

const observe = (faults: Set<string>) =>
  Effect.forever(
    Effect.delay(Fixture.run<{ fault: string }>(wrongNow), 5).pipe(Effect.map((rows) => {
      for (const { fault } of rows) faults.add(fault)
    }))
  )

const kill = Effect.fnUntraced(function*(fleet: Fleet.Fleet) {
  const until = performance.now() + KILLED_MS
  while (performance.now() < until || fleet.deaths() < KILLED) {
    yield* Effect.sleep(2000)
    const victim = dice.oneOf(fleet.up())
    if (victim !== undefined) fleet.signal(victim, "SIGKILL")
  }
})

it.live(
  "two ceilings on one job are both kept, and used, by processes of which one is killed every 2 s",
  () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      yield* Trail.shortenCrashBackoff(200)
      const limit = { onSaturated: "queue", isPaused: false } as const
      yield* Fixture.setLimit("by-kind", { ...limit, scope: "kind", subject: "gauged", max: KIND_CEILING })
      yield* Fixture.setLimit("by-key", { ...limit, scope: "key", subject: "", max: KEY_CEILING })
      const entry = new URL("./fixtures/gauged-worker.ts", import.meta.url)
      const fleet = yield* Fleet.start(Array.from({ length: 3 }, () => ({ entry, databaseUrl: url })), true)
      const faults = new Set<string>()
      yield* Effect.gen(function*() {
        yield* Effect.forkScoped(observe(faults))
        yield* Effect.repeat(Effect.delay(Effect.sync(() => fleet.up()), 50), {
          until: (pids) => pids.every((pid) => pid !== undefined)
        })
        const producers = yield* Effect.forkScoped(
          Effect.all([produce(url), produce(url), produce(url)], { concurrency: 3 })
        )
        yield* Effect.sleep(1000)
        const before = Gauged.read(fleet.output()).length
        yield* Effect.sleep(CALM_MS)
        const calm = Gauged.read(fleet.output()).slice(before)
        yield* kill(fleet)
        yield* Effect.sync(() => producers.interruptUnsafe())
        yield* Effect.timeoutOption(Effect.repeat(Effect.delay(left, 100), { until: (n) => n === 0 }), "3 minutes")

        const gauges = Gauged.read(fleet.output())
        const handlerMs = calm.reduce((sum, { from, to }) => sum + to - from, 0) / calm.length
        const share = calm.length / (KIND_CEILING * CALM_MS / handlerMs)
        // On a machine that does nothing else the share is above 0.7.
        console.log(
          `ceilings: ${calm.length} jobs of ${handlerMs.toFixed(1)} ms in ${CALM_MS} ms, ${
            (100 * share).toFixed()
          } % of what ` +
            `${KIND_CEILING} slots allow; ${gauges.length} of ${made} in all, ${fleet.deaths()} killed`
        )
        assert.deepStrictEqual([...faults], [])
        assert.strictEqual(Gauged.atOnce(gauges), KIND_CEILING)
        for (let key = 0; key < KEYS; key++) {
          assert.isAtMost(Gauged.atOnce(gauges.filter(({ id }) => keyOf(id) === `k${key}`)), KEY_CEILING)
        }
        assert.strictEqual(yield* left, 0, "jobs that were left")
      }).pipe(Fleet.explaining(fleet))
    }).pipe(Effect.provide(TestDatabase.layerWith({ client: { maxConnections: 6 } })), Effect.scoped),
  400_000
)
