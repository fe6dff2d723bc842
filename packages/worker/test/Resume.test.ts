import { assert, it, layer } from "@effect/vitest"
import { type Checkpoint, Control, Cursor, Inspect, JobId, Once, Step, type StepMapping, Task } from "@headgate/core"
import { Effect, Schema } from "effect"
import { planResume } from "../src/Resume.ts"
import * as Attempts from "./Attempts.ts"

const payload = Schema.Void
const V1 = ["a", "b", "nap", "c"]
const text = { result: Schema.String }

/** Parks a job of the first build in its sleep: a and b are recorded, c is still to come. */
const parked = Effect.fnUntraced(function*(kind: string) {
  const task = Task.make(kind, { payload, steps: V1 })
  const id = yield* task.enqueue(undefined)
  const worker = yield* Attempts.worker()
  const { entries, say } = Attempts.log()
  const step = (name: string) => Step.run(name, Effect.as(say(name), name.toUpperCase()), text)
  const handler = Effect.gen(function*() {
    const answers = [yield* step("a"), yield* step("b")]
    yield* Step.sleep("nap", "10 minutes")
    return [...answers, yield* step("c")].join(" ")
  })
  yield* worker.run(task, handler)
  yield* Attempts.due()
  const next = (steps: ReadonlyArray<string>, stepMappings: ReadonlyArray<StepMapping> = []) =>
    Task.make(kind, { payload, steps, stepMappings })
  return { id, task, worker, handler, entries, step, next }
})

const nap = Step.sleep("nap", "10 minutes")

