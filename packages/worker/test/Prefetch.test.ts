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
    assert.strictEqual(pace(make(), 25, 100), 60)
    assert.strictEqual(pace(make(), 5, 5000), MAX_PREFETCH)
  })

  it("some are claimed ahead where the wait for the gate is a good part of a job, and none where it is not", () => {
    assert.strictEqual(pace(make({ concurrency: 1 }), 50, 1), 2)
    assert.strictEqual(pace(make({ concurrency: 32 }), 50, 16), 8)
    assert.strictEqual(pace(make({ concurrency: 1 }), 200, 1), 0)
  })

  it("a call during which no handler ended says nothing until patience is over, and then halves what is claimed ahead", () => {
    const prefetch = make()
    pace(prefetch, 25, 100)
    prefetch.answered(76, 81, false)
    assert.strictEqual(prefetch.ahead(81), 60)
    prefetch.answered(76 + prefetch.patienceMs, 81 + prefetch.patienceMs, false)
    assert.strictEqual(prefetch.ahead(81 + prefetch.patienceMs), 30)
  })

  it("handlers that take seconds are claimed nothing ahead", () => {
    assert.strictEqual(pace(make(), 2000, 100), 0)
  })

  it("with nothing to run the known pace stays", () => {
    const prefetch = make()
    assert.strictEqual(pace(prefetch, 5, 100), 300)
    prefetch.answered(1000, 1005, true)
    assert.strictEqual(prefetch.ahead(1005), 300)
  })

  it("one call claims half of the room at most, so that one half runs while the other is claimed", () => {
    assert.strictEqual(make().share(1100), 550)
    assert.strictEqual(make({ prefetch: 7 }).share(107), 107)
  })

  it("a number of the user's own stands", () => {
    assert.strictEqual(pace(make({ prefetch: 7 }), 5, 100), 7)
    assert.strictEqual(pace(make({ prefetch: 0 }), 5, 100), 0)
  })

  it("after a claim had to be handed back, nothing is claimed ahead for as long as it waited, and half as much from then on", () => {
    const prefetch = make()
    assert.strictEqual(pace(prefetch, 5, 100), 300)
    prefetch.pause(100)
    assert.strictEqual(prefetch.ahead(100 + prefetch.patienceMs - 1), 0)
    assert.strictEqual(prefetch.ahead(100 + prefetch.patienceMs), 150)
  })
})
