import { assert, describe, it } from "@effect/vitest"
import { Result } from "effect"
import { MAX_PREFETCH, Prefetch } from "../src/Prefetch.ts"
import { settingsOf, type WorkerOptions } from "../src/WorkerOptions.ts"

const make = (options: WorkerOptions = {}) => new Prefetch(Result.getOrThrow(settingsOf(options)))

/** Calls of the gate that take 5 ms, each sent `cycleMs` after the last, while `ended` handlers end between two. */
const pace = (prefetch: Prefetch, cycleMs: number, ended: number, calls = 3) => {
  for (let call = 1; call <= calls; call++) {
    for (let n = 0; n < ended; n++) prefetch.freed()
    prefetch.answered(call * cycleMs, call * cycleMs + 5, false)
  }
  return prefetch.ahead(calls * cycleMs + 5)
}

describe("Prefetch", () => {
  it("nothing is claimed ahead before a handler has ended", () => {
    assert.strictEqual(make().ahead(0), 0)
  })

  it("three times what ends while the gate answers is claimed ahead, and not more than a batch", () => {
    assert.strictEqual(pace(make(), 5, 100), 300)
    assert.strictEqual(pace(make(), 50, 100), 30)
    assert.strictEqual(pace(make(), 5, 5000), MAX_PREFETCH)
  })

  it("handlers that take seconds are claimed nothing ahead", () => {
    assert.strictEqual(pace(make(), 2000, 100), 0)
  })

  it("a pause of the handlers halves what is claimed ahead, and with nothing to run the known pace stays", () => {
    const prefetch = make()
    assert.strictEqual(pace(prefetch, 5, 100), 300)
    prefetch.answered(1000, 1005, true)
    assert.strictEqual(prefetch.ahead(1005), 300)
    prefetch.answered(1010, 1015, false)
    assert.strictEqual(prefetch.ahead(1015), 150)
  })

  it("one call claims half of the room at most, so that one half runs while the other is claimed", () => {
    assert.strictEqual(make().share(1100), 550)
    assert.strictEqual(make({ prefetch: 7 }).share(107), 107)
  })

  it("a number of the user's own stands", () => {
    assert.strictEqual(pace(make({ prefetch: 7 }), 5, 100), 7)
    assert.strictEqual(pace(make({ prefetch: 0 }), 5, 100), 0)
  })

  it("after a claim had to be handed back, nothing is claimed ahead for as long as it waited", () => {
    const prefetch = make()
    assert.strictEqual(pace(prefetch, 5, 100), 300)
    prefetch.pause(100)
    assert.strictEqual(prefetch.ahead(100 + prefetch.patienceMs - 1), 0)
    assert.strictEqual(prefetch.ahead(100 + prefetch.patienceMs), 300)
  })
})
