/** Results as tables for people. */
import type { Result } from "./Measurement.ts"
import type { Setting, System } from "./System.ts"

export const settingsText = (server: Readonly<Record<string, string>>, systems: ReadonlyArray<System>): string => {
  const list = (options: Setting["options"]) =>
    Object.entries(options).map(([name, value]) => `${name}=${value}`).join(" ")
  const lines = systems.flatMap(({ name, settings }) =>
    settings.map((setting) => `  ${name}: ${setting.name}: ${list(setting.options)}`)
  )
  return [`server: ${list(server)}`, ...lines].join("\n")
}

/** Speeds with their ratios first, then what each job cost. */
export const tables = (results: ReadonlyArray<Result>): string => {
  const speeds = results.filter(({ unit }) => unit === "jobs/s")
  const costs = results.filter(({ unit }) => unit !== "jobs/s")
  return [...new Set(results.map(({ workload }) => workload))].flatMap((workload) => [
    ...speedTables(speeds.filter((result) => result.workload === workload)),
    ...costTable(workload, costs.filter((result) => result.workload === workload))
  ]).join("\n")
}

const speedTables = (results: ReadonlyArray<Result>): ReadonlyArray<string> =>
  [...new Set(results.map(titleOf))].flatMap((title) => {
    const rows = results.filter((result) => titleOf(result) === title)
    const peer = Math.max(...rows.filter(({ system }) => isPeer(system)).map(({ median }) => median))
    return [
      `\n${title}`,
      ...aligned([
        ["", "median", "min", "max", "x raw", "x best peer"],
        ...rows.map((row) => [
          `${row.system}: ${row.setting}`,
          ...[row.median, row.min, row.max].map((value) => Math.round(value).toLocaleString("en")),
          ratio(row.ratio_to_raw),
          ratio(Number.isFinite(peer) ? row.median / peer : null)
        ])
      ])
    ]
  })

const costTable = (workload: string, results: ReadonlyArray<Result>): ReadonlyArray<string> => {
  if (results.length === 0) return []
  const metrics = [...new Set(results.map(({ metric, unit }) => `${metric}, ${unit}`))]
  const subject = (result: Result) => `${result.system}: ${result.setting}, ${result.processes} process(es)`
  const rows = [...new Set(results.map(subject))].map((name) => [
    name,
    ...metrics.map((metric) => {
      const found = results.find((result) => subject(result) === name && `${result.metric}, ${result.unit}` === metric)
      return found === undefined ? "" : shown(found.median)
    })
  ])
  return [
    `\n${workload}: costs (medians): ${metrics.map((metric, index) => `[${index + 1}] ${metric}`).join("  ")}`,
    ...aligned([["", ...metrics.map((_, index) => `[${index + 1}]`)], ...rows])
  ]
}

const titleOf = ({ metric, processes, workload }: Result): string =>
  `${workload}: ${metric}, ${processes} process${processes === 1 ? "" : "es"}, jobs/s`

const isPeer = (system: string): boolean => system !== "raw" && system !== "headgate"

const ratio = (value: number | null): string => value === null ? "" : value.toFixed(2)

const shown = (value: number): string => value >= 10 ? Math.round(value).toLocaleString("en") : value.toPrecision(2)

const aligned = (rows: ReadonlyArray<ReadonlyArray<string>>): ReadonlyArray<string> => {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length)))
  return rows.map((row) =>
    row.map((cell, column) => column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart((widths[column] ?? 0) + 2))
      .join("")
  )
}
