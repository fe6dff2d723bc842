import { Result } from "effect"
import { assert, describe, it } from "vitest"
import { checkKindCollisions, validateKind } from "../src/Kind.ts"
import { textOf, vectors, type VectorText } from "./vectors.ts"

const kinds = vectors<{
  readonly valid: ReadonlyArray<VectorText>
  readonly invalid: ReadonlyArray<VectorText>
  readonly collisions: ReadonlyArray<{
    readonly name: string
    readonly tasks: ReadonlyArray<{ readonly kind: string; readonly aliases: ReadonlyArray<string> }>
    readonly ok: boolean
    readonly field?: string
  }>
}>("kinds")

describe("a kind", () => {
  for (const kind of kinds.valid.map(textOf)) {
    it(`may be ${JSON.stringify(kind).slice(0, 40)}`, () => {
      assert.deepStrictEqual(validateKind(kind), Result.succeed(kind))
    })
  }
  for (const kind of kinds.invalid.map(textOf)) {
    it(`may not be ${JSON.stringify(kind).slice(0, 40)}`, () => {
      assert.strictEqual(Result.getOrThrow(Result.flip(validateKind(kind))).field, "kind")
    })
  }

  it("that is too long is refused with limit and length in bytes", () => {
    const refusal = Result.getOrThrow(Result.flip(validateKind("ä".repeat(65))))
    assert.deepStrictEqual([refusal.limit, refusal.actual], [128, 130])
  })
})

describe("a registry of kinds", () => {
  for (const { field, name, ok, tasks } of kinds.collisions) {
    it(`${ok ? "accepts" : "refuses"}: ${name}`, () => {
      const checked = checkKindCollisions(tasks)
      assert.strictEqual(Result.isFailure(checked) ? checked.failure.field : undefined, ok ? undefined : field)
    })
  }

  it("names both tasks that claim one name", () => {
    const checked = checkKindCollisions([{ kind: "first", aliases: ["shared"] }, {
      kind: "second",
      aliases: ["shared"]
    }])
    const { message } = Result.getOrThrow(Result.flip(checked))
    assert.match(message, /shared.*second.*first/)
  })
})
