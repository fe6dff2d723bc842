/** Results as tables for people. */
import type { Verdict } from "./Bar.ts"
import { costMetric, costs, isCost, type Result } from "./Measurement.ts"
import type { Setting, System } from "./System.ts"
import type { GateResult } from "./workloads/Gate.ts"

export const settingsText = (server: Readonly<Record<string, string>>, systems: ReadonlyArray<System>): string => {
  const list = (options: Setting["options"]) =>
    Object.entries(options).map(([name, value]) => `${name}=${value}`).join(" ")
  const lines = systems.flatMap(({ name, settings }) =>
    settings.map((setting) => {
      const limit = setting.most === undefined ? "" : ` (at most ${setting.most} jobs or workflows)`
      return `  ${name}: ${setting.name}: ${list(setting.options)}${limit}`
    })
  )
  return [`server: ${list(server)}`, ...lines].join("\n")
}

/** One table a metric, each row with what a job or step cost. */
export const tables = (results: ReadonlyArray<Result>): string => {
  const main = results.filter(({ metric }) => !isCost(metric))
  return [...new Set(main.map(titleOf))].flatMap((title) =>
    table(title, main.filter((result) => titleOf(result) === title), results)
  ).join("\n")
}

const table = (title: string, rows: ReadonlyArray<Result>, results: ReadonlyArray<Result>): ReadonlyArray<string> => {
  const peers = rows.filter(({ system }) => isPeer(system)).map(({ median }) => median)
  const best = title.endsWith("/s") ? Math.max(...peers) : Math.min(...peers)
  const known = costs.filter(({ name }) => rows.some((row) => costOf(row, name, results) !== undefined))
  return [
    `\n${title}`,
    ...aligned([
      ["", "median", "min", "max", "x raw", "x best peer", ...known.map(({ name, unit }) => `${name} ${unit}`.trim())],
      ...rows.map((row) => [
        `${row.system}: ${row.setting}`,
        ...[row.median, row.min, row.max].map(shown),
        ratio(row.ratio_to_raw),
        ratio(peers.length > 0 ? row.median / best : null),
        ...known.map(({ name }) => shown(costOf(row, name, results)?.median))
      ])
    ])
  ]
}

const costOf = (row: Result, cost: string, results: ReadonlyArray<Result>): Result | undefined =>
  results.find((result) =>
    result.workload === row.workload && result.system === row.system && result.setting === row.setting &&
    result.processes === row.processes && result.metric === costMetric(row.metric, cost)
  )

export const gateTable = (results: ReadonlyArray<GateResult>): string =>
  [
    "\nW6: claim statements, beside a plain dequeue or the gate with nothing in its way",
    ...aligned([
      ["", "ms", "base ms", "value", "of minima", "of CPU", "bar", "met"],
      ...results.map((row) => [
        row.name,
        row.ms.toFixed(2),
        row.base_ms?.toFixed(2) ?? "",
        row.value.toFixed(2),
        row.value_of_minima.toFixed(2),
        row.value_of_cpu?.toFixed(2) ?? "",
        String(row.bar),
        row.is_met ? "yes" : "NO"
      ])
    ])
  ].join("\n")

export const barTable = (verdicts: ReadonlyArray<Verdict>): string =>
  aligned([
    ["", "bar", "value", "rounds", "met"],
    ...verdicts.map(({ bar, isMet, name, rounds, sense, value }) => [
      name,
      `${sense} ${bar}`,
      value === undefined ? "" : shown(value),
      rounds === undefined ? "" : String(rounds),
      value === undefined ? "not measured" : isMet ? "yes" : "NO"
    ])
  ]).join("\n")

const titleOf = ({ metric, processes, unit, workload }: Result): string =>
  `${workload}: ${metric}, ${processes} process${processes === 1 ? "" : "es"}, ${unit}`

const isPeer = (system: string): boolean => system !== "raw" && system !== "headgate"

const ratio = (value: number | null): string => value === null ? "" : value.toFixed(2)

const shown = (value: number | undefined): string =>
  value === undefined
    ? ""
    : Math.abs(value) >= 100
    ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(3)))

export const aligned = (rows: ReadonlyArray<ReadonlyArray<string>>): ReadonlyArray<string> => {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length)))
  return rows.map((row) =>
    row.map((cell, column) => column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart((widths[column] ?? 0) + 2))
      .join("")
  )
}
