import { assert, describe, it } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import { execFile } from "node:child_process"
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { promisify } from "node:util"

const examples = join(import.meta.dirname, "..", "examples")
const names = readdirSync(examples).filter((name) => /^\d\d-/.test(name)).sort()

/** Runs an example as a user would, on a database of its own, and answers what it printed. */
const run = (name: string, url: string) =>
  Effect.promise((signal) =>
    promisify(execFile)(process.execPath, ["--conditions=headgate-source", join(examples, name, "main.ts")], {
      env: { ...process.env, DATABASE_URL: url },
      timeout: 120_000,
      signal
    })
  )

describe.for(names)("examples/%s", (name) => {
  it.live("prints what expected.txt says, and nothing else", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.make({ isMigrated: false })
      const { stderr, stdout } = yield* run(name, url)
      assert.strictEqual(stdout, readFileSync(join(examples, name, "expected.txt"), "utf8"))
      assert.strictEqual(stderr, "")
    }).pipe(Effect.scoped), 240_000)

  it("fits on a page or two", () => {
    assert.isAtMost(readFileSync(join(examples, name, "main.ts"), "utf8").split("\n").length - 1, 80)
  })

  it("is listed in the overview", () => {
    assert.isTrue(existsSync(join(examples, "README.md")))
    assert.include(readFileSync(join(examples, "README.md"), "utf8"), `](${name}/main.ts)`)
  })
})

it("there are examples at all", () => assert.isAtLeast(names.length, 4))
