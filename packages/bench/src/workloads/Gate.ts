/**
 * W6: what the gate costs. Claim statements alone, by one session, each measured beside its base call by call: a plain
 * dequeue, or the gate itself where nothing is in its way. Every measured call must claim what it was asked for.
 */
import { median } from "../Measurement.ts"
import type { Database, Server } from "../Server.ts"
import type { System } from "../System.ts"
import * as GateGround from "./GateGround.ts"

export interface GateOptions {
  readonly rounds: number
  readonly isQuick: boolean
  /** Only cases whose name contains this. */
  readonly setting: string | undefined
}

export interface GateResult {
  readonly name: string
  /** Medians over all calls; of the base, where there is one. */
  readonly ms: number
  readonly base_ms: number | null
  /** The median of what the pairs of calls show, what their fastest calls show, and what the server's CPU shows. */
  readonly value: number
  readonly value_of_minima: number
  readonly value_of_cpu: number | null
  readonly bar: number
  readonly is_met: boolean
}

type Measure = "share of plain" | "times the base" | "ms"

interface Case {
  readonly name: string
  readonly measure: Measure
  readonly bar: number
  readonly capacity: number
  readonly ground: GateGround.Ground
  readonly base: GateGround.Ground | undefined
  readonly run?: (site: Site) => Promise<Sample>
}

type Sample = Pick<GateGround.Call, "ms" | "cpuMs">

interface Site {
  readonly item: Case
  readonly side: GateGround.Side
  readonly base: GateGround.Side | undefined
  readonly samples: Array<Sample>
  readonly baseSamples: Array<Sample>
  readonly close: () => Promise<void>
}

export const gate = async (
  server: Server,
  system: System,
  options: GateOptions,
  say: (line: string) => void
): Promise<ReadonlyArray<GateResult>> => {
  const sites: Array<Site> = []
  const calls = options.isQuick ? 16 : 40
  const cases = casesOf(options).filter(({ name }) => name.includes(options.setting ?? ""))
  try {
    for (let round = 1; round <= options.rounds; round++) {
      for (const [index, item] of cases.entries()) {
        const site = sites[index] ?? await openSite(server, system, item)
        sites[index] = site
        await measureRound(site, calls)
        say(`${round}/${options.rounds} W6 ${item.name}: ${describe(resultOf(site))}`)
      }
    }
    return withMedian(sites.map(resultOf))
  } finally {
    for (const site of sites) await site.close()
  }
}

const free: GateGround.Jobs = { count: 20_000 }
const policyFree = "policy-free"
const thousands = GateGround.partitions(10_000)

const ceiling = (max: number): string =>
  `insert into headgate.concurrency_limit (name, scope, subject, max_concurrent) values ('each', 'partition', 'default', ${max})`
const rateClass = (name: string): string =>
  `insert into headgate.rate_class (name, rate_limit, window_ms, burst) values ('${name}', 1000000000, 1000, 1000000000)`
const closed =
  "insert into headgate.bucket (class, key, units, at_ms, closed_until_ms) values ('closed', '', 0, 0, 4102444800000)"
const paused = "insert into headgate.kind (name, is_paused) values ('blocked', true)"

const spread = (count: number, partitions: ReadonlyArray<string>): GateGround.Ground => ({
  jobs: [{ count, partitions }]
})

/** Jobs of one partition, lying in the table as those of a hundred do. */
const scattered: GateGround.Ground = { jobs: [{ ...free, scatter: 100 }] }

const governed: GateGround.Ground = {
  jobs: [{ count: 20_000, partitions: GateGround.partitions(100), classes: ["api"] }],
  policies: [rateClass("api"), ceiling(1000)]
}

const full: GateGround.Ground = {
  jobs: [
    { count: 50_000, partitions: thousands },
    { count: 10_000, partitions: thousands, isRunning: true },
    { count: 100, partitions: ["z"] }
  ],
  policies: [ceiling(1)]
}