layer(Attempts.layer, { excludeTestServices: true })("Resume", (it) => {
  it.effect("the same code resumes: recorded steps replay, the rest runs", () =>
    Effect.gen(function*() {
      const { entries, handler, task, worker } = yield* parked("same")
      const { exit } = yield* worker.run(task, handler)
      assert.deepStrictEqual([exit._tag === "Success" && exit.value, entries], ["A B C", ["a", "b", "c"]])
    }))

  it.effect("names decide, not positions: swapped steps get their own results", () =>
    Effect.gen(function*() {
      const { entries, next, step, worker } = yield* parked("swapped")
      const { exit } = yield* worker.run(
        next(["b", "a", "nap", "c"]),
        Effect.all([step("b"), step("a"), Effect.as(nap, "-"), step("c")])
      )
      assert.deepStrictEqual([exit._tag === "Success" && exit.value, entries], [["B", "A", "-", "C"], ["a", "b", "c"]])
    }))

  const changed: ReadonlyArray<readonly [title: string, steps: ReadonlyArray<string>, difference: string]> = [
    ["a renamed step", ["a", "b2", "nap", "c"], "gone: b; new: b2"],
    ["a step before others", ["a", "x", "b", "nap", "c"], "new: x"],
    ["a deleted step", ["a", "nap", "c"], "gone: b"]
  ]
  for (const [index, [title, steps, difference]] of changed.entries()) {
    it.effect(`${title} without a mapping parks the job, names the difference, and is looked at once; the old build goes on`, () =>
      Effect.gen(function*() {
        const { entries, handler, id, next, task, worker } = yield* parked(`changed-${index}`)
        const { outcome } = yield* worker.run(next(steps), Effect.die("ran"))
        const inspect = yield* Inspect
        const job = yield* inspect.job(id)
        assert.deepStrictEqual([outcome?._tag, job.state, job.attempt, job.crashAttempt], [
          "CheckpointStale",
          "undecodable",
          0,
          0
        ])
        for (const part of ["[a, b, c, nap]", difference]) assert.include(yield* Attempts.reason(id), part)
        yield* Attempts.due()
        assert.isEmpty(yield* worker.claimAll(next(steps), 1))
        yield* (yield* Control).retry(JobId.make(id))
        const { exit } = yield* worker.run(task, handler)
        assert.deepStrictEqual([exit._tag === "Success" && exit.value, entries], ["A B C", ["a", "b", "c"]])
      }))
  }

  it.effect("a mapping renames, inserts and removes: kept steps replay their own results, new ones run", () =>
    Effect.gen(function*() {
      const { entries, id, next, step, worker } = yield* parked("mapped")
      const steps = ["x", "b2", "nap", "c"]
      const task = next(steps, [{ from: V1, to: { a: null, b: "b2" } }])
      const { exit } = yield* worker.run(task, Effect.all([step("x"), step("b2"), Effect.as(nap, "-"), step("c")]))
      assert.deepStrictEqual([exit._tag === "Success" && exit.value, entries], [
        ["X", "B", "-", "C"],
        ["a", "b", "x", "c"]
      ])
      const checkpoint = yield* (yield* Inspect).checkpoint(id)
      assert.deepStrictEqual(checkpoint?.stepSet, [...steps].sort())
      assert.deepStrictEqual(checkpoint?.records.map(({ step }) => step).sort(), [...steps].sort())
    }))

  it.effect("the mapping is stored before the handler runs, and done once", () =>
    Effect.gen(function*() {
      const { id, next, worker } = yield* parked("persisted")
      const task = next(["a", "b2", "nap", "c"], [{ from: V1, to: { b: "b2" } }])
      const inspect = yield* Inspect
      const stored = Effect.map(Effect.orDie(inspect.checkpoint(id)), (checkpoint) => checkpoint?.stepSet?.join(" "))
      const first = yield* worker.run(task, Effect.flatMap(stored, Effect.fail))
      assert.strictEqual(Attempts.failure(first.exit), "a b2 c nap")
      yield* Attempts.due()
      const { exit } = yield* worker.run(task, Step.run("b2", Effect.die("ran"), text))
      assert.strictEqual(exit._tag === "Success" && exit.value, "B")
    }))

  it.effect("a split step counts as finished under each of its names, keyed steps keep their keys", () =>
    Effect.gen(function*() {
      const kind = "split"
      const old = Task.make(kind, { payload, steps: ["load", "item"] })
      yield* old.enqueue(undefined)
      const worker = yield* Attempts.worker()
      const item = (name: string, key: string) => Step.run(name, Effect.succeed(`${name} ${key}`), { key, ...text })
      yield* worker.run(
        old,
        Effect.all([Step.run("load", Effect.void), item("item", "1"), item("item", "2"), Effect.fail("later")])
      )
      yield* Attempts.due()
      const stepMappings = [{ from: ["item", "load"], to: { load: ["fetch", "parse"], item: "row" } }]
      const task = Task.make(kind, { payload, steps: ["fetch", "parse", "row"], stepMappings })
      const { exit } = yield* worker.run(
        task,
        Effect.all([
          Step.run("fetch", Effect.die("ran")),
          Step.run("parse", Effect.die("ran")),
          item("row", "2"),
          item("row", "3"),
          item("row", "1")
        ])
      )
      assert.deepStrictEqual(exit._tag === "Success" && (exit.value as Array<unknown>).slice(2), [
        "item 2",
        "row 3",
        "item 1"
      ])
    }))

  it.effect("a cursor's position follows its new name", () =>
    Effect.gen(function*() {
      const kind = "moved-cursor"
      const pages = { schema: Schema.Int, initial: 0 }
      const old = Task.make(kind, { payload, steps: ["pages"] })
      yield* old.enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(old, Cursor.run("pages", pages, (_, save) => Effect.andThen(save(7), Effect.fail("later"))))
      yield* Attempts.due()
      const task = Task.make(kind, {
        payload,
        steps: ["sheets"],
        stepMappings: [{ from: ["pages"], to: { pages: "sheets" } }]
      })
      const starts: Array<number> = []
      yield* worker.run(task, Cursor.run("sheets", pages, (page) => Effect.sync(() => void starts.push(page))))
      assert.deepStrictEqual(starts, [7])
    }))

  it.effect("a kept step that became another kind, or has another result, parks the job and names the step", () =>
    Effect.gen(function*() {
      for (
        const [at, step] of [Once.run("b", Effect.void), Step.run("b", Effect.die("ran"), { result: Schema.Int })]
          .entries()
      ) {
        const { id, task, worker } = yield* parked(`became-${at}`)
        yield* worker.run(task, step)
        const job = yield* (yield* Inspect).job(id)
        assert.deepStrictEqual([job.state, job.attempt, job.crashAttempt], ["undecodable", 0, 0])
        assert.include(yield* Attempts.reason(id), "step b")
      }
    }))

  it.effect("a worker of an older version is not given the job", () =>
    Effect.gen(function*() {
      const newer = Task.make("newer", { payload, version: 2, steps: ["a"] })
      yield* Task.make("newer", { payload }).enqueue(undefined)
      const worker = yield* Attempts.worker()
      yield* worker.run(newer, Effect.andThen(newer.step("a", Effect.void), Effect.fail("later")))
      yield* Attempts.due()
      assert.isEmpty(yield* worker.claimAll(Task.make("newer", { payload, steps: ["a"] }), 1))
      assert.strictEqual((yield* worker.claimAll(newer, 1)).length, 1)
    }))
})

