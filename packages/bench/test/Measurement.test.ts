import { assert, it } from "@effect/vitest"
import { Collection, percentile, speed, type Subject } from "../src/Measurement.ts"

const subject = (system: string, setting: string, processes: number): Subject => ({
  workload: "W2",
  system,
  setting,
  processes,
  concurrency: 1
})

const collected = (...entries: ReadonlyArray<readonly [Subject, ReadonlyArray<number>]>) => {
  const collection = new Collection()
  for (const [subject, values] of entries) {
    for (const value of values) collection.add(subject, [{ metric: "drain", unit: "jobs/s", value }])
  }
  return collection.results(["update"])
}

it("rounds become a median with its range", () => {
  const [odd, even] = collected([subject("a", "x", 1), [30, 10, 20]], [subject("b", "x", 1), [4, 1, 2, 100]])
  assert.deepInclude(odd, { median: 20, min: 10, max: 30, rounds: 3 })
  assert.deepInclude(even, { median: 3, min: 1, max: 100, rounds: 4 })
})

it("a ratio is to the raw limit's base setting with as many processes", () => {
  const results = collected(
    [subject("raw", "update", 1), [100]],
    [subject("raw", "update", 2), [200]],
    [subject("raw", "delete", 2), [400]],
    [subject("a", "x", 2), [50]]
  )
  assert.deepStrictEqual(results.map(({ ratio_to_raw }) => ratio_to_raw), [1, 1, 2, 0.25])
})

it("without a raw measurement there is no ratio", () => {
  const [result] = collected([subject("a", "x", 1), [50]])
  assert.isNull(result?.ratio_to_raw)
})

it("one limit may be measured by several settings, each for metrics of its own", () => {
  const collection = new Collection()
  collection.add(subject("raw", "one", 1), [{ metric: "steps, one", unit: "steps/s", value: 10 }])
  collection.add(subject("raw", "many", 1), [{ metric: "steps, many", unit: "steps/s", value: 100 }])
  collection.add(subject("a", "x", 1), [
    { metric: "steps, one", unit: "steps/s", value: 5 },
    { metric: "steps, many", unit: "steps/s", value: 50 }
  ])
  assert.deepStrictEqual(
    collection.results(["one", "many"]).map(({ ratio_to_raw }) => ratio_to_raw),
    [1, 1, 0.5, 0.5]
  )
})

it("a percentile is the smallest measured value that its share does not exceed", () => {
  const values = Array.from({ length: 100 }, (_, index) => 100 - index)
  assert.strictEqual(percentile(values, 0.5), 50)
  assert.strictEqual(percentile(values, 0.99), 99)
  assert.strictEqual(percentile([7], 0.99), 7)
})

it("a speed tells what each job cost, and nothing of what cannot be seen", () => {
  const seen = speed("drain", "job", 100, 2000, 500, { commits: 4, walBytes: 1000, cpuMicros: undefined })
  assert.deepStrictEqual(seen, [
    { metric: "drain", unit: "jobs/s", value: 50 },
    { metric: "drain: commits", unit: "per job", value: 0.04 },
    { metric: "drain: WAL", unit: "bytes/job", value: 10 },
    { metric: "drain: process CPU", unit: "us/job", value: 5 }
  ])
})