const casesOf = ({ isQuick }: GateOptions): ReadonlyArray<Case> => {
  const many = isQuick ? 200_000 : 1_000_000
  const size = isQuick ? "200k" : "1M"
  const waiting = (count: number, isStale: boolean): GateGround.Ground => ({ jobs: [{ count }], isStale })
  return [
    ...[10, 100, 1000].map((capacity) => ofPlain(policyFree, { jobs: [free] }, 0.85, capacity)),
    ...[100, 1000].map((capacity) => ofPlain("class + ceiling + 100 partitions", governed, 0.65, capacity, scattered)),
    ...[100, 1000].map((capacity) =>
      ofGate("10,000 partitions to 1", spread(100_000, thousands), spread(100_000, ["p"]), 1.5, capacity)
    ),
    blocked("closed class", { classes: ["closed"] }, [rateClass("closed"), closed]),
    blocked("paused kind", { kind: "blocked" }, [paused]),
    blocked("pinned elsewhere", { pinnedTo: "elsewhere" }, []),
    atCeiling("a call", 20, oneCallInVain),
    atCeiling("until found", 1000, untilFound),
    ofGate(`${size} waiting to 1k`, waiting(many, false), waiting(1000, false), 1.25, 100),
    ofGate(`${size} waiting to 1k, before ANALYZE`, waiting(many, true), waiting(1000, true), 1.25, 100),
    held("policy-free", { jobs: [free] }),
    held("1 partition", spread(20_000, ["p"])),
    held("100 partitions", spread(20_000, GateGround.partitions(100)))
  ]
}

const ofPlain = (
  name: string,
  ground: GateGround.Ground,
  bar: number,
  capacity: number,
  base: GateGround.Ground = { jobs: [free] }
): Case => ({
  name: `${name}, capacity ${capacity}`,
  measure: "share of plain",
  bar,
  capacity,
  ground,
  base
})

const ofGate = (
  name: string,
  ground: GateGround.Ground,
  base: GateGround.Ground,
  bar: number,
  capacity: number
): Case => ({ name: `${name}, capacity ${capacity}`, measure: "times the base", bar, capacity, ground, base })

const blocked = (name: string, jobs: Omit<GateGround.Jobs, "count">, policies: ReadonlyArray<string>): Case => {
  const withHead = (count: number): GateGround.Ground => ({
    jobs: [free, { ...jobs, isAhead: true, count }],
    policies
  })
  return ofGate(`50,000 blocked at the head: ${name}`, withHead(50_000), withHead(0), 1.3, 100)
}

const held = (name: string, ground: GateGround.Ground): Case =>
  ofGate(`held snapshot, ${name}`, { ...ground, churned: 120_000 }, ground, 10, 100)

const atCeiling = (name: string, bar: number, run: (site: Site) => Promise<Sample>): Case => ({
  name: `10,000 partitions at their ceiling: ${name}`,
  measure: "ms",
  bar,
  capacity: 100,
  ground: full,
  base: undefined,
  run
})

const openSite = async (server: Server, system: System, item: Case): Promise<Site> => {
  const ends: Array<() => Promise<void>> = []
  const sideOn = async (ground: GateGround.Ground, kind: "gate" | "plain"): Promise<GateGround.Side> => {
    const database: Database = await server.fresh(system)
    ends.push(await GateGround.prepare(database, ground))
    const side = await GateGround.sideOf(database, kind, ground.isStale === true)
    ends.push(side.close)
    return side
  }
  const side = await sideOn(item.ground, "gate")
  const base = item.base && await sideOn(item.base, item.measure === "share of plain" ? "plain" : "gate")
  return {
    item,
    side,
    base,
    samples: [],
    baseSamples: [],
    close: async () => {
      for (const end of ends.toReversed()) await end()
    }
  }
}

/**
 * Bursts of calls, one side after the other each time; before each burst all is as it was. The first burst of a round is
 * not counted: it fills the caches.
 */
