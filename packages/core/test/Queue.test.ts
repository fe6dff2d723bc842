import { assert, describe, it } from "@effect/vitest"
import { Queue } from "@headgate/core/Queue"

describe("Queue", () => {
  it("without options it is a queue as any other", () => {
    assert.deepStrictEqual(Queue.make("mail"), {
      _tag: "Queue",
      name: "mail",
      weight: 1,
      strict: false,
      quantum: undefined,
      paused: false,
      maxUnfinishedJobs: undefined
    })
  })

  it("what breaks a limit throws where it is defined", () => {
    assert.throws(() => Queue.make("a b"), /name may hold only/)
    assert.throws(() => Queue.make("q", { weight: 1001 }), /weight is above the maximum of 1000/)
    assert.throws(() => Queue.make("q", { quantum: 0 }), /quantum is below the minimum of 1/)
    assert.throws(() => Queue.make("q", { maxUnfinishedJobs: 0.5 }), /maxUnfinishedJobs must be a whole number/)
  })
})
