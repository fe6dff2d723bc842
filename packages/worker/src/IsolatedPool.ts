/**
 * The children of one isolated task on one worker. As many as the pool's size are kept between jobs, the others end with
 * their attempt, and none outlives the pool's scope.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { IsolatedChild } from "./IsolatedChild.ts"
import type { IsolatedSettings } from "./IsolatedOptions.ts"

export interface IsolatedPool {
  /** Gives a child to `use` alone: one that waits, else a new one. */
  readonly withChild: <A, E, R>(
    use: (child: IsolatedChild) => Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E, R>
}

export const make = (kind: string, settings: IsolatedSettings): Effect.Effect<IsolatedPool, never, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(Effect.sync(() => new Children(kind, settings)), (children) => children.close),
    (children): IsolatedPool => ({
      withChild: (use) =>
        Effect.acquireUseRelease(
          Effect.sync(() => children.take()),
          use,
          (child) => Effect.sync(() => children.giveBack(child))
        )
    })
  )

class Children {
  private isClosed = false
  private readonly all = new Set<IsolatedChild>()
  private readonly kind: string
  private readonly settings: IsolatedSettings
  private idle: Array<IsolatedChild> = []

  constructor(kind: string, settings: IsolatedSettings) {
    this.kind = kind
    this.settings = settings
    for (let n = 0; n < settings.pool.size; n++) this.idle.push(this.start())
  }

  take(): IsolatedChild {
    // One may have died a moment ago, and its end be known only in part.
    const at = this.idle.findIndex((child) => child.isFree)
    return at === -1 ? this.start() : this.idle.splice(at, 1)[0]!
  }

  giveBack(child: IsolatedChild): void {
    const { jobs, size } = this.settings.pool
    if (!this.isClosed && child.isFree && child.served < jobs && this.idle.length < size) this.idle.push(child)
    else child.retire()
  }

  /** Every child is told to end, and is gone when this is done. */
  get close(): Effect.Effect<void> {
    return Effect.callback<void>((resume) => {
      this.isClosed = true
      for (const child of this.all) child.retire()
      const look = (): void => this.all.size === 0 ? resume(Effect.void) : void setTimeout(look, LOOK_MS)
      look()
    })
  }

  private start(): IsolatedChild {
    const child = new IsolatedChild(this.kind, this.settings, this.onEnd)
    // One that could not start has ended before it is known here.
    if (!child.isEnded) this.all.add(child)
    return child
  }

  private readonly onEnd = (child: IsolatedChild): void => {
    this.all.delete(child)
    this.idle = this.idle.filter((other) => other !== child)
    const { size } = this.settings.pool
    // The next one is started ahead of its job, unless it would only fail again: then the job shall tell why.
    if (!this.isClosed && child.hasServed && this.all.size < size) {
      this.idle.push(this.start())
    }
  }
}

const LOOK_MS = 5
