/**
 * Where a job stands. Every store keeps exactly these words, and a job is in exactly one of them.
 * How it gets from one to another is StateMachine.
 */
import * as Schema from "effect/Schema"

export const State = Schema.Literals([
  "pending",
  "scheduled",
  "available",
  "running",
  "retryable",
  "completed",
  "archived",
  "cancelled",
  "quarantined",
  "undecodable"
])
export type State = typeof State.Type

/** No terminal state is ever left by itself: an operator brings a job back, or retention evicts it. */
export const terminalStates = [
  "completed",
  "archived",
  "cancelled",
  "quarantined",
  "undecodable"
] as const satisfies ReadonlyArray<State>
export type TerminalState = (typeof terminalStates)[number]

/** Nobody holds the job, and it has not come to its end. */
export const waitingStates = ["pending", "scheduled", "available", "retryable"] as const satisfies ReadonlyArray<State>
export type WaitingState = (typeof waitingStates)[number]

export const unfinishedStates = [...waitingStates, "running"] as const satisfies ReadonlyArray<State>
export type UnfinishedState = (typeof unfinishedStates)[number]

const terminal: ReadonlySet<State> = new Set(terminalStates)
const waiting: ReadonlySet<State> = new Set(waitingStates)

export const isTerminal = (state: State): state is TerminalState => terminal.has(state)

export const isWaiting = (state: State): state is WaitingState => waiting.has(state)

/** Why a job is archived, cancelled, quarantined or undecodable. `fingerprint`: other jobs like it crashed too often. */
export const TerminalReason = Schema.Literals([
  "exhausted",
  "fatal",
  "skipped",
  "deadline",
  "queue_timeout",
  "discarded",
  "crash_limit",
  "fingerprint",
  "undecodable",
  "checkpoint_stale",
  "operator_cancel",
  "superseded",
  "cancelled_incoming"
])
export type TerminalReason = typeof TerminalReason.Type
