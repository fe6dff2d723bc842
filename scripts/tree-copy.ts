/** Copies of the repository in which a guard can be taken out. */
import { cpSync, mkdirSync, mkdtempSync, readdirSync, symlinkSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"

const root = join(import.meta.dirname, "..")

/** A copy that resolves the project's own packages to itself and everything else to the installed modules. */
export const copyTree = (purpose: string): string => {
  const copy = mkdtempSync(join(tmpdir(), `headgate-${purpose}-`))
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
