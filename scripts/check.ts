/** Everything that is checked without running a test: types, lint, format, structure. All run; the first failure counts. */
import { spawnSync } from "node:child_process"

const checks: ReadonlyArray<readonly [name: string, command: string, ...args: ReadonlyArray<string>]> = [
  ["types", "tsc", "-b"],
  ["lint", "oxlint"],
  ["format", "dprint", "check"],
  ["structure", process.execPath, "scripts/check-structure.ts"]
]

const failed = checks.filter(([name, command, ...args]) => {
  const startedAt = performance.now()
  const { error, status } = spawnSync(command, args, { stdio: "inherit" })
  if (error) console.error(`${command}: ${error.message}`)
  console.log(`${status === 0 ? "ok    " : "FAILED"} ${name} (${Math.round(performance.now() - startedAt)} ms)`)
  return status !== 0
})

process.exit(failed.length === 0 ? 0 : 1)
