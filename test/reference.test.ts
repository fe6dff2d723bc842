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

it("what a service, an interface, a schema and an object of functions hold is on the reference page, each in one line", () => {
  const lines = readFileSync(referencePath, "utf8").split("\n")
  const under = (name: string) => {
    const from = lines.findIndex((line) => line.startsWith(`**\`${name}\`**`)) + 2
    return lines.slice(from, lines.indexOf("", from)).map((line) => /^- `([^`]+)`/.exec(line)?.[1] ?? line)
  }
  const member: Readonly<Record<string, string>> = {
    Inspect: "job: (id: JobId) => Effect.Effect<JobSummary, NotFound | StoreUnavailable>",
    Control: "retry: (id: JobId, options?: RetryOptions) => Effect.Effect<Moved, ControlRefusal | KeyTaken | Invalid>",
    Job: "Job.snooze(duration: Duration.Input): Effect.Effect<never, never, Job>",
    StuckEvidence: "steps: ReadonlyArray<string>",
    NotFound: "id: Schema.String",
    Retry: "Retry.fixed(delay: Duration.Input, options?: { jitter?: number }): FixedRetry"
  }
  for (const [name, signature] of Object.entries(member)) assert.include(under(name), signature)
  // Of a function with a body, and of a service that has both, one is told.
  assert.deepStrictEqual(under("Job").filter((signature) => /\bsnooze\b|return /.test(signature)).length, 1)
})
