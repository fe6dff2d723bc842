/**
 * Proves that each guard is guarded: deletes it in a copy of the tree, runs its test, and expects red. Ends with the
 * closing line of the test commands, where a guard whose test stays green is a failure. `--only WORD` narrows the list.
 */
import { spawnSync } from "node:child_process"
import { readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { type Guard, guards } from "../test/guards.ts"
import { copyTree } from "./tree-copy.ts"

const only = process.argv.includes("--only") ? process.argv[process.argv.indexOf("--only") + 1] : undefined

/** Whether the guard's test passes in `copy` as it stands. */
const passes = (copy: string, { test, title }: Guard): boolean => {
  const pattern = title.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&")
  const run = spawnSync(process.execPath, ["node_modules/vitest/vitest.mjs", "run", test, "-t", pattern], {
    cwd: copy,
    encoding: "utf8",
    env: { ...process.env, NO_COLOR: "1" },
    timeout: 180_000
  })
  return run.status === 0 && /Tests\s+[1-9]\d* passed/.test(run.stdout)
}

const proves = (copy: string, guard: Guard): boolean => {
  const file = join(copy, guard.file)
  const text = readFileSync(file, "utf8")
  writeFileSync(file, text.replace(guard.guarded, () => guard.without))
  const isRed = !passes(copy, guard)
  writeFileSync(file, text)
  return isRed
}

const copy = copyTree("guards")
try {
  const chosen = guards.filter(({ promise }) => only === undefined || promise.includes(only))
  let failed = 0
  const tests = new Map(chosen.map((guard) => [`${guard.test} ${guard.title}`, guard]))
  for (const guard of tests.values()) {
    if (passes(copy, guard)) continue
    failed++
    console.log(`BROKEN  ${guard.test}: "${guard.title}" fails with every guard in place`)
  }
  for (const guard of chosen) {
    const isProved = proves(copy, guard)
    if (!isProved) failed++
    console.log(
      `${isProved ? "red    " : "GREEN  "} ${guard.promise}\n        without it: ${guard.test}, "${guard.title}"`
    )
  }
  console.log(`\n${chosen.length - failed} passed, ${failed} failed, 0 skipped`)
  process.exitCode = failed === 0 ? 0 : 1
} finally {
  rmSync(copy, { recursive: true, force: true })
}
