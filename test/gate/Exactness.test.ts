import { assert, it } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Fiber } from "effect"
import * as Fixture from "./Fixture.ts"
import { type Held, start } from "./fixtures/Claimers.ts"

const ROUNDS = 100
const PROCESSES = 4

/** Most that may run at once, of all jobs and of those with equal parts of their ids. */
const ceilings = { queue: 7, partition: 3, key: 2, kind: 5 }
type Slot = keyof typeof ceilings

const BURST = 40
const PER_WINDOW = 60
const WINDOW_MS = 100
/** So much can be saved that the bucket is never full: then no unit of its refill is lost, and the sum must come out. */
const NEVER_FULL = 100_000_000

/** What a job is subject to stands in its id, which is all that the claimers hear of it. */
const idOf = (n: number, partition: string, key: string, kind: string, weight: number): string =>
  [n, partition, key, kind, weight].join("|")
const slotsOf = (id: string): Readonly<Record<Slot, string>> => {
  const [, partition = "", key = "", kind = ""] = id.split("|")
  return { queue: "", partition, key, kind }
}
const weightOf = (id: string): number => Number(id.split("|")[4])

let made = 0
/** Higher than all before it: rivals that count before and after it came see different jobs at the head. */
const arrive = (jobs: number) => {
  const fresh = Array.from({ length: jobs }, () => {
    const n = made++
    const [partition, key, kind] = [`p${n % 3}`, `k${n % 5}`, n % 4 === 0 ? "slow" : "quick"]
    const weight = 1 + n % 3
    return {
      id: idOf(n, partition, key, kind, weight),
      queue: "exact",
      kind,
      partition,
      priority: Math.min(n, 30_000),
      charges: [{ policy: "audited", key: "", weight }, { policy: "burst", key: "", weight: 1 }],
      slots: [{ policy: "by-key", key }]
    }
  })
  return Fixture.insert(fresh, 1000)
}

const policies = Effect.gen(function*() {
  const limit = { onSaturated: "queue", isPaused: false } as const
  yield* Fixture.setLimit("by-queue", { ...limit, scope: "queue", subject: "exact", max: ceilings.queue })
  yield* Fixture.setLimit("by-partition", { ...limit, scope: "partition", subject: "exact", max: ceilings.partition })
  yield* Fixture.setLimit("by-key", { ...limit, scope: "key", subject: "", max: ceilings.key })
  // The other kind has none.
  yield* Fixture.setLimit("by-kind", { ...limit, scope: "kind", subject: "slow", max: ceilings.kind })
  yield* Fixture.setClass("burst", { limit: PER_WINDOW, windowMs: WINDOW_MS, burst: BURST, isPaused: false })
  yield* Fixture.setClass("audited", { limit: 1000, windowMs: 1000, burst: NEVER_FULL, isPaused: false })
  yield* Fixture.run(`insert into headgate.bucket (class, key, units, at_ms)
    values ('audited', '', ${START_UNITS}, headgate.now_ms())`)
})
const START_UNITS = 1_000_000_000

/** What a look at one instant of the committed rows must not show. */
const wrongNow = `
  select 'the queue runs ' || count(*) as fault from headgate.job where state = 'running' having count(*) > ${ceilings.queue}
  union all select 'partition ' || partition_key || ' runs ' || count(*) from headgate.job where state = 'running'
    group by partition_key having count(*) > ${ceilings.partition}
  union all select 'key ' || split_part(id, '|', 3) || ' runs ' || count(*) from headgate.job where state = 'running'
    group by split_part(id, '|', 3) having count(*) > ${ceilings.key}
  union all select 'kind slow runs ' || count(*) from headgate.job where state = 'running' and kind = 'slow'
    having count(*) > ${ceilings.kind}
  union all select class || ' owes ' || units from headgate.bucket where units < 0`

/** How many slots are taken, of the fullest of each sort. */
const takenNow = `
  select count(*)::int as queue, coalesce(max(in_partition), 0)::int as partition, coalesce(max(in_key), 0)::int as key
  from (select count(*) over (partition by partition_key) as in_partition,
    count(*) over (partition by split_part(id, '|', 3)) as in_key from headgate.job where state = 'running') j`
type Taken = Readonly<Record<Exclude<Slot, "kind">, number>>

