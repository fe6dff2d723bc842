import { assert, layer } from "@effect/vitest"
import { Policies } from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Effect } from "effect"
import { Chore } from "./fixtures/chore.ts"
import { hasEnded, run } from "./Processes.ts"
import * as Workers from "./Workers.ts"

layer(Workers.layer, { excludeTestServices: true, timeout: "4 minutes" })("launch", (it) => {
  it.effect("SIGTERM drains: no claims, the short job ends, the long one is handed back, exit code 0 in time", () =>
    Effect.gen(function*() {
      const process = yield* run({ concurrency: 3, prefetch: 3, lease: "60 seconds", shutdownGrace: "8 seconds" })
      yield* process.said("ready")
      const [short, long, deaf] = yield* Chore.enqueueAll([
        { name: "short", does: "sleep", ms: 5000 },
        { name: "long", does: "sleep", ms: 60_000 },
        { name: "deaf", does: "deaf", ms: 60_000 }
      ])
      for (const name of ["short", "long", "deaf"]) yield* process.said(`start ${name}`)
      const waiting = yield* Chore.enqueueAll(
        [1, 2].map((n) => ({ name: `waiting ${n}`, does: "sleep", ms: 1 } as const))
      )
      for (const id of waiting) yield* Workers.settled(id, "running")
      const signalledAt = monotonicMs()
      process.child.kill("SIGTERM")
      for (const id of waiting) yield* Workers.settled(id, "available")
      const late = yield* Chore.enqueue({ name: "late", does: "sleep", ms: 1 })
      assert.strictEqual(yield* process.end, 0)
      Workers.within("a process told by SIGTERM had ended", monotonicMs() - signalledAt, 8000 + 1500)
      const states = yield* Effect.forEach([short!, long!, deaf!, late], Workers.stateOf)
      assert.deepStrictEqual(states, ["completed", "available", "running", "available"])
      for (const id of [long!, ...waiting]) {
        assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
      }
      // Nothing was claimed after the signal: neither what came late nor what was handed back.
      const fences = yield* Effect.forEach([late, ...waiting, long!], (id) => Workers.job(id))
      assert.deepStrictEqual(fences.map(({ fence }) => Number(fence)), [0, 1, 1, 1])
    }))

  it.effect("SIGINT drains as well, and a second signal ends the process at once", () =>
    Effect.gen(function*() {
      const process = yield* run({ shutdownGrace: "50 seconds" })
      yield* process.said("ready")
      yield* Chore.enqueue({ name: "slow", does: "sleep", ms: 60_000 })
      yield* process.said("start slow")
      process.child.kill("SIGINT")
      yield* Effect.sleep(1000)
      assert.isFalse(hasEnded(process))
      const signalledAt = monotonicMs()
      process.child.kill("SIGTERM")
      assert.strictEqual(yield* process.end, 143)
      Workers.within("a process told twice had ended", monotonicMs() - signalledAt, 500)
    }))

  it.effect("a signal that comes twice in a moment, as through a package manager, is one", () =>
    Effect.gen(function*() {
      const process = yield* run({ shutdownGrace: "100 millis" })
      yield* process.said("ready")
      process.child.kill("SIGINT")
      process.child.kill("SIGINT")
      assert.strictEqual(yield* process.end, 0)
    }))

  it.effect("a program whose layer fails ends with exit code 1", () =>
    Effect.gen(function*() {
      const process = yield* run({ concurrency: 0 })
      assert.strictEqual(yield* process.end, 1)
    }))

  it.effect(
    "a job that kills its process starts three times, is quarantined, and takes nothing with it",
    () =>
      Effect.gen(function*() {
        const options = { queues: ["pills"], concurrency: 4, lease: "6 seconds", pollInterval: "100 millis" } as const
        yield* Policies.use((policies) =>
          policies.setLimit({ name: "one-a-partition", scope: "partition", subject: "pills", max: 1 })
        )
        let deaths = 0
        const supervise = Effect.forever(Effect.scoped(Effect.gen(function*() {
          const process = yield* run(options)
          yield* process.end
          deaths++
        })))
        const normal = yield* Chore.enqueueAll(
          Array.from({ length: 20 }, (_, n) => ({ name: `normal ${n}`, does: "sleep", ms: 50 } as const)),
          { queue: "pills" }
        )
        const poison = yield* Chore.enqueue({ name: "poison", does: "abort", ms: 0 }, {
          queue: "pills",
          maxAttempts: 1,
          uniqueKey: "pill"
        })
        const beside = yield* Chore.enqueueAll(
          [1, 2].map((n) => ({ name: `beside ${n}`, does: "sleep", ms: 50 } as const)),
          { queue: "pills", partitionKey: "abort" }
        )
        for (let n = 0; n < 4; n++) yield* Effect.forkScoped(supervise)
        yield* Workers.eventually(Workers.stateOf(poison), (state) => state === "quarantined", 120_000)
        for (const id of [...normal, ...beside]) yield* Workers.settled(id, "completed")
        const { attempt, crashAttempt, fence, leaseExpiresAtMs, worker } = yield* Workers.job(poison)
        assert.deepStrictEqual([attempt, crashAttempt, fence, deaths], [0, 3, 3, 3])
        assert.deepStrictEqual([leaseExpiresAtMs, worker], [undefined, undefined])
        // Its key and its partition's one slot are free.
        const heir = yield* Chore.enqueue({ name: "heir", does: "sleep", ms: 1 }, {
          queue: "pills",
          uniqueKey: "pill",
          partitionKey: "abort"
        })
        yield* Workers.settled(heir, "completed")
      }),
    240_000
  )
})
