/** A promise that was not kept: which line of which scenario, what it expected, and what the store did. */
import { relative } from "node:path"
import { isDeepStrictEqual } from "node:util"
import { stringify } from "yaml"
import { root, type ScenarioFile } from "./Corpus.ts"

export class Broken extends Error {
  override readonly name = "Broken"

  /** `at` leads to the step or assertion, as `["when", 2]`. */
  constructor(
    file: ScenarioFile,
    at: readonly ["given" | "when" | "then", number],
    expected: unknown,
    actual: unknown
  ) {
    const [part, index] = at
    const line = file.lineOf(at)
    const path = relative(`${root}/..`, file.path)
    super(
      `${path}:${line}\n  ${part} ${index + 1}   ${inOneLine(file.scenario[part]?.[index])}` +
        `\n  expected ${inOneLine(expected)}\n  actual   ${inOneLine(actual)}`
    )
    // The place to look at is in the scenario, not in the runner.
    this.stack = `${this.name}: ${this.message}\n    at ${file.path}:${line}:1`
  }
}

/** Of the named fields those that differ, as expected and as they are. */
export const differences = (expected: object, actual: Readonly<Record<string, unknown>>, isOrdered: boolean) => {
  const order = (value: unknown) => Array.isArray(value) && !isOrdered ? value.toSorted() : value
  const wrong = Object.entries(expected).filter(([name, value]) =>
    !isDeepStrictEqual(order(value), order(actual[name]))
  )
  if (wrong.length === 0) return undefined
  return {
    expected: Object.fromEntries(wrong),
    actual: Object.fromEntries(wrong.map(([name]) => [name, actual[name]]))
  }
}

const inOneLine = (value: unknown): string =>
  typeof value === "string"
    ? value
    : stringify(value, { collectionStyle: "flow", lineWidth: 0, keepUndefined: true }).trim()
