import { assert, describe, it } from "@effect/vitest"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { guards } from "./guards.ts"

const read = (path: string): string => readFileSync(join(import.meta.dirname, "..", path), "utf8")

describe("the list of guards", () => {
  it("names text that stands once in the sources, and tests that exist", () => {
    const stale = guards.filter(({ file, guarded, scenario, test, title }) =>
      read(file).split(guarded).length !== 2 || !read(scenario ?? test).includes(title)
    )
    assert.deepStrictEqual(stale.map(({ promise }) => promise), [])
  })

  it("is in the documentation, guard by guard", () => {
    const page = read("docs/guarantees.md")
    const missing = guards.filter(({ promise, title }) => !page.includes(promise) || !page.includes(title))
    assert.deepStrictEqual(missing.map(({ promise }) => promise), [])
  })
})
