import { assert, it } from "@effect/vitest"
import { Task } from "@headgate/core"
import { Schema } from "effect"
import { guessFor, MAX_SUCCESSORS, StepGuess } from "../src/StepGuess.ts"

it("the latest successor stands", () => {
  const guess = new StepGuess()
  guess.learn("a", "b")
  guess.learn("a", "c")
  assert.deepStrictEqual([guess.after("a"), guess.after("b")], ["c", undefined])
})

it("it remembers a bounded number, and forgets first what was learnt longest ago", () => {
  const guess = new StepGuess()
  for (let n = 0; n < MAX_SUCCESSORS; n++) guess.learn(`s${n}`, "next")
  guess.learn("s0", "another")
  guess.learn("one more", "next")
  assert.deepStrictEqual([guess.size, guess.after("s0"), guess.after("s1")], [MAX_SUCCESSORS, "another", undefined])
})

it("all attempts of a task share one, and no other task does", () => {
  const [a, b] = ["a", "b"].map((kind) => Task.make(kind, { payload: Schema.Void }).definition)
  guessFor(a!).learn("x", "y")
  assert.deepStrictEqual([guessFor(a!).after("x"), guessFor(b!).after("x")], ["y", undefined])
})
