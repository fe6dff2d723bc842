/** Results as tables for people. */
import { costMetric, costs, type Result } from "./Measurement.ts"
import type { Setting, System } from "./System.ts"
import type { GateResult } from "./workloads/Gate.ts"

export const settingsText = (server: Readonly<Record<string, string>>, systems: ReadonlyArray<System>): string => {
  const list = (options: Setting["options"]) =>
    Object.entries(options).map(([name, value]) => `${name}=${value}`).join(" ")
  const lines = systems.flatMap(({ name, settings }) =>
    settings.map((setting) => `  ${name}: ${setting.name}: ${list(setting.options)}`)
  )
  return [`server: ${list(server)}`, ...lines].join("\n")
}

/** One table a speed, each row with what a job cost. */
export const tables = (results: ReadonlyArray<Result>): string => {
  const speeds = results.filter(({ unit }) => unit === "jobs/s")
  return [...new Set(speeds.map(titleOf))].flatMap((title) =>
    table(title, speeds.filter((result) => titleOf(result) === title), results)
  ).join("\n")
}

const table = (title: string, rows: ReadonlyArray<Result>, results: ReadonlyArray<Result>): ReadonlyArray<string> => {
  const peer = Math.max(...rows.filter(({ system }) => isPeer(system)).map(({ median }) => median))
  return [
    `\n${title}`,
    ...aligned([
      ["", "median", "min", "max", "x raw", "x best peer", ...costs.map(({ name, unit }) => `${name} ${unit}`)],
      ...rows.map((row) => [
        `${row.system}: ${row.setting}`,
        ...[row.median, row.min, row.max].map((value) => Math.round(value).toLocaleString("en")),
        ratio(row.ratio_to_raw),
        ratio(Number.isFinite(peer) ? row.median / peer : null),
        ...costs.map(({ name }) => costOf(row, name, results))
      ])
    ])
  ]
}

const costOf = (row: Result, cost: string, results: ReadonlyArray<Result>): string => {
  const found = results.find((result) =>
    result.system === row.system && result.setting === row.setting && result.processes === row.processes &&
    result.metric === costMetric(row.metric, cost)
  )
  return found === undefined ? "" : shown(found.median)
}

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

const titleOf = ({ metric, processes, workload }: Result): string =>
  `${workload}: ${metric}, ${processes} process${processes === 1 ? "" : "es"}, jobs/s`

const isPeer = (system: string): boolean => system !== "raw" && system !== "headgate"

const ratio = (value: number | null): string => value === null ? "" : value.toFixed(2)

const shown = (value: number): string =>
  value >= 10 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2)))

const aligned = (rows: ReadonlyArray<ReadonlyArray<string>>): ReadonlyArray<string> => {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length)))
  return rows.map((row) =>
    row.map((cell, column) => column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart((widths[column] ?? 0) + 2))
      .join("")
  )
}
