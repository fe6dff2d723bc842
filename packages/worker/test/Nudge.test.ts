import { assert, it } from "@effect/vitest"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Effect, Fiber } from "effect"
import { Nudge } from "../src/Nudge.ts"

const elapsed = (effect: Effect.Effect<void>) =>
  Effect.suspend(() => {
    const startedAt = monotonicMs()
    return Effect.map(effect, () => monotonicMs() - startedAt)
  })

it.live("a nudge ends the wait; nudges before it are kept as one; without any the time ends it", () =>
  Effect.gen(function*() {
    const nudge = new Nudge()
    nudge.give()
    nudge.give()
    assert.isBelow(yield* elapsed(nudge.wait(60_000)), 30_000)
    assert.isAtLeast(yield* elapsed(nudge.wait(50)), 45)
    const waiting = yield* Effect.forkChild(elapsed(nudge.wait(60_000)), { startImmediately: true })
    nudge.give()
    assert.isBelow(yield* Fiber.join(waiting), 30_000)
  }))

it.live("nudges of one turn wake the loop once, after the turn", () =>
  Effect.gen(function*() {
    const nudge = new Nudge()
    const woken: Array<number> = []
    let given = 0
    yield* Effect.forkChild(
      Effect.forever(Effect.andThen(nudge.wait(5000), Effect.sync(() => void woken.push(given)))),
      { startImmediately: true }
    )
    for (; given < 100; given++) nudge.give()
    yield* Effect.sleep(50)
    assert.deepStrictEqual(woken, [100])
  }))

it.live("a wait of months does not end at once", () =>
  Effect.gen(function*() {
    const waiting = yield* Effect.forkChild(new Nudge().wait(90 * 86_400_000), { startImmediately: true })
    yield* Effect.sleep(50)
    assert.isUndefined(waiting.pollUnsafe())
    yield* Fiber.interrupt(waiting)
  }))
