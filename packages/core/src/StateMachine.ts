/**
 * The life of a job as two pure functions: what an outcome, and what a lifecycle event, makes of a job in a state.
 * The same table stands in conformance/state_machine.yaml; a test holds the two together, cell by cell. Stores apply
 * it in their own statements and are checked against the same file.
 */
import type { LifecycleEvent } from "./LifecycleEvent.ts"
import type { Outcome } from "./Outcome.ts"
import { type State, type TerminalReason, unfinishedStates, type WaitingState, waitingStates } from "./State.ts"

/** The facts a move may depend on, as the store knows them when it applies the event. */
export interface TransitionCtx {
  readonly attempt: number
  readonly maxAttempts: number
  readonly crashAttempt: number
  readonly crashLimit: number
  readonly nowMs: number
  /** When the job would be due if it waits after this event: now plus the delay, the time that was named, or now. */
  readonly nextDueMs: number
  readonly deadlineMs: number | undefined
  /** Of a success: the job's own, 0 deletes. Of an eviction: that of the state it is in, undefined keeps it. */
  readonly retentionMs: number | undefined
  /** The producer asked for the job to wait until it is promoted. */
  readonly pending: boolean
  /** A reschedule or a replacement names the new due time, `nextDueMs`. */
  readonly namesTime: boolean
  /** The fingerprint is quarantined, be it by the strike this very crash adds. */
  readonly fingerprintClosed: boolean
  /** Another job holds the unique key in the scope this one would return to. */
  readonly uniqueKeyTaken: boolean
}

/** 0 leaves the number, 1 adds one, `reset` makes it 0. */
export type CounterChange = 0 | 1 | "reset"

export interface Transition {
  /** `deleted`: the row is gone. */
  readonly to: State | "deleted"
  readonly reason: TerminalReason | undefined
  readonly attempt: CounterChange
  readonly crashAttempt: CounterChange
  readonly fence: 0 | 1
  /** Of the job's fingerprint. */
  readonly strikes: CounterChange | "limit_minus_one"
}

/** What a worker's outcome makes of the job; undefined when the job is not running, so there is nothing to settle. */
export const transition = (state: State, outcome: Outcome, ctx: TransitionCtx): Transition | undefined => {
  if (state !== "running") return undefined
  switch (outcome._tag) {
    case "Success":
      return move(ctx.retentionMs === 0 ? "deleted" : "completed", { strikes: "reset" })
    case "Retry":
    case "TimedOut":
      return ctx.attempt + 1 >= ctx.maxAttempts || ("isLast" in outcome && outcome.isLast)
        ? rest("archived", "exhausted", { attempt: 1 })
        : waitAgain("retryable", ctx, { attempt: 1 })
    case "Fatal":
      return rest("archived", "fatal", { attempt: 1 })
    case "NotAFailure":
      return waitAgain("retryable", ctx)
    case "RateLimited":
      return waitAgain(isDelayed(ctx) ? "scheduled" : "available", ctx)
    case "Snooze":
      return waitAgain("scheduled", ctx)
    case "Skip":
      return rest("archived", "skipped")
    case "Revoke":
      return move("deleted")
    case "Undecodable":
      return rest("undecodable", "undecodable")
    case "CheckpointStale":
      return rest("undecodable", "checkpoint_stale")
    case "Released":
      return waitAgain("available", ctx)
    case "Crashed":
      return crash(ctx)
    case "DeadlinePassed":
      return rest("archived", "deadline")
    default:
      return unhandled(outcome)
  }
}

/**
 * What a lifecycle event makes of the job; undefined when it does not apply: not in this state, or not under these
 * facts (a retry past the deadline or into a taken unique scope, an eviction without retention). `none` is a job that
 * does not exist yet.
 */
