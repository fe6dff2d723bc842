import { assert, it } from "@effect/vitest"
import { judge, rows, type Verdict } from "../src/Bar.ts"
import type { Result } from "../src/Measurement.ts"
import { headgate } from "../src/systems/Headgate.ts"
import { raw } from "../src/systems/Raw.ts"

const result = (system: string, setting: string, median: number, rest: Partial<Result> = {}): Result => ({
  workload: "W2",
  system,
  setting,
  processes: 1,
  concurrency: 1,
  metric: "drain",
  unit: "jobs/s",
  median,
  min: median,
  max: median,
  rounds: 4,
  ratio_to_raw: null,
  ...rest
})

const verdict = (name: string, results: ReadonlyArray<Result>): Verdict | undefined =>
  judge({ results, gate: [] }).find((one) => one.name === name)

const wide = result("headgate", "concurrency 1000", 80)

it("a ratio that reaches the bar meets it, one below falls short", () => {
  const name = "W2 drain, concurrency 1,000, to raw"
  assert.include(verdict(name, [wide, result("raw", "update", 100)]), { value: 0.8, isMet: true })
  assert.include(verdict(name, [wide, result("raw", "update", 101)]), { isMet: false })
})

it("what was not measured is not met", () => {
  for (const one of judge({ results: [wide], gate: [] })) {
    assert.include(one, { value: undefined, isMet: false }, one.name)
  }
})

it("the best peer is the fastest system that is neither headgate nor the limit, with as many processes", () => {
  const results = [
    wide,
    result("raw", "update", 1000),
    result("a", "x", 40),
    result("b", "x", 50),
    result("c", "x", 500, { processes: 2 })
  ]
  assert.include(verdict("W2 drain, concurrency 1,000, to the best peer", results), { value: 1.6, isMet: true })
})

it("a time or a cost must not exceed its bar", () => {
  const wait = (system: string, median: number) =>
    result(system, "notify", median, { workload: "W3", metric: "enqueue to start, p50", unit: "ms" })
  const name = "W3 notify, p50, to raw"
  assert.include(verdict(name, [wait("headgate", 13), wait("raw", 10)]), { value: 1.3, isMet: true })
  assert.include(verdict(name, [wait("headgate", 14), wait("raw", 10)]), { isMet: false })
})

it("a verdict tells the fewest rounds behind it", () => {
  const few = result("raw", "update", 100, { rounds: 2 })
  assert.include(verdict("W2 drain, concurrency 1,000, to raw", [wide, few]), { rounds: 2 })
})

it("each case of the gate is a row of its own", () => {
  const found = judge({
    results: [],
    gate: [{
      name: "closed class",
      ms: 2,
      base_ms: 1,
      value: 2,
      value_of_minima: 2,
      value_of_cpu: null,
      bar: 1.3,
      is_met: false
    }]
  }).filter(({ name }) => name.startsWith("W6"))
  assert.deepStrictEqual(found.map(({ bar, isMet, sense, value }) => ({ bar, isMet, sense, value })), [
    { bar: 1.3, isMet: false, sense: "at most", value: 2 }
  ])
})

it("the bar names settings that exist and take part in its workload", () => {
  for (const { figure, name, over, workload } of rows) {
    for (const { setting, system } of [figure, ...over === undefined ? [] : [over]]) {
      if (setting === undefined) continue
      const { settings } = system === "raw" ? raw : headgate
      assert.isDefined(settings.find((one) => one.name === setting && one.workloads.includes(workload)), name)
    }
  }
})