const measureRound = async (site: Site, calls: number): Promise<void> => {
  const { base, baseSamples, item, samples, side } = site
  const burst = item.run === undefined ? Math.min(8, 5000 / item.capacity) : 1
  for (let n = -1; n < calls / burst; n++) {
    await side.rehearse()
    await base?.rehearse()
    for (let pair = 0; pair < burst; pair++) {
      const sample = item.run === undefined ? await claim(site, side) : await item.run(site)
      const baseSample = base && await claim(site, base)
      if (n < 0) continue
      samples.push(sample)
      if (baseSample !== undefined) baseSamples.push(baseSample)
    }
    await side.restore()
    await base?.restore()
  }
}

const claim = async ({ item }: Site, side: GateGround.Side): Promise<Sample> => {
  const call = await side.call(item.capacity)
  if (call.claimed !== item.capacity) {
    throw new Error(`${item.name}: ${call.claimed} claims instead of ${item.capacity}`)
  }
  return call
}

const oneCallInVain = async ({ item, side }: Site): Promise<Sample> => {
  const call = await side.call(item.capacity)
  if (call.claimed !== 0) throw new Error(`${item.name}: ${call.claimed} claims over the ceiling`)
  return call
}

/** As a worker does: the answer `more` is followed at once. */
const untilFound = async ({ item, side }: Site): Promise<Sample> => {
  let ms = 0
  let cpuMs: number | undefined = 0
  for (let calls = 1; calls <= 100; calls++) {
    const call = await side.call(item.capacity)
    ms += call.ms
    cpuMs = cpuMs === undefined || call.cpuMs === undefined ? undefined : cpuMs + call.cpuMs
    if (call.claimed > 0) return { ms, cpuMs }
  }
  throw new Error(`${item.name}: not found in 100 calls`)
}

const resultOf = ({ baseSamples, item, samples }: Site): GateResult => {
  const of = (ms: number, baseMs: number | undefined): number =>
    baseMs === undefined ? ms : item.measure === "share of plain" ? baseMs / ms : ms / baseMs
  const ifAny = (values: ReadonlyArray<number>, pick: (values: ReadonlyArray<number>) => number) =>
    values.length === 0 ? undefined : pick(values)
  const least = (values: ReadonlyArray<number>) => Math.min(...values)
  const times = timesOf(samples)
  const baseTimes = timesOf(baseSamples)
  const cpu = cpuOf(samples)
  const baseCpu = cpuOf(baseSamples)
  const value = median(times.map((ms, index) => of(ms, baseTimes[index])))
  return {
    name: item.name,
    ms: median(times),
    base_ms: ifAny(baseTimes, median) ?? null,
    value,
    value_of_minima: of(least(times), ifAny(baseTimes, least)),
    value_of_cpu: cpu.length === 0 ? null : of(median(cpu), ifAny(baseCpu, median)),
    bar: item.bar,
    is_met: item.measure === "share of plain" ? value >= item.bar : value <= item.bar
  }
}

const timesOf = (samples: ReadonlyArray<Sample>): ReadonlyArray<number> => samples.map(({ ms }) => ms)

const cpuOf = (samples: ReadonlyArray<Sample>): ReadonlyArray<number> => samples.flatMap(({ cpuMs }) => cpuMs ?? [])

const withMedian = (results: ReadonlyArray<GateResult>): ReadonlyArray<GateResult> => {
  const three = results.filter(({ name }) => name.startsWith(policyFree))
  if (three.length < 3) return results
  const value = median(three.map((result) => result.value))
  return [...results, {
    name: `${policyFree}, median of the capacities`,
    ms: median(three.map(({ ms }) => ms)),
    base_ms: median(three.map((result) => result.base_ms ?? Number.NaN)),
    value,
    value_of_minima: median(three.map((result) => result.value_of_minima)),
    value_of_cpu: median(three.map((result) => result.value_of_cpu ?? Number.NaN)),
    bar: 0.95,
    is_met: value >= 0.95
  }]
}

const describe = ({ base_ms, ms, value }: GateResult): string =>
  base_ms === null ? `${ms.toFixed(2)} ms` : `${ms.toFixed(2)} ms beside ${base_ms.toFixed(2)}: ${value.toFixed(2)}`
