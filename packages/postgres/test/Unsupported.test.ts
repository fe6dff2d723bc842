import { assert, describe, it } from "@effect/vitest"
import { Envelope, type EnvelopeInput } from "@headgate/core/Envelope"
import { refuseUnsupported } from "../src/Unsupported.ts"

const asked: ReadonlyArray<Partial<EnvelopeInput>> = [
  { uniqueStates: ["available"] },
  { uniqueWindowMs: 1000 },
  { periodicOrigin: { scheduleId: "nightly", tickMs: 0 } }
]

describe("what this store cannot honour", () => {
  const job = (more: Partial<EnvelopeInput>) =>
    Envelope.make({ id: "j", kind: "greet", payload: new Uint8Array(), ...more })

  for (const more of asked) {
    const field = Object.keys(more).join()
    it(`${field} is refused by name, wherever it stands in the batch`, () => {
      assert.deepInclude(refuseUnsupported([job({}), job(more)]), { _tag: "Invalid", field })
    })
  }

  it("a plain job is not refused", () => assert.isUndefined(refuseUnsupported([job({})])))
})