const observe = (faults: Set<string>, seen: Array<Taken>) =>
  Effect.forever(Effect.gen(function*() {
    for (const { fault } of yield* Fixture.run<{ fault: string }>(wrongNow)) faults.add(fault)
    seen.push(...yield* Fixture.run<Taken>(takenNow))
  }))

/** How many held a slot at once at most, of all that certainly held it. */
const atOnce = (held: ReadonlyArray<Held>): number => {
  const moments = held.flatMap(({ from, to }) => [{ at: from, by: 1 }, { at: to, by: -1 }])
    .sort((a, b) => a.at - b.at || a.by - b.by)
  let [now, most] = [0, 0]
  for (const { by } of moments) most = Math.max(most, now += by)
  return most
}

const groupBy = <A>(
  all: ReadonlyArray<A>,
  of: (one: A) => string
): ReadonlyArray<readonly [string, ReadonlyArray<A>]> => {
  const groups = new Map<string, Array<A>>()
  for (const one of all) groups.set(of(one), [...groups.get(of(one)) ?? [], one])
  return [...groups]
}

const overlaps = (held: ReadonlyArray<Held>): ReadonlyArray<string> =>
  (["queue", "partition", "key", "kind"] as const).flatMap((slot) =>
    groupBy(held, ({ id }) => slotsOf(id)[slot])
      .filter(([name, of]) => (slot !== "kind" || name === "slow") && atOnce(of) > ceilings[slot])
      .map(([name, of]) => `${slot} ${name} was held by ${atOnce(of)} at once`)
  )

/** A claim bears the time at which its call began; by that much more a window can be full. */
const overspent = (claims: ReadonlyArray<Held>): ReadonlyArray<string> => {
  const times = claims.map(({ claimedAt }) => claimedAt).sort((a, b) => a - b)
  const longest = Math.max(0, ...claims.map(({ calledForMs }) => calledForMs))
  const most = BURST + PER_WINDOW * (WINDOW_MS + Math.ceil(longest)) / WINDOW_MS
  return times.flatMap((at, first) => {
    const spent = times.filter((other) => other >= at && other <= at + WINDOW_MS).length
    return times[first - 1] !== at && spent > most ? [`${spent} of ${most} in the window from ${at}`] : []
  })
}

it.live(
  "16 claimers in 4 processes keep every ceiling and every rate, while work of higher priority arrives, for 100 rounds",
  () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      yield* policies
      const [opened] = yield* Fixture.run<{ at: string }>(`select at_ms::text as at from headgate.bucket`)
      const claimers = yield* start(PROCESSES, url)
      const faults = new Set<string>()
      const seen: Array<Taken> = []
      for (let n = 0; n < 2; n++) yield* Effect.forkScoped(observe(faults, seen))
      const held: Array<Held> = []
      for (let round = 1; round <= ROUNDS && faults.size === 0; round++) {
        yield* arrive(30)
        const arrivals = yield* Effect.forkScoped(Effect.forever(Effect.andThen(arrive(3), Effect.sleep(2))))
        const claims = yield* claimers.round
        yield* Fiber.interrupt(arrivals)
        held.push(...claims)
        for (const fault of [...overlaps(claims), ...overspent(claims)]) faults.add(`round ${round}: ${fault}`)
        if (round % 10 === 0) yield* Fixture.run(`delete from headgate.job where state = 'available'`)
      }
      assert.deepStrictEqual([...faults], [])
      assert.isAbove(held.length, ROUNDS * 16, "claims")
      for (const slot of ["queue", "partition", "key"] as const) {
        const fullest = seen.reduce((most, taken) => Math.max(most, taken[slot]), 0)
        assert.strictEqual(fullest, ceilings[slot], `${slot} was full at times`)
      }
      const [closed] = yield* Fixture.run<{ units: string; at: string }>(
        `select units::text, at_ms::text as at from headgate.bucket where class = 'audited'`
      )
      const charged = held.reduce((sum, { id }) => sum + weightOf(id), 0)
      const refilled = (Number(closed!.at) - Number(opened!.at)) * 1000
      assert.strictEqual(Number(closed!.units), START_UNITS + refilled - charged * 1000)
    }).pipe(Effect.provide(TestDatabase.layerWith({ client: { maxConnections: 6 } })), Effect.scoped),
  240_000
)
