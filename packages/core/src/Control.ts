/**
 * What an operator may do to a job: the only way back from a terminal state. Each is one guarded statement; when two
 * race, the row lock decides and the loser is told what the row had become.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { JobId } from "./Ids.ts"
import type { Invalid, KeyTaken, NotFound, StoreUnavailable, WrongState } from "./Refusals.ts"
import type { State } from "./State.ts"

export interface Moved {
  readonly id: JobId
  readonly from: State
  readonly to: State | "deleted"
}

/** `cancelled`: this call, or an earlier one, cancelled it. `already_<state>`: it had ended otherwise. */
export type CancelAnswer = "cancelled" | `already_${State}`

/** A new deadline for a job whose old one has passed; `null` clears it. Left out, the stored deadline is kept. */
export interface RetryOptions {
  readonly deadlineAtMs?: number | null | undefined
}

export type ControlRefusal = NotFound | WrongState | StoreUnavailable

export class Control extends Context.Service<Control, {
  /** pending, scheduled, retryable -> available. */
  readonly promote: (id: JobId) => Effect.Effect<Moved, ControlRefusal>
  /** Any unfinished job -> cancelled; a running holder is refused from then on and interrupted at its next heartbeat. */
  readonly cancel: (id: JobId) => Effect.Effect<CancelAnswer, NotFound | StoreUnavailable>
  /** archived, cancelled, undecodable -> available, counters reset (undecodable: kept). A passed deadline is `Invalid`. */
  readonly retry: (id: JobId, options?: RetryOptions) => Effect.Effect<Moved, ControlRefusal | KeyTaken | Invalid>
  /** quarantined -> available, crash count reset. */
  readonly release: (id: JobId) => Effect.Effect<Moved, ControlRefusal | KeyTaken>
  /** A waiting job gets a new due time, or goes behind the same-priority work already waiting. */
  readonly reschedule: (
    id: JobId,
    to: { readonly atMs: number } | { readonly behind: true }
  ) => Effect.Effect<Moved, ControlRefusal | Invalid>
  /** Replaces the payload of a waiting job. */
  readonly edit: (
    id: JobId,
    payload: { readonly bytes: Uint8Array; readonly schemaVersion: number }
  ) => Effect.Effect<Moved, ControlRefusal | Invalid>
  /** Removes a job that is not running. */
  readonly remove: (id: JobId) => Effect.Effect<Moved, ControlRefusal>
}>()("@headgate/core/Control") {}
