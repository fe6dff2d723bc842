import { assert, it } from "@effect/vitest"
import { existsSync, globSync, readFileSync } from "node:fs"
import { dirname, join, relative } from "node:path"

const root = join(import.meta.dirname, "..")

it("every link between the documents leads somewhere", () => {
  const pages = globSync("{*.md,docs/**/*.md,conformance/*.md,examples/*.md}", { cwd: root })
  const dangling = pages.flatMap((page) => {
    const text = readFileSync(join(root, page), "utf8")
    return [...text.matchAll(/\]\((?!https?:|#)([^)#\s]+)/g)]
      .map(([, target = ""]) => join(dirname(page), target))
      .filter((target) => !existsSync(join(root, target)))
      .map((target) => `${page}: ${relative(".", target)}`)
  })
  assert.isAbove(pages.length, 10)
  assert.deepStrictEqual(dangling, [])
})

it("the README shows the commands that everything starts with", () => {
  const readme = readFileSync(join(root, "README.md"), "utf8")
  for (const command of ["npm install && npm run demo", "npm install && npm test"]) assert.include(readme, command)
})