/** What this build makes of a checkpoint with these finished steps. */
const plan = (
  stored: { readonly set?: ReadonlyArray<string>; readonly done?: ReadonlyArray<string> } & Partial<Checkpoint>,
  steps: ReadonlyArray<string> | undefined,
  ...stepMappings: ReadonlyArray<StepMapping>
) => {
  const { done = [], set, ...rest } = stored
  const definition = Task.make("t", { payload, steps, stepMappings }).definition
  const records = done.map((step, position) =>
    ({ step, kind: "step", position, result: undefined, wakeAtMs: undefined }) as const
  )
  const checkpoint: Checkpoint = {
    stepSet: set,
    version: 1,
    records,
    inProgress: undefined,
    cursor: undefined,
    crashesByStep: {},
    ...rest
  }
  const answer = planResume(checkpoint, definition)
  if (answer._tag !== "Mapped") return answer
  const { cursor, inProgress, records: mapped } = answer.checkpoint
  return { steps: mapped.map(({ step }) => step), inProgress, cursor: cursor?.step, sent: answer.steps }
}

const kept = { _tag: "Kept" as const }
const staleReason = (answer: ReturnType<typeof plan>) => "reason" in answer ? answer.reason : "not stale"

it("sets of the same names are equal, in whatever order, and undeclared ones are", () => {
  assert.deepStrictEqual(plan({ set: ["a", "b"], done: ["a"] }, ["b", "a"]), kept)
  assert.deepStrictEqual(plan({ done: ["a"] }, undefined), kept)
})

it("a checkpoint that holds nothing is no obstacle to any set", () => {
  assert.deepStrictEqual(plan({ set: ["a"] }, ["b"]), kept)
})

it("declaring steps that were undeclared, or no longer declaring them, takes a mapping from the set that was", () => {
  assert.include(staleReason(plan({ done: ["a"] }, ["a"])), "(none)")
  assert.include(staleReason(plan({ set: ["a"], done: ["a"] }, undefined)), "gone: a")
  assert.deepInclude(plan({ done: ["a"] }, ["a"], { from: [], to: {} }), { steps: ["a"] })
  assert.deepInclude(plan({ set: ["a"], done: ["a"] }, undefined, { from: ["a"], to: {} }), { steps: ["a"] })
})

it("a chain of mappings is followed when no single one leads to the declared set", () => {
  const first = { from: ["a", "b"], to: { a: "a2" } }
  const second = { from: ["a2", "b", "new"], to: { a2: "a3", b: null } }
  assert.deepInclude(plan({ set: ["a", "b"], done: ["a", "b"] }, ["a3", "new"], second, first), { steps: ["a3"] })
  assert.include(
    staleReason(plan({ set: ["a", "b"], done: ["a"] }, ["a3", "new"], second)),
    "no step mapping from [a, b]"
  )
})

