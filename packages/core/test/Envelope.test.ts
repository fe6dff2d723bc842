import { assert, describe, it } from "vitest"
import { enqueueQueue, Envelope, envelopeDefaults, isLike, sameJobContent } from "../src/Envelope.ts"

const least = { id: "j1", kind: "mail", payload: new Uint8Array(0) }

describe("an envelope", () => {
  it("has the documented defaults, also for fields given as undefined", () => {
    const made = Envelope.make({ ...least, queue: undefined, priority: undefined })
    for (const [field, value] of Object.entries(envelopeDefaults)) {
      assert.strictEqual(Reflect.get(made, field), value, field)
    }
    assert.deepStrictEqual([made.tags, made.headers, made.rates, made.pending], [[], {}, [], false])
  })
  it("keeps what was given, 0 and the empty queue included", () => {
    const made = Envelope.make({ ...least, queue: "", retentionMs: 0, delayMs: 0, priority: -1 })
    assert.deepStrictEqual([made.queue, made.retentionMs, made.delayMs, made.priority], ["", 0, 0, -1])
  })
  it("holds its tags in canonical order", () => {
    assert.deepStrictEqual(Envelope.make({ ...least, tags: ["b", "a", "b"] }).tags, ["a", "b"])
  })
})

describe("a repeated id names the same job", () => {
  const content = { kind: "mail", fingerprint: "f", queue: "default" }

  it("when kind, fingerprint and queue agree, an omitted queue being the default one", () => {
    assert.isTrue(sameJobContent(content, { ...content }))
    assert.isTrue(sameJobContent(content, { ...content, queue: "" }))
  })
  it("and not when one of them differs", () => {
    for (const other of [{ kind: "x" }, { fingerprint: "x" }, { queue: "x" }]) {
      assert.isFalse(sameJobContent(content, { ...content, ...other }), JSON.stringify(other))
    }
  })
})

describe("two jobs are alike", () => {
  const job = Envelope.make(least)

  it("when they differ in id and payload alone", () => {
    assert.isTrue(isLike(job, { ...job, id: "j2", payload: new Uint8Array(1) }))
  })
  it("and not when any other field differs", () => {
    for (const field of Object.keys(job).filter((field) => field !== "id" && field !== "payload")) {
      assert.isFalse(isLike(job, { ...job, [field]: "another" }), field)
    }
  })
})

describe("an empty queue name", () => {
  it("means the default queue, and other names mean themselves", () => {
    assert.deepStrictEqual(["", "default", "mail"].map(enqueueQueue), ["default", "default", "mail"])
  })
})
