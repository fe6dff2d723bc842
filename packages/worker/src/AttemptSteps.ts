/**
 * What one attempt knows of its job's steps: the ones recorded by now, the ones under way, the mark as it is stored, and
 * where the next record stands. Every kind of step goes through the same three calls: `begin`, `mark`, `record`.
 *
 * The mark says "this step may have begun": it is durable before a body runs, and it tells which step a crash is
 * charged to. To spare the write, a record carries the mark of the step expected next: the one that followed last time
 * in this process, else the next one declared. A right guess starts the next step without a write of its own, so n steps
 * cost n + 1 commits, or n where the first was marked while the claim waited for its slot; a wrong one costs one write
 * more. A guess is trusted for `guessMs` after its answer; later the boundary is written, and with it the lease verified,
 * anew. While bodies run side by side the mark names one of them.
 */
import type { Checkpoint, StepKind, StepRecord, StepWrite } from "@headgate/core/Checkpoint"
import { Codec, CodecError } from "@headgate/core/Codec"
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as Outcome from "@headgate/core/Outcome"
import { DuplicateStep, Invalid } from "@headgate/core/Refusals"
import { MAX_STEP_RESULT_BYTES, type StepCall, stepIdentity, type StepRefusal } from "@headgate/core/Step"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Attempt } from "./Attempt.ts"
import { loseLease, whileOwned } from "./Ownership.ts"
import { guessFor, START, type StepGuess } from "./StepGuess.ts"
import type { StepStores } from "./StepStores.ts"

interface Begun {
  readonly identity: string
  /** Present when an earlier attempt has finished this step. */
  readonly record: StepRecord | undefined
}

export class AttemptSteps {
  readonly attempt: Attempt
  readonly stores: StepStores
  /** The cursor that an earlier attempt left behind. */
  readonly cursor: Checkpoint["cursor"]
  /** The identity of the cursor step whose body runs now. */
  openCursor: string | undefined = undefined
  /** What the first accepted write of this attempt stores; undefined afterwards. */
  opening: StepWrite["open"]

  /** What earlier attempts recorded; results of this one are not kept. */
  private readonly records = new Map<string, StepRecord>()
  private readonly finished = new Set<string>()
  private readonly used = new Set<string>()
  private readonly underWay = new Set<string>()
  private readonly guess: StepGuess
  private position = 0
  private latest: string | undefined
  private marked: string | undefined
  private markedAt = Number.NEGATIVE_INFINITY

  constructor(attempt: Attempt, stores: StepStores, checkpoint: Checkpoint | undefined) {
    const { ahead, definition } = attempt
    const { stepSet, version } = definition
    this.attempt = attempt
    this.stores = stores
    this.cursor = checkpoint?.cursor
    this.opening = { stepSet, version }
    this.guess = guessFor(definition)
    this.marked = checkpoint?.inProgress
    if (ahead?.markedAt !== undefined) {
      this.opening = undefined
      this.marked = ahead.step
      this.markedAt = ahead.markedAt
    }
    attempt.stepsUnderWay = this.underWay
    for (const record of checkpoint?.records ?? []) {
      this.records.set(record.step, record)
      this.finished.add(record.step)
      this.position = Math.max(this.position, record.position + 1)
    }
  }

  /** Takes the identity for this call. What the handler does wrong is told on the first run as on every later one. */
  begin(name: string, key: string | undefined, kind: StepKind): Effect.Effect<Begun, StepRefusal> {
    const identified = stepIdentity(name, key)
    if (Result.isFailure(identified)) return Effect.fail(identified.failure)
    const identity = identified.success
    const { kind: task, stepSet } = this.attempt.definition
    if (stepSet !== undefined && !stepSet.includes(name)) {
      return new Invalid({
        field: "step",
        message: `${task} declares no step ${name}; its steps: ${stepSet.join(", ")}`
      })
    }
    if (this.used.has(identity)) return new DuplicateStep({ step: identity, message: duplicate(identity) })
    this.used.add(identity)
    if (this.latest !== undefined) this.guess.learn(this.latest, identity)
    else if (this.used.size === 1 && this.finished.size === 0) this.guess.learn(START, identity)
    const record = this.records.get(identity)
    if (record === undefined) return Effect.succeed({ identity, record })
    this.latest = identity
    return record.kind === kind
      ? Effect.succeed({ identity, record })
      : this.stale(`step ${identity} was recorded as a ${record.kind}, and this build runs it as a ${kind}`)
  }

  /** The recorded answer of a finished step. */
  recorded<A>(identity: string, result: Uint8Array | undefined, call: StepCall<A>): Effect.Effect<A> {
    // SAFETY: a call without a result codec answers nothing.
    if (call.result === undefined) return Effect.succeed(undefined as A)
    const value = call.result.decode(result ?? NO_BYTES)
    return Result.isSuccess(value)
      ? Effect.succeed(value.success)
      : this.stale(`the recorded result of step ${identity} does not fit its schema: ${describe(value.failure)}`)
  }

