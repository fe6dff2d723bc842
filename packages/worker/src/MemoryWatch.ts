/** Looks at the memory of the process, and says once that it has stayed above a limit. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

/** `reached` is given the resident set's bytes at the last of several looks in a row above `limit`. */
export const watch = (limit: number, reached: (bytes: number) => void): Effect.Effect<void, never, Scope.Scope> =>
  Effect.asVoid(Effect.acquireRelease(
    Effect.sync(() => {
      let above = 0
      const timer = setInterval(() => {
        const bytes = residentBytes()
        above = bytes > limit ? above + 1 : 0
        if (above < LOOKS) return
        clearInterval(timer)
        reached(bytes)
      }, LOOK_MS)
      return timer.unref()
    }),
    (timer) => Effect.sync(() => clearInterval(timer))
  ))

export const residentBytes = (): number => process.memoryUsage.rss()

/** A peak that a collection takes away is none. */
const LOOKS = 5
const LOOK_MS = 1000
