import { assert, describe, it } from "@effect/vitest"
import { JobId, type RedriveRequest, refuseSelection, validateRedrive } from "@headgate/core"
import { Result } from "effect"

const by = { actor: "ada", note: "why" }
const request: RedriveRequest = { filter: { kind: "mail" }, ...by }
const ids = (count: number, id = "j") => Array.from({ length: count }, (_, n) => JobId.make(`${id}${n}`))

const refusal = (request: RedriveRequest) => {
  const result = validateRedrive(request)
  return Result.isFailure(result) ? result.failure : undefined
}

describe("a redrive", () => {
  it("has careful defaults", () => {
    assert.deepStrictEqual(Result.getOrThrow(validateRedrive(request)), {
      staged: true,
      maxFailureRatio: 0.5,
      stageWaitMs: 300_000,
      batch: 100,
      perSecond: 1000,
      deadline: "keep"
    })
  })

  it("is accepted at its limits", () => {
    const atLimits: ReadonlyArray<Partial<RedriveRequest>> = [
      { actor: "a".repeat(256), note: "n".repeat(2000), id: "i".repeat(128) },
      { filter: undefined, ids: ids(10_000) },
      { filter: { partitionKey: "" } },
      { filter: { archivedBeforeMs: 0 } },
      { filter: { archivedWithin: 1, archivedBeforeMs: 0 } },
      { maxFailureRatio: 0, stageWaitMs: 1000, batch: 1, perSecond: 1 },
      { maxFailureRatio: 1, stageWaitMs: 604_800_000, batch: 1000, perSecond: 10_000 },
      { deadline: "clear" },
      { deadline: { afterMs: 1 } }
    ]
    for (const part of atLimits) {
      // SAFETY: each part keeps one of filter and ids.
      assert.isUndefined(refusal({ ...request, ...part } as RedriveRequest), JSON.stringify(Object.keys(part)))
    }
  })

  it("is refused beyond them, with the field named", () => {
    const beyond: ReadonlyArray<readonly [Record<string, unknown>, string, number?, number?]> = [
      [{ actor: "" }, "actor", 1, 0],
      [{ actor: "a".repeat(257) }, "actor", 256, 257],
      [{ note: "" }, "note", 1, 0],
      [{ note: "n".repeat(2001) }, "note", 2000, 2001],
      [{ note: "\u0000" }, "note"],
      [{ id: "" }, "id", 1, 0],
      [{ filter: {} }, "filter", 1, 0],
      [{ filter: undefined }, "filter"],
      [{ ids: ids(1) }, "ids"],
      [{ filter: undefined, ids: [] }, "ids", 1, 0],
      [{ filter: undefined, ids: ids(10_001) }, "ids", 10_000, 10_001],
      [{ filter: undefined, ids: ids(1, "j".repeat(128)) }, "ids", 128, 129],
      [{ filter: { kind: "no kind" } }, "kind"],
      [{ filter: { queue: "" } }, "queue", 1, 0],
      [{ filter: { partitionKey: "p".repeat(257) } }, "partitionKey", 256, 257],
      [{ filter: { reason: "operator_cancel" } }, "reason"],
      [{ filter: { errorTag: "" } }, "errorTag", 1, 0],
      [{ filter: { tag: "" } }, "tags", 1, 0],
      [{ filter: { archivedFromMs: -1 } }, "archivedFromMs", 0, -1],
      [{ filter: { archivedBeforeMs: 0.5 } }, "archivedBeforeMs"],
      [{ filter: { archivedWithin: "0 millis" } }, "archivedWithin", 1, 0],
      [{ filter: { archivedWithin: "soon" } }, "archivedWithin"],
      [{ filter: { archivedWithin: "1 day", archivedFromMs: 1 } }, "archivedWithin"],
      [{ maxFailureRatio: 1.1 }, "maxFailureRatio", 1, 1.1],
      [{ maxFailureRatio: -0.1 }, "maxFailureRatio", 0, -0.1],
      [{ maxFailureRatio: Number.NaN }, "maxFailureRatio"],
      [{ stageWaitMs: 999 }, "stageWaitMs", 1000, 999],
      [{ batch: 1001 }, "batch", 1000, 1001],
      [{ perSecond: 0 }, "perSecond", 1, 0],
      [{ deadline: { afterMs: 0 } }, "deadline", 1, 0],
      [{ deadline: "never" }, "deadline"]
    ]
    for (const [part, field, limit, actual] of beyond) {
      // SAFETY: what a caller without types may send.
      const found = refusal({ ...request, ...part } as RedriveRequest)
      assert(found !== undefined)
      assert.strictEqual(found.field, field, JSON.stringify(Object.entries(part)).slice(0, 100))
      if (limit !== undefined) assert.deepStrictEqual([found.limit, found.actual], [limit, actual])
    }
  })

  it("is looked for under the same rules", () => {
    assert.isUndefined(refuseSelection({ ids: ids(1) }))
    assert.strictEqual(refuseSelection({ filter: {} })?.field, "filter")
  })
})
