/**
 * Wakes one waiting loop. Nudges nobody waited for are kept as one, and those of one turn of the event loop wake it
 * once. In real time, whatever `Clock` the application provides: a test's clock must not stop the worker.
 */
import * as Effect from "effect/Effect"

export class Nudge {
  private isPending = false
  private isDue = false
  private waiter: (() => void) | undefined = undefined

  readonly give = (): void => {
    this.isPending = true
    if (this.waiter === undefined || this.isDue) return
    this.isDue = true
    // After what else this turn has to say, so that the loop finds it all.
    setImmediate(this.deliver)
  }

  /** Ends at the next nudge, or after `maxMs`. For one caller at a time. */
  wait(maxMs: number): Effect.Effect<void> {
    return Effect.callback((resume) => {
      const done = () => {
        clearTimeout(timer)
        this.waiter = undefined
        this.isPending = false
        resume(Effect.void)
      }
      const timer = setTimeout(done, Math.min(maxMs, MAX_TIMER_MS))
      this.waiter = done
      if (this.isPending) this.give()
      return Effect.sync(() => {
        clearTimeout(timer)
        this.waiter = undefined
      })
    })
  }

  private readonly deliver = (): void => {
    this.isDue = false
    this.waiter?.()
  }
}

/** A JavaScript timer beyond it fires at once. */
export const MAX_TIMER_MS = 2_147_483_647