it("a single mapping is preferred to a chain, whatever the order they are given in", () => {
  const detour = { from: ["a"], to: { a: "x" } }
  const onward = { from: ["x"], to: { x: "wrong" } }
  const direct = { from: ["a"], to: { a: "right" } }
  assert.deepInclude(plan({ set: ["a"], done: ["a"] }, ["right", "wrong"], detour, onward, direct), {
    steps: ["right"]
  })
})

it("a long history of mappings without a way out comes to an end", () => {
  const names = (count: number) => Array.from({ length: count }, (_, n) => `s${n}`)
  // In every order they could follow one another there would be more chains than anybody can try.
  const grown = Array.from({ length: 24 }, (_, n) => ({ from: names(n + 1), to: {} }))
  assert.include(staleReason(plan({ set: ["s0"], done: ["s0"] }, names(25).slice(1), ...grown)), "s0")
})

it("mappings that lead in a circle end in a stale checkpoint", () => {
  const there = { from: ["a"], to: { a: "b" } }
  const back = { from: ["b"], to: { b: "a" } }
  assert.include(staleReason(plan({ set: ["a"], done: ["a"] }, ["c"], there, back)), "which t does not declare")
})

it("the mark and the cursor of a split step are its first new name's", () => {
  const cursor = { step: "a[1]", bytes: new Uint8Array() }
  assert.deepStrictEqual(
    plan({ set: ["a"], inProgress: "a[1]", cursor }, ["b", "c"], { from: ["a"], to: { a: ["b", "c"] } }),
    { steps: [], inProgress: "b[1]", cursor: "b[1]", sent: [{ from: "a", to: ["b", "c"] }] }
  )
  assert.deepInclude(
    plan({ set: ["a"], inProgress: "a", cursor: { ...cursor, step: "a" } }, ["b"], { from: ["a"], to: { a: null } }),
    { inProgress: undefined, cursor: undefined }
  )
})

it("a stored name that the mapping leaves out and nobody declares is stale; one under which nothing is stored is not", () => {
  const mapping = { from: ["a", "b"], to: {} }
  assert.include(
    staleReason(plan({ set: ["a", "b"], done: ["a", "b"] }, ["a"], mapping)),
    "step b, which the step mapping leaves out"
  )
  assert.include(
    staleReason(plan({ set: ["a", "b"], inProgress: "b" }, ["a"], mapping)),
    "step b, which the step mapping leaves out"
  )
  assert.deepInclude(plan({ set: ["a", "b"], done: ["a"] }, ["a"], mapping), { steps: ["a"] })
})

it("mappings that end at a name that is not declared are stale", () => {
  const half = [{ from: ["a"], to: { a: "gone" } }, { from: ["gone"], to: {} }]
  assert.include(
    staleReason(plan({ set: ["a"], done: ["a"] }, ["b"], ...half)),
    "leads from a to gone, which t does not declare: [b]"
  )
})

it("two names that lead to one are stale, as soon as one of them is stored", () => {
  const merge = { from: ["a", "b", "c"], to: { a: "d", b: "d" } }
  for (const done of [["a"], ["b"], ["a", "b"]]) {
    assert.include(
      staleReason(plan({ set: ["a", "b", "c"], done }, ["c", "d"], merge)),
      "one record cannot stand for two steps"
    )
  }
  assert.deepInclude(plan({ set: ["a", "b", "c"], done: ["c"] }, ["c", "d"], merge), { steps: ["c"] })
  assert.include(
    staleReason(plan({ set: ["a", "b"], done: ["a"] }, ["b"], { from: ["a", "b"], to: { a: "b" } })),
    "from both a and b to b"
  )
})

it("names that objects have by nature are names like any other", () => {
  assert.deepInclude(
    plan({ set: ["a", "toString"], done: ["toString"] }, ["toString"], { from: ["a", "toString"], to: {} }),
    {
      steps: ["toString"]
    }
  )
})

it("a checkpoint of a newer version is not run from", () => {
  assert.include(staleReason(plan({ set: ["a"], done: ["a"], version: 2 }, ["a"])), "written by version 2 of t")
})
