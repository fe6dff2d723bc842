/**
 * Runs the tests and ends with one line, `N passed, N failed, N skipped`. A run in which a test failed, or none ran,
 * fails. What is not listed here goes to vitest: `npm test -- packages/core -t "lease"`.
 *
 *   --conformance   only the conformance corpus
 *   --pg15          on PostgreSQL 15, the oldest supported version (installed first where that is possible)
 */
import { parseCLI, startVitest, type Vitest } from "vitest/node"
import { postgres15 } from "./postgres15.ts"

const { conformance, pg15, rest } = readArguments(process.argv.slice(2))

if (pg15) {
  delete process.env["DATABASE_URL"]
  process.env["HEADGATE_POSTGRES_BIN"] = postgres15()
}

const { filter, options } = parseCLI(["vitest", "run", ...conformance ? ["test/conformance/"] : [], ...rest])
const vitest = await startVitest("test", filter, { ...options, watch: false, passWithNoTests: true })
const { failed, passed, skipped } = count(vitest)
const hasStrayErrors = vitest.state.getUnhandledErrors().length > 0
await vitest.close()

const isGood = failed === 0 && passed > 0 && !hasStrayErrors
process.stdout.write(`\n${passed} passed, ${failed} failed, ${skipped} skipped\n`, () => process.exit(isGood ? 0 : 1))

function readArguments(all: ReadonlyArray<string>) {
  const own = ["--conformance", "--pg15"]
  return {
    conformance: all.includes("--conformance"),
    pg15: all.includes("--pg15"),
    rest: all.filter((argument) => !own.includes(argument))
  }
}

/** A file or a block that could not even be set up counts as one failure more. */
function count(vitest: Vitest) {
  const total = { passed: 0, failed: 0, skipped: 0, pending: 0 }
  for (const module of vitest.state.getTestModules()) {
    if (module.errors().length > 0) total.failed++
    for (const suite of module.children.allSuites()) total.failed += suite.errors().length > 0 ? 1 : 0
    for (const test of module.children.allTests()) total[test.result().state]++
  }
  return { passed: total.passed, failed: total.failed + total.pending, skipped: total.skipped }
}
