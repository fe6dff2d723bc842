import { assert, it } from "@effect/vitest"
import * as core from "@headgate/core"
import * as postgres from "@headgate/postgres"
import * as worker from "@headgate/worker"
import { readFileSync } from "node:fs"
import { reference, referencePath } from "../scripts/reference.ts"

it("the reference page lists what the sources export, as they describe it", () => {
  assert.strictEqual(readFileSync(referencePath, "utf8"), reference(), "run `npm run reference`")
})

it("every name a user can import is on the reference page", () => {
  const page = readFileSync(referencePath, "utf8")
  const modules = new Set(["Isolated", "Outcomes", "Metrics", "PostgresStore", "Migrations"])
  const missing = [core, postgres, worker].flatMap((exports) => Object.keys(exports))
    .filter((name) => !modules.has(name) && !page.includes(`\`${name}\``))
  assert.deepStrictEqual(missing, [])
})