export const lifecycleTransition = (
  state: State | "none",
  event: LifecycleEvent,
  ctx: TransitionCtx
): Transition | undefined => {
  switch (event) {
    case "enqueued":
      return state === "none" ? move(ctx.pending ? "pending" : isDelayed(ctx) ? "scheduled" : "available") : undefined
    case "operator_promote":
      return isOneOf(state, ["pending", "scheduled", "retryable"]) ? move("available") : undefined
    case "schedule_due":
      return state === "scheduled" ? move("available") : undefined
    case "backoff_due":
      return state === "retryable" ? move("available") : undefined
    case "admitted":
      return state === "available" ? move("running", { fence: 1 }) : undefined
    case "lease_lost":
      return state === "running" ? crash(ctx) : undefined
    case "superseded":
      return state === "running" ? rest("cancelled", "superseded") : undefined
    case "deadline_passed":
      return isOneOf(state, unfinishedStates) ? rest("archived", "deadline") : undefined
    case "queue_timeout":
      return isOneOf(state, ["scheduled", "available", "retryable"]) ? rest("archived", "queue_timeout") : undefined
    case "operator_cancel":
      return isOneOf(state, unfinishedStates) ? rest("cancelled", "operator_cancel") : undefined
    case "operator_retry":
      return retryByOperator(state, ctx)
    case "operator_release":
      return state === "quarantined" && !ctx.uniqueKeyTaken
        ? move("available", { crashAttempt: "reset", strikes: "limit_minus_one" })
        : undefined
    case "discarded":
      return state === "available" ? rest("archived", "discarded") : undefined
    case "cancelled_incoming":
      return state === "available" ? rest("cancelled", "cancelled_incoming") : undefined
    case "fingerprint_quarantined":
      return isOneOf(state, waitingStates) ? rest("quarantined", "fingerprint") : undefined
    case "replaced":
    case "rescheduled":
      return isOneOf(state, waitingStates) ? reschedule(state, ctx) : undefined
    case "edited":
      return isOneOf(state, waitingStates) ? move(state) : undefined
    case "operator_delete":
      return state === "running" || state === "none" ? undefined : move("deleted")
    case "evicted":
      return evict(state, ctx)
    default:
      return unhandled(event)
  }
}

const isOneOf = <S extends State>(state: State | "none", states: ReadonlyArray<S>): state is S =>
  // SAFETY: widened, to ask about states that are not among them.
  (states as ReadonlyArray<State | "none">).includes(state)

const isDelayed = (ctx: TransitionCtx): boolean => ctx.nextDueMs > ctx.nowMs

const isDueTooLate = (ctx: TransitionCtx): boolean => ctx.deadlineMs !== undefined && ctx.nextDueMs >= ctx.deadlineMs

/** Back to waiting, unless the job could only wait for its end. */
const waitAgain = (to: State, ctx: TransitionCtx, counters?: Counters): Transition => {
  if (ctx.fingerprintClosed) return rest("quarantined", "fingerprint", counters)
  if (isDueTooLate(ctx)) return rest("archived", "deadline", counters)
  return move(to, counters)
}

/** A pending job takes on the time and waits on for its operator. */
const reschedule = (state: WaitingState, ctx: TransitionCtx): Transition => {
  if (state === "pending" || !ctx.namesTime) return move(state)
  return move(isDelayed(ctx) ? "scheduled" : "available")
}

const crash = (ctx: TransitionCtx): Transition => {
  const counters: Counters = { crashAttempt: 1, strikes: 1 }
  return ctx.crashAttempt + 1 >= ctx.crashLimit
    ? rest("quarantined", "crash_limit", counters)
    : waitAgain("retryable", ctx, counters)
}

const retryByOperator = (state: State | "none", ctx: TransitionCtx): Transition | undefined => {
  if (isDueTooLate(ctx) || ctx.uniqueKeyTaken) return undefined
  if (isOneOf(state, ["archived", "cancelled"])) return move("available", { attempt: "reset", crashAttempt: "reset" })
  return state === "undecodable" ? move("available") : undefined
}

const evict = (state: State | "none", ctx: TransitionCtx): Transition | undefined => {
  if (isOneOf(state, ["completed", "cancelled"])) return move("deleted")
  const keepsOnRequest = isOneOf(state, ["archived", "quarantined", "undecodable"])
  return keepsOnRequest && ctx.retentionMs !== undefined ? move("deleted") : undefined
}

type Counters = Partial<Pick<Transition, "attempt" | "crashAttempt" | "fence" | "strikes">>

const move = (to: Transition["to"], counters?: Counters, reason?: TerminalReason): Transition => ({
  to,
  reason,
  attempt: counters?.attempt ?? 0,
  crashAttempt: counters?.crashAttempt ?? 0,
  fence: counters?.fence ?? 0,
  strikes: counters?.strikes ?? 0
})

const rest = (
  to: "archived" | "cancelled" | "quarantined" | "undecodable",
  reason: TerminalReason,
  counters?: Counters
): Transition => move(to, counters, reason)

/** Not reached: a new variant without a case does not compile here. */
const unhandled = (event: never): never => {
  throw new Error(`no transition for ${JSON.stringify(event)}`)
}
