/** The files of `conformance/`, read once. */
import { globSync, readFileSync } from "node:fs"
import { basename, dirname, join } from "node:path"
import { LineCounter, parse, parseDocument } from "yaml"
import type { Scenario } from "./Scenario.ts"

export const root = join(import.meta.dirname, "../../conformance")

export interface ScenarioFile {
  /** The folder. */
  readonly area: string
  /** Absolute. */
  readonly path: string
  readonly scenario: Scenario
  /** Where a step or an assertion stands in the file, as `["when", 2]`. Counts from 1. */
  readonly lineOf: (path: ReadonlyArray<string | number>) => number
}

export const read = (name: string): string => readFileSync(join(root, name), "utf8")

export const json = (name: string): unknown => JSON.parse(read(name))

export const yaml = (name: string): unknown => parse(read(name))

export const vectorNames: ReadonlyArray<string> = globSync("vectors/*.json", { cwd: root })
  .map((path) => basename(path, ".json")).sort()

const load = (path: string): ScenarioFile => {
  const lines = new LineCounter()
  const document = parseDocument(readFileSync(path, "utf8"), { lineCounter: lines })
  if (document.errors.length > 0) throw new Error(`${path}: ${document.errors.map(String).join(", ")}`)
  return {
    area: basename(dirname(path)),
    path,
    // SAFETY: corpus.test.ts holds every file to the schema.
    scenario: document.toJS() as Scenario,
    lineOf: (at) => {
      const node: unknown = document.getIn(at, true)
      const range = typeof node === "object" && node !== null && "range" in node ? node.range : undefined
      return Array.isArray(range) ? lines.linePos(Number(range[0])).line : 1
    }
  }
}

export const scenarios: ReadonlyArray<ScenarioFile> = globSync("scenarios/**/*.yaml", { cwd: root }).sort()
  .map((path) => load(join(root, path)))

export const areas: ReadonlyArray<string> = [...new Set(scenarios.map(({ area }) => area))]
