/**
 * Proves that each guard is guarded: deletes it in a copy of the tree, runs its test, and expects red. Ends with the
 * closing line of the test commands, where a guard whose test stays green is a failure. `--only WORD` narrows the list.
 */
import { spawnSync } from "node:child_process"
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { type Guard, guards } from "../test/guards.ts"

const root = join(import.meta.dirname, "..")
const only = process.argv.includes("--only") ? process.argv[process.argv.indexOf("--only") + 1] : undefined

/** A copy that resolves the project's own packages to itself and everything else to the installed modules. */
const copyTree = (): string => {
  const copy = mkdtempSync(join(tmpdir(), "headgate-guards-"))
  for (const name of readdirSync(root)) {
    if (name === "node_modules" || name.startsWith(".git")) continue
    cpSync(join(root, name), join(copy, name), {
      recursive: true,
      filter: (path) => !/[/\\](node_modules|dist)$/.test(path)
    })
  }
  const modules = join(copy, "node_modules")
  mkdirSync(join(modules, "@headgate"), { recursive: true })
  for (const name of readdirSync(join(root, "node_modules"))) {
    if (name !== "@headgate" && name !== "headgate") symlinkSync(join(root, "node_modules", name), join(modules, name))
  }
  for (const name of readdirSync(join(copy, "packages"))) {
    const link = name === "headgate" ? join(modules, name) : join(modules, "@headgate", name)
    symlinkSync(join(copy, "packages", name), link)
  }
  return copy
}

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

const copy = copyTree()
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
