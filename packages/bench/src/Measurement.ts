/** Numbers of many rounds, as medians with their ranges, and as ratios to the raw limit of the same run. */
import type { Cost } from "./Server.ts"
import type { WorkloadName } from "./System.ts"

export interface Measurement {
  readonly metric: string
  readonly unit: string
  readonly value: number
}

/** What a job or step costs, besides time; each is a metric of its own, named after the speed it belongs to. */
export const costs = [
  { name: "commits", unit: "" },
  { name: "WAL", unit: "bytes" },
  { name: "process CPU", unit: "us" },
  { name: "database CPU", unit: "us" }
] as const

export const costMetric = (metric: string, cost: string): string => `${metric}: ${cost}`

export const isCost = (metric: string): boolean => costs.some(({ name }) => metric.endsWith(`: ${name}`))

/** A speed of `count` jobs or steps, and what each cost. */
export const speed = (
  metric: string,
  each: "job" | "step",
  count: number,
  elapsedMs: number,
  processMicros: number,
  { commits, cpuMicros, walBytes }: Cost
): ReadonlyArray<Measurement> => {
  const totals = [commits, walBytes, processMicros, cpuMicros]
  return [
    { metric, unit: `${each}s/s`, value: count / (elapsedMs / 1000) },
    ...costs.flatMap(({ name, unit }, index) => {
      const total = totals[index]
      const perEach = unit === "" ? `per ${each}` : `${unit}/${each}`
      return total === undefined ? [] : [{ metric: costMetric(metric, name), unit: perEach, value: total / count }]
    })
  ]
}

export interface Subject {
  readonly workload: WorkloadName
  readonly system: string
  readonly setting: string
  readonly processes: number
  readonly concurrency: number
}

export interface Result extends Subject {
  readonly metric: string
  readonly unit: string
  readonly median: number
  readonly min: number
  readonly max: number
  readonly rounds: number
  readonly ratio_to_raw: number | null
}

export class Collection {
  readonly #values = new Map<string, { subject: Subject; metric: string; unit: string; values: Array<number> }>()

  add(subject: Subject, measurements: ReadonlyArray<Measurement>): void {
    for (const { metric, unit, value } of measurements) {
      const key = JSON.stringify([subject.workload, subject.system, subject.setting, subject.processes, metric])
      const entry = this.#values.get(key) ?? { subject, metric, unit, values: [] }
      entry.values.push(value)
      this.#values.set(key, entry)
    }
  }

  /** `bases` names the raw settings that count as 1, each for the metrics it was measured by. */
  results(bases: ReadonlyArray<string>): ReadonlyArray<Result> {
    const plain = [...this.#values.values()].map(({ metric, subject, unit, values }) => ({
      ...subject,
      metric,
      unit,
      median: median(values),
      min: Math.min(...values),
      max: Math.max(...values),
      rounds: values.length
    }))
    return plain.map((result) => {
      const raw = plain.find((other) =>
        other.system === "raw" && bases.includes(other.setting) && other.workload === result.workload &&
        other.processes === result.processes && other.metric === result.metric
      )
      return { ...result, ratio_to_raw: raw === undefined || raw.median === 0 ? null : result.median / raw.median }
    })
  }
}

export const median = (values: ReadonlyArray<number>): number => {
  const sorted = ascending(values)
  const middle = sorted.length >> 1
  const upper = sorted[middle] ?? Number.NaN
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? Number.NaN)) / 2
}

/** The smallest value that at least this share of all do not exceed. */
export const percentile = (values: ReadonlyArray<number>, share: number): number =>
  ascending(values)[Math.max(0, Math.ceil(share * values.length) - 1)] ?? Number.NaN

const ascending = (values: ReadonlyArray<number>): ReadonlyArray<number> => [...values].sort((a, b) => a - b)
