/* oxlint-disable unicorn/no-thenable -- the last part of a scenario is its `then` */
import { assert, layer } from "@effect/vitest"
import { Effect } from "effect"
import { join } from "node:path"
import { parse } from "yaml"
import { Broken } from "./Broken.ts"
import { root, type ScenarioFile } from "./Corpus.ts"
import * as PostgresStage from "./PostgresStage.ts"
import * as Runner from "./Runner.ts"

/** A scenario of the corpus's format, given as text. Its lines are told as 7. */
const scenario = (text: string): ScenarioFile => ({
  area: "made_up",
  path: join(root, "scenarios/made_up/example.yaml"),
  scenario: { promise: "An example for the runner", when: [], then: [], ...parse(text) },
  lineOf: () => 7
})

/** Scenarios that say something untrue of a store that is right, and what must be told of each. */
const untrue: ReadonlyArray<readonly [title: string, text: string, told: ReadonlyArray<string>]> = [
  [
    "a step that is refused where it must be accepted",
    "when: [{ enqueue: { id: j1, kind: greet } }, { release: { job: j1 } }]",
    ["when 2   { release: { job: j1 } }", "expected accepted", "refused: WrongState", "state: available"]
  ],
  [
    "a step that is accepted where it must be refused",
    "given: [{ enqueue: { id: j1, kind: greet }, refused: Duplicate }]",
    ["given 1   { enqueue: { id: j1, kind: greet }, refused: Duplicate }", "expected refused Duplicate", "accepted"]
  ],
  [
    "a refusal of another name",
    "when: [{ cancel: { job: nobody }, refused: WrongState }]",
    ["expected refused WrongState", "actual   { refused: NotFound, id: nobody }"]
  ],
  [
    "another answer",
    "when: [{ enqueue: { id: j1, kind: greet } }, { admit: { worker: w1 }, answers: { jobs: [j2] } }]",
    ["expected { jobs: [ j2 ] }", "actual   { jobs: [ j1 ] }"]
  ],
  [
    "claims in another order",
    `given: [{ enqueue: { id: j1, kind: greet } }, { enqueue: { id: j2, kind: greet, priority: 1 } }]
when: [{ admit: { worker: w1, capacity: 2 }, answers: { jobs: [j1, j2] } }]`,
    ["expected { jobs: [ j1, j2 ] }", "actual   { jobs: [ j2, j1 ] }"]
  ],
  [
    "claims of other partitions",
    `given: [{ enqueue: { id: j, many: 12, kind: greet, partition: ann } }, { enqueue: { id: k, kind: greet } }]
when: [{ admit: { worker: w1, capacity: 20 }, answers: { count: 13, partitions: { ann: 13 } } }]
then: [{ job: j12, state: running }]`,
    ["expected { partitions: { ann: 13 } }", "actual   { partitions: { ann: 12, \"\": 1 } }"]
  ],
  [
    "a job that the gate ended, where none may be",
    `given: [{ enqueue: { id: j1, kind: greet, deadline_at_ms: 1000 } }, { advance_ms: 1000 }]
when: [{ admit: { worker: w1 }, answers: { jobs: [], ended: {} } }]`,
    ["expected { ended: {} }", "actual   { ended: { j1: deadline } }"]
  ],
  [
    "another cause",
    `given: [{ heartbeat: { worker: w1 } }, { enqueue: { id: j1, kind: greet } }, { pause: { kind: greet } }]
when: [{ explain: { job: j1 }, answers: { blocked_by: queue_paused } }]`,
    ["expected { blocked_by: queue_paused }", "actual   { blocked_by: paused }"]
  ],
  [
    "an answer that the operation does not give",
    "when: [{ advance_ms: 1, answers: { state: running } }]",
    ["expected { state: running }", "actual   { state: null }"]
  ],
  [
    "fewer claims than names",
    "when: [{ enqueue: { id: j1, kind: greet } }, { admit: { worker: w1, capacity: 2 }, as: [first, second] }]",
    ["expected 2 claimed, as first, second", "actual   { jobs: [ j1 ] }"]
  ],
  [
    "more claims than names",
    `given: [{ enqueue: [{ id: j1, kind: greet }, { id: j2, kind: greet }] }]
when: [{ admit: { worker: w1, capacity: 2 }, as: first }]`,
    ["expected 1 claimed, as first", "actual   { jobs: [ j1, j2 ] }"]
  ],
  [
    "a refused settlement of a batch that the step does not name",
    `given: [{ enqueue: [{ id: j1, kind: greet }, { id: j2, kind: greet }] }]
when:
  - { admit: { worker: w1, capacity: 2 }, as: [first, second] }
  - { cancel: { job: j1 } }
  - { settle: [{ claim: $first, outcome: success }, { claim: $second, outcome: success }] }`,
    ["when 3", "expected { rejected: [] }", "actual   { rejected: [ j1 ] }"]
  ],
  [
    "a claim that has no name",
    "when: [{ renew: { claims: [$nobody] } }]",
    ["expected accepted", "no claim has the name $nobody"]
  ],
  [
    "an assertion about a job",
    "when: [{ enqueue: { id: j1, kind: greet } }]\nthen: [{ job: j1, state: running, attempt: 0, fence: 1 }]",
    [
      "then 1   { job: j1, state: running, attempt: 0, fence: 1 }",
      "expected { state: running, fence: 1 }",
      "actual   { state: available, fence: 0 }"
    ]
  ],
  [
    "an assertion about a job that is not there",
    "then: [{ job: j1, attempt: 0 }]",
    ["expected { attempt: 0 }", "actual   { attempt: null }"]
  ],
  [
    "steps in another order",
    `given: [{ enqueue: { id: j1, kind: greet } }]
when:
  - { admit: { worker: w1 }, as: first }
  - { checkpoint: { claim: $first, record: { step: a } } }
  - { checkpoint: { claim: $first, record: { step: b } } }
then: [{ checkpoint: j1, completed_steps: [b, a] }]`,
    ["expected { completed_steps: [ b, a ] }", "actual   { completed_steps: [ a, b ] }"]
  ]
]

layer(PostgresStage.layer, { excludeTestServices: true })("a scenario fails on", (it) => {
  for (const [title, text, told] of untrue) {
    it.effect(`${title}, and tells where`, () =>
      Effect.gen(function*() {
        const broken = yield* Effect.flip(Runner.run(scenario(text)))
        assert.instanceOf(broken, Broken)
        const message = String(broken)
        for (const part of ["conformance/scenarios/made_up/example.yaml:7", ...told]) assert.include(message, part)
      }))
  }

  it.effect("nothing that an earlier scenario left behind", () =>
    Effect.gen(function*() {
      const once = scenario(`when:
  - { enqueue: { id: j1, kind: greet }, answers: { status: created } }
  - { advance_ms: 5 }
  - { admit: { worker: w1 }, as: first }
  - { checkpoint: { claim: $first, record: { step: a } } }
then: [{ job: j1, state: running, scheduled_at_ms: 0, fence: 1 }]`)
      yield* Runner.run(once)
      yield* Runner.run(once)
    }))
})
