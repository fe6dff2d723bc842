/**
 * What the worker's loops do when the store does not answer: tell it once per outage, wait, try again. A defect of the
 * store is treated alike, since a loop that died would stop the worker without a word.
 */
import { StoreUnavailable } from "@headgate/core/Refusals"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type { Reporter } from "./Reporter.ts"

export class Outage {
  /** Operations that failed when last tried. */
  readonly failing = new Set<string>()
  private readonly reporter: Reporter

  constructor(reporter: Reporter) {
    this.reporter = reporter
  }

  failed(operation: string, cause: Cause.Cause<unknown>): void {
    if (Cause.hasInterruptsOnly(cause) || this.failing.has(operation)) return
    this.failing.add(operation)
    const error = Cause.squash(cause)
    const message = error instanceof StoreUnavailable ? error.message : `unexpected: ${Cause.pretty(cause)}`
    this.reporter.emit({ _tag: "StoreUnreachable", operation, message })
    this.reporter.warn(`${operation} failed and is tried again until it succeeds`, message)
  }

  succeeded(operation: string): void {
    if (!this.failing.delete(operation)) return
    this.reporter.emit({ _tag: "StoreReachable", operation })
    this.reporter.inform(`${operation} succeeds again`)
  }

  /** Notes how `call` went; its failure is answered as undefined. */
  readonly watch = <A>(operation: string, call: Effect.Effect<A, StoreUnavailable>): Effect.Effect<A | undefined> =>
    Effect.matchCause(call, {
      onFailure: (cause) => void this.failed(operation, cause),
      onSuccess: (value) => {
        this.succeeded(operation)
        return value
      }
    })
}
