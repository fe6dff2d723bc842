/**
 * One timer for all attempts of a worker. It stops those whose lease ran out on this process's clock, those past their
 * timeout, their deadline or a finer limit, and says which handlers stay deaf to being stopped. Monotonic time; a blocked
 * event loop makes it late, so a step asks again before it starts.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { InterruptionReason } from "@headgate/core/Leases"
import type { LocalAttempt } from "./Attempt.ts"
import type { Overrun } from "./TimeLimits.ts"

interface WatchdogActions {
  /** A copy: looking at them changes them. */
  readonly attempts: () => ReadonlyArray<LocalAttempt>
  readonly stop: (attempt: LocalAttempt, reason: InterruptionReason) => void
  /** It met a limit of its own. */
  readonly overran: (attempt: LocalAttempt, overrun: Overrun) => void
  /** How long a handler that was told to stop, and its finalizers, may take. */
  readonly graceMs: number
  /** That time is over. */
  readonly giveUp: (attempt: LocalAttempt) => void
  /** Called at each look, at least once a second while the worker holds something. */
  readonly tick: (now: number) => void
}

export class Watchdog {
  private timer: ReturnType<typeof setTimeout> | undefined = undefined
  private nextLook = Number.POSITIVE_INFINITY
  private worstLag = 0
  private worstLagAt = Number.NEGATIVE_INFINITY
  private readonly actions: WatchdogActions

  constructor(actions: WatchdogActions) {
    this.actions = actions
  }

  /** Something may fall due at `at`, earlier than what was known. */
  lookBy(at: number): void {
    if (at >= this.nextLook) return
    const now = monotonicMs()
    const pause = Math.min(Math.max(at - now, 1), MAX_PAUSE_MS)
    if (now + pause >= this.nextLook) return
    clearTimeout(this.timer)
    this.nextLook = now + pause
    this.timer = setTimeout(this.look, pause)
  }

  close(): void {
    clearTimeout(this.timer)
    this.nextLook = Number.NEGATIVE_INFINITY
  }

  /** How late its timer was at worst in the last ten seconds: something else had the event loop for so long. */
  lagMs(): number {
    return monotonicMs() - this.worstLagAt <= LAG_WINDOW_MS ? Math.round(this.worstLag) : 0
  }

  private readonly look = (): void => {
    const now = monotonicMs()
    const lag = now - this.nextLook
    if (lag >= this.worstLag || now - this.worstLagAt > LAG_WINDOW_MS) {
      this.worstLag = lag
      this.worstLagAt = now
    }
    this.nextLook = Number.POSITIVE_INFINITY
    let next = Number.POSITIVE_INFINITY
    try {
      for (const attempt of this.actions.attempts()) next = Math.min(next, this.check(attempt, now))
      this.actions.tick(now)
    } finally {
      // Whatever went wrong with one attempt, the others are looked at again.
      if (next < Number.POSITIVE_INFINITY) this.lookBy(next)
    }
  }

  /** When to look at this attempt again. */
  private check(attempt: LocalAttempt, now: number): number {
    if (attempt.isZombie) return Number.POSITIVE_INFINITY
    if (attempt.ending !== undefined || attempt.isClosing) return this.checkEnding(attempt, now)
    const validUntil = attempt.tracked.validUntil()
    if (now >= validUntil) this.actions.stop(attempt, "lease_lost")
    else if (now >= attempt.dueAt) this.actions.stop(attempt, attempt.dueReason)
    else {
      const { limits } = attempt
      const overrun = limits?.overrun(now, attempt.stepsUnderWay)
      if (overrun === undefined) return Math.min(validUntil, attempt.dueAt, limits?.dueAt ?? Number.POSITIVE_INFINITY)
      this.actions.overran(attempt, overrun)
    }
    return now + this.actions.graceMs
  }

  private checkEnding(attempt: LocalAttempt, now: number): number {
    if (attempt.stuckAt === Number.POSITIVE_INFINITY) attempt.stuckAt = now + this.actions.graceMs
    if (now < attempt.stuckAt) return attempt.stuckAt
    attempt.stuckAt = Number.POSITIVE_INFINITY
    this.actions.giveUp(attempt)
    return now + this.actions.graceMs
  }
}

const MAX_PAUSE_MS = 1000
const LAG_WINDOW_MS = 10_000