  /** Ends the attempt as one whose checkpoint this build cannot go on from. */
  stale(reason: string): Effect.Effect<never> {
    return this.attempt.end({ _tag: "Chosen", outcome: Outcome.checkpointStale(reason) })
  }

  /** Answers when the mark is durable and the job still ours: the body may start. */
  mark(identity: string): Effect.Effect<void> {
    return Effect.suspend(() => {
      this.underWay.add(identity)
      const isFresh = this.marked === identity && monotonicMs() - this.markedAt <= this.stores.settings.guessMs
      const marked = isFresh ? Effect.void : this.write({ mark: identity })
      return Effect.flatMap(marked, () => this.attempt.isOwned() ? Effect.void : loseLease(this.attempt))
    })
  }

  /** The body ended without an answer: its mark stays. */
  abandon(identity: string): void {
    this.underWay.delete(identity)
  }

  encode<A>(identity: string, call: StepCall<A>, value: A): Effect.Effect<Uint8Array | undefined, StepRefusal> {
    if (call.result === undefined) return Effect.undefined
    return encodeWithin(call.result, value, "result", `the result of step ${identity}`)
  }

  /** Answers when the record is durable. */
  record(identity: string, kind: StepKind, result: Uint8Array | undefined): Effect.Effect<void> {
    return Effect.suspend(() => {
      const record = { step: identity, kind, position: this.nextPosition(), result, wakeAtMs: undefined }
      return this.write({ record, mark: this.nextMark(identity) })
    })
  }

  nextPosition(): number {
    return this.position++
  }

  /** What the record of `identity` should mark: a body still under way, or the step expected next. */
  nextMark(identity: string): string | undefined {
    const others = [...this.underWay].filter((other) => other !== identity)
    if (others.length > 0) return others.includes(this.marked ?? "") ? undefined : others.at(-1)
    const likely = this.guess.after(identity) ?? this.nextDeclared(identity)
    return likely === undefined || this.used.has(likely) || this.finished.has(likely) ? undefined : likely
  }

  /** One write, again and again while the store is out of reach and the lease lasts. A refusal ends the attempt. */
  write({ cursor, mark, record }: Partial<Pick<StepWrite, "record" | "mark" | "cursor">>): Effect.Effect<void> {
    const { attempt, opening: open, stores } = this
    const write: StepWrite = { lease: attempt.claim.lease, leaseMs: attempt.leaseMs, record, mark, cursor, open }
    // Whoever waits for it may be interrupted, and never learn whether it was stored.
    if (mark !== undefined) this.marked = undefined
    return Effect.flatMap(whileOwned(attempt, stores.checkpointer.write(write)), ({ isAccepted, sentAt }) => {
      if (!isAccepted) return loseLease(attempt)
      this.stored(sentAt, mark, record)
      return Effect.void
    })
  }

  /** Takes note of what a write that was sent at `sentAt` has stored. */
  stored(sentAt: number, mark: string | undefined, record: StepRecord | undefined): void {
    this.attempt.tracked.extended(sentAt)
    this.opening = undefined
    if (record !== undefined) {
      this.underWay.delete(record.step)
      this.finished.add(record.step)
      this.latest = record.step
    }
    if (mark !== undefined) {
      this.marked = mark
      this.markedAt = monotonicMs()
    } else if (record?.step === this.marked) this.marked = undefined
  }

  private nextDeclared(identity: string): string | undefined {
    const { steps } = this.attempt.definition
    const at = steps.indexOf(identity)
    return at === -1 ? undefined : steps.slice(at + 1).find((step) => !this.finished.has(step))
  }
}

export const encodeWithin = <A>(
  codec: Codec<A>,
  value: A,
  field: string,
  what: string
): Effect.Effect<Uint8Array, CodecError | Invalid> => {
  const encoded = codec.encode(value)
  if (Result.isFailure(encoded)) {
    const { direction, message, path } = encoded.failure
    return new CodecError({ direction, message: `${what}: ${message}`, ...(path === undefined ? {} : { path }) })
  }
  const actual = encoded.success.length
  if (actual <= MAX_STEP_RESULT_BYTES) return Effect.succeed(encoded.success)
  const message = `${what} is ${actual} bytes, the limit is ${MAX_STEP_RESULT_BYTES}`
  return new Invalid({ field, message, limit: MAX_STEP_RESULT_BYTES, actual })
}

export const describe = ({ message, path }: CodecError): string =>
  path === undefined ? message : `${message} at ${path}`

const duplicate = (identity: string): string =>
  `step ${identity} was used before in this attempt: give each call in a loop its own key, and retry inside the step's body`

const NO_BYTES = new Uint8Array(0)
