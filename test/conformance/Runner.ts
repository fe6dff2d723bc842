/**
 * Runs one scenario against the store of the context: step by step, then every assertion. Fails with `Broken` at the
 * first step that answers otherwise, and with anything the store does that is neither an answer nor a refusal.
 */
import { Cause, Effect, Exit } from "effect"
import { Broken, differences } from "./Broken.ts"
import type { ScenarioFile } from "./Corpus.ts"
import * as Facts from "./Facts.ts"
import { operations, type Refusal } from "./Operations.ts"
import type { Arguments, CheckpointAssertion, JobAssertion, OperationName, Step } from "./Scenario.ts"
import { Stage } from "./Stage.ts"
import * as World from "./World.ts"

export const run = Effect.fnUntraced(function*(file: ScenarioFile) {
  const world = World.make(file.scenario, yield* Stage.use((stage) => stage.clear))
  for (const part of ["given", "when"] as const) {
    for (const [index, step] of (file.scenario[part] ?? []).entries()) {
      const wrong = yield* perform(world, step)
      if (wrong !== undefined) return yield* Effect.fail(new Broken(file, [part, index], wrong.expected, wrong.actual))
    }
  }
  for (const [index, assertion] of file.scenario.then.entries()) {
    const wrong = yield* compare(world, assertion)
    if (wrong !== undefined) return yield* Effect.fail(new Broken(file, ["then", index], wrong.expected, wrong.actual))
  }
  yield* runningMeansHeld(file, world)
})

interface Wrong {
  readonly expected: unknown
  readonly actual: unknown
}

/** Does the step; undefined when its answer is as expected. */
const perform = Effect.fnUntraced(function*(world: World.World, step: Step) {
  const name = operationOf(step)
  const exit = yield* Effect.exit(call(world, name, step))
  if (Exit.isFailure(exit)) {
    const refusal = refusalOf(exit.cause)
    if (refusal === undefined || refusal._tag !== step.refused) {
      const expected = step.refused === undefined ? "accepted" : `refused ${step.refused}`
      return {
        expected,
        actual: refusal === undefined ? `died of ${Cause.squash(exit.cause)}` : described(refusal)
      } satisfies Wrong
    }
    return differences(step.answers ?? {}, answersOf(refusal), name === "admit")
  }
  const answers = exit.value
  if (step.refused !== undefined) return { expected: `refused ${step.refused}`, actual: { accepted: answers } }
  const names = step.as === undefined ? undefined : [step.as].flat()
  if (names !== undefined && !World.nameClaims(world, names)) {
    return { expected: `${names.length} claimed, as ${names.join(", ")}`, actual: { jobs: answers.jobs } }
  }
  // A refused settlement is never passed over: the step must have named it.
  return differences({ ...answers.rejected && { rejected: [] }, ...step.answers }, { ...answers }, name === "admit")
})

const call = <Name extends OperationName>(world: World.World, name: Name, step: Step) =>
  // SAFETY: the step has the arguments of the operation it names.
  operations[name](world, step[name] as Arguments[Name])

const operationOf = (step: Step): OperationName => {
  const name = Object.keys(step).find((key): key is OperationName => key in operations)
  if (name === undefined) throw new Error(`no operation in ${JSON.stringify(step)}`)
  return name
}

const refusalOf = (cause: Cause.Cause<Refusal>): Refusal | undefined =>
  cause.reasons.length === 1 ? cause.reasons.find(Cause.isFailReason)?.error : undefined

/** The fields of a refusal by their names in the corpus. */
const answersOf = (refusal: Refusal): Readonly<Record<string, unknown>> =>
  Object.fromEntries(
    Object.entries(refusal).map(([key, value]) => [
      key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      value
    ])
  )

const described = (refusal: Refusal) => {
  const { _tag, ...fields } = answersOf(refusal)
  return { refused: _tag, ...fields }
}

const compare = Effect.fnUntraced(function*(world: World.World, assertion: JobAssertion | CheckpointAssertion) {
  if ("job" in assertion) {
    const { job: _, ...asserted } = assertion
    return differences(asserted, yield* Facts.ofJob(world, assertion), true)
  }
  const { checkpoint: _, ...asserted } = assertion
  return differences(asserted, yield* Facts.ofCheckpoint(assertion), true)
})

/** True at the end of every scenario: a job has a worker and an expiry exactly while it runs. */
const runningMeansHeld = Effect.fnUntraced(function*(file: ScenarioFile, world: World.World) {
  for (const id of new Set(world.jobs.map(({ id }) => id))) {
    const facts: Facts.Facts = yield* Facts.ofJob(world, { job: id })
    if (facts["state"] === "deleted") continue
    const isRunning = facts["state"] === "running"
    for (const field of ["worker", "lease_expires_at_ms"]) {
      if ((facts[field] !== null) === isRunning) continue
      const expected = `${id} has a worker and an expiry exactly while it runs`
      yield* Effect.fail(new Broken(file, ["then", 0], expected, { job: id, ...facts }))
    }
  }
})
