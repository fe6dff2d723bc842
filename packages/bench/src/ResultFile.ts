/** What `--json` writes and `--check` reads. */
import * as Fs from "node:fs"
import type { Result } from "./Measurement.ts"
import type { Setting } from "./System.ts"
import type { GateResult } from "./workloads/Gate.ts"

export interface ResultFile {
  readonly machine: Readonly<Record<string, string | number>>
  readonly postgres: Readonly<Record<string, string>>
  /** Of each system, all that it can be measured with. */
  readonly settings: Readonly<Record<string, ReadonlyArray<Setting>>>
  readonly results: ReadonlyArray<Result>
  /** W6 compares calls pair by pair, so its figures are ratios from the start. */
  readonly gate: ReadonlyArray<GateResult>
}

export const write = (path: string, file: ResultFile): void => Fs.writeFileSync(path, JSON.stringify(file, null, 2))

export const read = (path: string): Pick<ResultFile, "results" | "gate"> => {
  const file: unknown = JSON.parse(Fs.readFileSync(path, "utf8"))
  if (!isResultFile(file)) throw new Error(`${path} holds no results of this benchmark`)
  return { results: file.results, gate: file.gate ?? [] }
}

const isResultFile = (file: unknown): file is Pick<ResultFile, "results"> & Partial<ResultFile> =>
  typeof file === "object" && file !== null && "results" in file && Array.isArray(file.results)
