import { Result } from "effect"
import { assert, describe, it } from "vitest"
import { MAX_BATCH, MAX_BATCH_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, validateEnqueue } from "../src/EnqueueGuard.ts"
import { Envelope, type EnvelopeInput } from "../src/Envelope.ts"
import { fieldsOf, vectors } from "./vectors.ts"

const { cases } = vectors<{
  readonly cases: ReadonlyArray<{
    readonly name: string
    readonly jobs: ReadonlyArray<unknown>
    readonly refused?: Record<string, unknown>
  }>
}>("envelope")

const job = (fields: Partial<EnvelopeInput> = {}): Envelope =>
  Envelope.make({ id: "j1", kind: "mail", payload: new Uint8Array(0), ...fields })

const answer = (batch: ReadonlyArray<Envelope>): Record<string, unknown> | undefined => {
  const result = validateEnqueue(batch)
  if (Result.isSuccess(result)) return undefined
  const refusal = result.failure
  if (refusal._tag === "IdConflict") return { tag: refusal._tag, id: refusal.id, index: refusal.index }
  return { tag: refusal._tag, field: refusal.field, limit: refusal.limit, actual: refusal.actual }
}

describe("the guard of every door", () => {
  it("bounds the payloads of a batch together, naming the limit and the size", () => {
    const payload = new Uint8Array(MAX_PAYLOAD_BYTES)
    const jobs = (count: number) => Array.from({ length: count }, (_, n) => job({ id: `j${n}`, payload }))
    assert.isUndefined(answer(jobs(64)))
    const [limit, actual] = [MAX_BATCH_PAYLOAD_BYTES, 65 * MAX_PAYLOAD_BYTES]
    assert.deepStrictEqual(answer(jobs(65)), { tag: "Invalid", field: "batch", limit, actual })
  })

  for (const { jobs, name, refused } of cases) {
    it(`${refused === undefined ? "accepts" : "refuses"}: ${name}`, () => {
      // SAFETY: the vectors name fields of an envelope; what does not fit is what the guard is tested with.
      const batch = jobs.map((fields) => job(fieldsOf(fields) as Partial<EnvelopeInput>))
      const given = answer(batch)
      if (refused === undefined) assert.isUndefined(given)
      // A limit is compared where the vector names one.
      else assert.deepStrictEqual({ ...given, ...refused }, given)
    })
  }

  it("accepts 10,000 jobs at once and no more, and never none", () => {
    const batch = Array.from({ length: MAX_BATCH + 1 }, (_, i) => job({ id: `j${i}` }))
    assert.isUndefined(answer(batch.slice(1)))
    assert.deepStrictEqual(answer(batch), { tag: "Invalid", field: "batch", limit: 10_000, actual: 10_001 })
    assert.deepStrictEqual(answer([]), { tag: "Invalid", field: "batch", limit: 1, actual: 0 })
  })

  it("says which job of a batch is at fault", () => {
    const result = validateEnqueue([job(), job({ id: "j2", kind: "" })])
    assert.match(Result.getOrThrow(Result.flip(result)).message, /\(job 1 of the batch\)$/)
  })

  it("finds an id that comes again, whether ids rise or not", () => {
    const ids = (text: string) => [...text].map((id) => job({ id }))
    for (const text of ["abc", "cba", "bcad"]) assert.isUndefined(answer(ids(text)), text)
    for (const text of ["abb", "abca", "abcb", "cbac", "bcaa"]) {
      assert.deepStrictEqual(answer(ids(text)), { tag: "IdConflict", id: text.at(-1), index: text.length - 1 }, text)
    }
  })

  it("takes another payload limit from the store", () => {
    const result = validateEnqueue([job({ payload: new Uint8Array(11) })], { maxPayloadBytes: 10 })
    assert.isTrue(Result.isFailure(result))
  })

  for (const half of ["\ud83d", "\ude00"]) {
    const fields: ReadonlyArray<[string, Partial<EnvelopeInput>]> = [
      ["id", { id: half }],
      ["kind", { kind: half }],
      ["queue", { queue: half }],
      ["partitionKey", { partitionKey: half }],
      ["fingerprint", { fingerprint: half }],
      ["tags", { tags: [half] }],
      ["headers", { headers: { [half]: "x" } }],
      ["headers", { headers: { x: half } }],
      ["stickyWorker", { stickyWorker: half }],
      ["rates[0].key", { rates: [{ class: "api", key: half, weight: 1 }] }],
      ["periodicOrigin.scheduleId", { periodicOrigin: { scheduleId: half, tickMs: 0 } }]
    ]
    for (const [field, input] of fields) {
      it(`refuses half of a surrogate pair ${JSON.stringify(half)} in ${JSON.stringify(input)}`, () => {
        assert.strictEqual(answer([job(input)])?.["field"], field)
      })
    }
  }

  it("answers callers without types by a refusal, not a crash", () => {
    const fields = ["id", "kind", "queue", "partitionKey", "schemaVersion", "payload", "priority", "retentionMs"]
    for (const field of fields) {
      for (const value of [null, {}, Symbol("x"), 1n, Number.NaN]) {
        const refused = answer([{ ...job(), [field]: value }])
        assert.strictEqual(refused?.["field"], field, `${field}: ${String(value)}`)
      }
    }
  })
})
