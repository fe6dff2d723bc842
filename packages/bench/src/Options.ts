/** The command line of `npm run bench`. */
import { parseArgs } from "node:util"
import { type WorkloadName, workloadNames } from "./System.ts"
import { systems } from "./systems/index.ts"

export interface Options {
  readonly workloads: ReadonlyArray<WorkloadName>
  readonly systems: ReadonlyArray<string>
  /** Only settings whose name contains this. */
  readonly setting: string | undefined
  /** Of W2. */
  readonly processes: ReadonlyArray<number>
  readonly isQuick: boolean
  readonly rounds: number
  /** Of a drain. */
  readonly jobs: number
  readonly json: string | undefined
  /** A result file to hold against the bar, instead of measuring. */
  readonly check: string | undefined
  /** Prefix of the CPU profiles to write, one a measured process. */
  readonly profile: string | undefined
  /** Print the statements that took most of the server's time. */
  readonly showsStatements: boolean
}

export const usage = `npm run bench -- [--quick] [--only W1,W2,..] [--systems a,b] [--setting TEXT] [--processes 1,2]
  [--rounds N] [--jobs N] [--json FILE] [--profile PREFIX] [--statements]
npm run bench -- --check FILE
Systems: ${Object.keys(systems).join(", ")}. Workloads: ${workloadNames.join(", ")}.
Quick: one round, small numbers, W2 with one process, no settings that only the full run has.
Measures on the server of DATABASE_URL, else on an embedded one with durable settings.`

export const parse = (args: ReadonlyArray<string>): Options => {
  const { values } = parseArgs({
    args: [...args],
    options: {
      quick: { type: "boolean", default: false },
      only: { type: "string" },
      systems: { type: "string" },
      setting: { type: "string" },
      processes: { type: "string" },
      rounds: { type: "string" },
      jobs: { type: "string" },
      json: { type: "string" },
      check: { type: "string" },
      profile: { type: "string" },
      statements: { type: "boolean", default: false }
    }
  })
  const { quick } = values
  const names = values.systems === undefined ? Object.keys(systems) : values.systems.split(",")
  const unknown = names.find((name) => !(name in systems))
  if (unknown !== undefined) throw new Error(`no system "${unknown}"`)
  return {
    workloads: values.only === undefined ? workloadNames : chosen(values.only.split(",")),
    systems: names,
    setting: values.setting,
    processes: (values.processes ?? (quick ? "1" : "1,2")).split(",").map((text) => whole("processes", text)),
    isQuick: quick,
    rounds: values.rounds === undefined ? (quick ? 1 : 4) : whole("rounds", values.rounds),
    jobs: values.jobs === undefined ? (quick ? 10_000 : 20_000) : whole("jobs", values.jobs),
    json: values.json,
    check: values.check,
    profile: values.profile,
    showsStatements: values.statements
  }
}

const chosen = (names: ReadonlyArray<string>): ReadonlyArray<WorkloadName> =>
  names.map((name) => {
    const found = workloadNames.find((workload) => workload === name)
    if (found === undefined) throw new Error(`no workload "${name}"`)
    return found
  })

const whole = (name: string, text: string): number => {
  const value = Number(text)
  if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} takes whole numbers from 1`)
  return value
}
