import { assert, describe, it } from "@effect/vitest"
import type { Cause } from "@headgate/core/Explain"
import { explainText } from "@headgate/core/ExplainText"
import type { State } from "@headgate/core/State"

const say = (cause: Cause, estimatedAdmissionMs: number | null = null) =>
  explainText({ state: "available", admissible: false, cause, estimatedAdmissionMs })

const free = (state: State, admissible = false) =>
  explainText({ state, admissible, cause: { blockedBy: null, detail: null }, estimatedAdmissionMs: null })

describe("explainText", () => {
  it("names the budget, what is left of it, what comes first, and when it will do", () => {
    const detail = {
      class: "shop-api",
      key: "acme",
      tokens: 0.5,
      needed: 2,
      limit: 10,
      windowMs: 1000,
      burst: 10,
      closedUntilMs: null,
      ahead: 3,
      isAtLeast: false
    }
    assert.strictEqual(
      say({ blockedBy: "rate_class", detail }, 750),
      "The rate class shop-api (acme) has 0.5 left and it needs 2 after 3 jobs that come first: in about 750 ms."
    )
    assert.strictEqual(
      say({ blockedBy: "rate_class", detail: { ...detail, key: "", closedUntilMs: 9, ahead: 1000, isAtLeast: true } }),
      "The rate class shop-api was pushed back after at least 1000 jobs that come first."
    )
  })

  it("names the limit, and what its strategy will do to the job", () => {
    const detail = {
      limit: "accounts",
      key: "acme",
      inUse: 2,
      max: 2,
      strategy: "discard",
      holders: ["a", "b"]
    } as const
    assert.strictEqual(
      say({ blockedBy: "concurrency_limit", detail }),
      "The limit accounts (acme) is full, 2 of 2 in use: it will be discarded."
    )
  })

  it("tells apart a worker that is gone, one that is full and one that does not serve", () => {
    const detail = { worker: "w1", isAlive: true, serves: true, running: 10, capacity: 10, fallsBackAtMs: null }
    const sticky = (over: Partial<typeof detail>) =>
      say({ blockedBy: "sticky_worker", detail: { ...detail, ...over } }, 65_000)
    assert.strictEqual(sticky({}), "It is pinned to the worker w1, which is full (10 of 10): in about 65 s.")
    assert.match(sticky({ isAlive: false }), /is not alive/)
    assert.match(sticky({ serves: false }), /takes no work/)
  })

  it("says who must act where time alone does not help", () => {
    assert.match(say({ blockedBy: "schedule", detail: { dueAtMs: null, lastErrorTag: null } }), /operator promotes/)
    assert.match(
      say({ blockedBy: "quarantine", detail: { crashes: 3, limit: 3, fingerprint: null } }),
      /^It crashed 3 times, and 3 is the limit: an operator must release it\.$/
    )
    assert.match(
      say({ blockedBy: "quarantine", detail: { crashes: 1, limit: 1, fingerprint: "f" } }),
      /crashed once, and 1 is the limit: an operator must release them\.$/
    )
    assert.match(
      say({ blockedBy: "paused", detail: { switch: "rate_class", name: "shop-api" } }),
      /rate class shop-api is paused/
    )
  })

  it("tells workers that take no work from there being none", () => {
    const detail = { queue: "default", liveWorkers: 0, quietWorkers: 0, drainingWorkers: 0 }
    const none = (over: Partial<typeof detail>) => say({ blockedBy: "no_worker", detail: { ...detail, ...over } })
    assert.strictEqual(none({}), "No live worker takes work from the queue default.")
    assert.strictEqual(none({ quietWorkers: 1 }), "1 live worker serves default, but is quiet.")
    assert.strictEqual(
      none({ quietWorkers: 2, drainingWorkers: 1 }),
      "2 live workers serve default, but are quiet."
    )
    assert.strictEqual(none({ drainingWorkers: 1 }), "1 live worker serves default, but is draining.")
  })

  it("gives times in a unit that can be read, and the error of the last attempt", () => {
    const wait = (ms: number) => say({ blockedBy: "schedule", detail: { dueAtMs: 1, lastErrorTag: "ShopDown" } }, ms)
    const times = [999, 1500, 9960, 65_000, 3_511_000, 7_200_000, 200_000_000].map((ms) => wait(ms).split("about ")[1])
    assert.deepStrictEqual(times, ["999 ms.", "1.5 s.", "10 s.", "65 s.", "59 min.", "2 h.", "2 days."])
    assert.strictEqual(wait(3_511_000), "It failed with ShopDown and is not due yet: in about 59 min.")
  })

  it("says of a job that nothing holds where it stands", () => {
    assert.strictEqual(free("running"), "It is running.")
    assert.match(free("cancelled"), /cancelled/)
    assert.match(free("available", true), /Nothing holds it/)
  })
})
