/* oxlint-disable unicorn/no-thenable -- the last part of a scenario is its `then` */
import { assert, describe, it } from "@effect/vitest"
import { Ajv2020 } from "ajv/dist/2020.js"
import { globSync, readFileSync } from "node:fs"
import { join, relative } from "node:path"
import { json, root, scenarios, vectorNames } from "./Corpus.ts"
import { operations } from "./Operations.ts"
import { listOf, type Step } from "./Scenario.ts"

const schema = json("scenario.schema.json")
const ajv = new Ajv2020({
  allErrors: true,
  strict: true,
  strictRequired: false,
  allowUnionTypes: true,
  useDefaults: false
})
  .addSchema(json("state_machine.schema.json") as object, "state_machine.schema.json")
const validate = ajv.compile(schema as object)

const nameOf = (path: string) => relative(root, path)

describe("the scenarios", () => {
  it("are all read: every file lies in the folder of an area", () => {
    const files = globSync("scenarios/**/*.*", { cwd: root }).sort()
    assert.deepStrictEqual(files.filter((path) => !/^scenarios\/[a-z_]+\/[a-z0-9_]+\.yaml$/.test(path)), [])
    assert.deepStrictEqual(scenarios.map(({ path }) => nameOf(path)), files)
    assert.isAtLeast(files.length, 190)
  })

  it("keep to the schema", () => {
    const wrong = scenarios.filter(({ scenario }) => !validate(scenario))
      .map(({ path, scenario }) => [nameOf(path), validate(scenario), ajv.errorsText(validate.errors)])
    assert.deepStrictEqual(wrong, [])
  })

  it("make each promise once", () => {
    const promises = scenarios.map(({ scenario }) => scenario.promise.toLowerCase())
    assert.deepStrictEqual(promises.filter((promise, index) => promises.indexOf(promise) !== index), [])
  })

  it("refer only to claims that an earlier step has named, each name once", () => {
    const wrong = scenarios.flatMap(({ path, scenario }) =>
      danglingReferences([...scenario.given ?? [], ...scenario.when]).map((what) => `${nameOf(path)}: ${what}`)
    )
    assert.deepStrictEqual(wrong, [])
  })

  it("between them use every operation and every outcome", () => {
    const steps = scenarios.flatMap(({ scenario }) => [...scenario.given ?? [], ...scenario.when])
    const used = new Set(steps.flatMap((step) => Object.keys(step)))
    assert.deepStrictEqual(Object.keys(operations).filter((name) => !used.has(name)), [])
    const settled = new Set(
      steps.flatMap(({ settle }) => settle === undefined ? [] : listOf(settle)).map((s) => s.outcome)
    )
    // SAFETY: the schema of the state machine lists the outcomes there.
    const { $defs } = json("state_machine.schema.json") as { $defs: { outcome: { enum: ReadonlyArray<string> } } }
    assert.deepStrictEqual($defs.outcome.enum.filter((name) => !settled.has(name as never)), [])
  })
})

describe("the format", () => {
  it("names the operations that the runner knows", () => {
    // SAFETY: the schema describes a step there.
    const { $defs } = schema as {
      $defs: { step: { properties: object; oneOf: ReadonlyArray<{ required: [string] }> } }
    }
    const known = Object.keys(operations).sort()
    assert.deepStrictEqual($defs.step.oneOf.map(({ required: [name] }) => name).sort(), known)
    assert.deepStrictEqual(Object.keys($defs.step.properties).sort(), [...known, "answers", "as", "refused"].sort())
  })

  it("refuses a field that it does not know, and a step that does two things", () => {
    const sound = {
      promise: "a promise of some length",
      when: [{ advance_ms: 1 }],
      then: [{ job: "j1", state: "running" }]
    }
    assert.isTrue(validate(sound))
    const broken = [
      { ...sound, skip: true },
      { ...sound, when: [] },
      { ...sound, then: [] },
      { ...sound, then: [{ job: "j1" }] },
      { ...sound, then: [{ job: "j1", state: "runing" }] },
      { ...sound, when: [{ advance_ms: 1, cancel: { job: "j1" } }] },
      { ...sound, when: [{ cancel: { job: "j1" }, as: "first" }] },
      { ...sound, when: [{ settle: { claim: "first", outcome: "success" } }] },
      { ...sound, when: [{ settle: { claim: "$first", outcome: "retry", delay_ms: 1, push_back_ms: 1 } }] },
      { ...sound, when: [{ pause: { queue: "mail", kind: "greet" } }] },
      { ...sound, when: [{ set_limit: { name: "most", scope: "kind", queue: "mail", max: 1 } }] },
      { ...sound, when: [{ settle: [{ claim: "$first", outcome: "success" }], refused: "LeaseRejected" }] }
    ]
    assert.deepStrictEqual(broken.filter((each) => validate(each)), [])
  })
})

describe("the vectors", () => {
  it.each(vectorNames)("%s is read by a test of core", (name) => {
    const tests = globSync("packages/core/test/*.test.ts", { cwd: join(root, "..") })
    const readers = tests.filter((path) => readFileSync(join(root, "..", path), "utf8").includes(`("${name}")`))
    assert.isNotEmpty(readers)
  })
})

function danglingReferences(steps: ReadonlyArray<Step>): ReadonlyArray<string> {
  const known = new Set<string>()
  const wrong: Array<string> = []
  for (const step of steps) {
    for (const [, name] of JSON.stringify(step).matchAll(/"\$([^"]*)"/g)) {
      if (name !== undefined && !known.has(name)) wrong.push(`$${name} is not known yet`)
    }
    for (const name of [step.as ?? []].flat()) {
      if (known.has(name)) wrong.push(`${name} is named twice`)
      known.add(name)
    }
  }
  return wrong
}
