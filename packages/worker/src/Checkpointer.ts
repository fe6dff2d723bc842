/**
 * Gathers the checkpoint writes of concurrent attempts into shared commits. The first write goes out at once; what comes
 * while the store is busy goes out together when it answers. A batch holds at most one write of a job, so that the
 * writes of one job are stored in the order they were asked for.
 *
 * A write that only moves the mark or the cursor joins the one before it while that one still waits. One that holds a
 * record goes out even when whoever asked for it was interrupted: what it records has happened.
 */
import type { StepWrite } from "@headgate/core/Checkpoint"
import { Checkpoints } from "@headgate/core/Checkpoints"
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { JobId } from "@headgate/core/Ids"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import type * as Scope from "effect/Scope"

/** `isAccepted` false: the lease is no longer current and nothing was stored. `sentAt` is monotonic. */
export interface Written {
  readonly isAccepted: boolean
  readonly sentAt: number
}

export interface Checkpointer {
  readonly write: (write: StepWrite) => Effect.Effect<Written, StoreUnavailable>
  /**
   * Goes out with the next writes of other jobs from `from` on (monotonic), and by itself never; not at all beside a
   * write of its own job. `written` is told the store's answer, if there is one. What `ride` returns withdraws it.
   */
  readonly ride: (write: StepWrite, from: number, written: (answer: Written) => void) => () => void
  /** Answers when nothing of this job waits or is on its way. */
  readonly quiet: (job: JobId) => Effect.Effect<void>
}

export const MAX_BATCH_WRITES = 500
/** A batch is closed by the write that takes it past this many bytes of results and cursors. */
const MAX_BATCH_BYTES = 4_194_304

/** Writes until the scope closes; what still waits then is interrupted. */
export const make: Effect.Effect<Checkpointer, never, Checkpoints | Scope.Scope> = Effect.gen(function*() {
  const checkpoints = yield* Checkpoints
  const fork = yield* FiberSet.makeRuntime<never, void, never>()
  const batches = new Batches((batch, done) => {
    const told = Effect.onExit(
      send(checkpoints, batch),
      (exit) => Effect.sync(() => done(Exit.isSuccess(exit) ? exit.value : batch.map(() => Exit.interrupt())))
    )
    fork(Effect.asVoid(told))
  })
  yield* Effect.addFinalizer(() => Effect.sync(() => batches.close()))
  return {
    write: (write) =>
      Effect.callback((resume) => {
        const cancel = batches.add(write, resume)
        return Effect.sync(cancel)
      }),
    ride: (write, from, written) =>
      batches.ride(write, from, (answer) => {
        if (Exit.isSuccess(answer)) written(answer.value)
      }),
    quiet: (job) =>
      Effect.callback((resume) => {
        batches.whenQuiet(job, () => resume(Effect.void))
      })
  }
})

type Answer = Exit.Exit<Written, StoreUnavailable>

/** A batch that makes the store die is sent again one by one, so that only the faulty write suffers. */
const send = (
  checkpoints: typeof Checkpoints.Service,
  batch: ReadonlyArray<StepWrite>
): Effect.Effect<ReadonlyArray<Answer>> =>
  Effect.suspend(() => {
    const sentAt = monotonicMs()
    return Effect.matchCauseEffect(checkpoints.write(batch), {
      onSuccess: (accepted) => Effect.succeed(batch.map((_, at) => answered(accepted[at], sentAt))),
      onFailure: (cause) => {
        if (batch.length === 1 || !Cause.hasDies(cause)) return Effect.succeed(batch.map(() => Exit.failCause(cause)))
        return Effect.map(Effect.forEach(batch, (write) => send(checkpoints, [write])), (answers) => answers.flat())
      }
    })
  })

const answered = (isAccepted: boolean | undefined, sentAt: number): Answer =>
  Exit.succeed({ isAccepted: isAccepted === true, sentAt })

/** One write as it will be sent, and everybody who waits for it. */
interface Pending {
  write: StepWrite
  readonly waiting: Set<(answer: Answer) => void>
}

interface Lane {
  readonly job: JobId
  /** Monotonic: from when on the first in its queue goes along with the writes of others. */
  ridesFrom: number
  readonly queue: Array<Pending>
  isSent: boolean
  readonly onQuiet: Array<() => void>
}

type Send = (batch: ReadonlyArray<StepWrite>, done: (answers: ReadonlyArray<Answer>) => void) => void

class Batches {
  private readonly send: Send
  private readonly lanes = new Map<JobId, Lane>()
  private readonly ready = new Set<Lane>()
  /** Those that wait for others to go along with. */
  private readonly riders = new Set<Lane>()
  private inFlight = 0
  /** Writes in the batches on their way. */
  private sent = 0
  private isWoken = false
  private isClosed = false

  constructor(send: Send) {
    this.send = send
  }

  /** The answer withdraws: a mark or cursor that still waits is dropped. */
  add(write: StepWrite, waiter: (answer: Answer) => void): () => void {
    if (this.isClosed) {
      waiter(Exit.interrupt())
      return () => {}
    }
    const lane = this.lane(write.lease.jobId)
    const last = lane.queue.at(-1)
    const joined = last === undefined ? undefined : join(last.write, write)
    const pending: Pending = last !== undefined && joined !== undefined ? last : { write, waiting: new Set() }
    if (joined !== undefined) pending.write = joined
    else lane.queue.push(pending)
    pending.waiting.add(waiter)
    this.riders.delete(lane)
    if (!lane.isSent) this.ready.add(lane)
    this.wake()
    return () => this.withdraw(lane, pending, waiter)
  }

  /** Where the job has another write nothing rides: that one says what is so by then. Withdrawn as with `add`. */
  ride(write: StepWrite, from: number, waiter: (answer: Answer) => void): () => void {
    if (this.isClosed) return () => {}
    const lane = this.lane(write.lease.jobId)
    if (lane.isSent || lane.queue.length > 0) return () => {}
    const pending: Pending = { write, waiting: new Set([waiter]) }
    lane.ridesFrom = from
    lane.queue.push(pending)
    this.riders.add(lane)
    return () => this.withdraw(lane, pending, waiter)
  }

  whenQuiet(job: JobId, then: () => void): void {
    const lane = this.lanes.get(job)
    if (lane === undefined) then()
    else lane.onQuiet.push(then)
  }

  close(): void {
    this.isClosed = true
    for (const lane of this.lanes.values()) {
      for (const { waiting } of lane.queue.splice(0)) for (const waiter of waiting) waiter(Exit.interrupt())
      for (const then of lane.onQuiet) then()
    }
  }

  private lane(job: JobId): Lane {
    const known = this.lanes.get(job)
    if (known !== undefined) return known
    const lane: Lane = { job, ridesFrom: 0, queue: [], isSent: false, onQuiet: [] }
    this.lanes.set(job, lane)
    return lane
  }

  private withdraw(lane: Lane, pending: Pending, waiter: (answer: Answer) => void): void {
    pending.waiting.delete(waiter)
    const at = lane.queue.indexOf(pending)
    if (at === -1 || pending.waiting.size > 0 || pending.write.record !== undefined) return
    lane.queue.splice(at, 1)
    if (lane.queue.length === 0) {
      this.ready.delete(lane)
      this.riders.delete(lane)
    }
    this.settle(lane)
  }

  /** Fibers that run in this very turn of the event loop may have more to write: they are let in first. */
  private wake(): void {
    if (this.isWoken) return
    this.isWoken = true
    queueMicrotask(() => {
      this.isWoken = false
      while (this.mayFlush()) this.flush()
    })
  }

  /** A second batch goes out beside the first only when it is no smaller: else batches would shrink to single writes. */
  private mayFlush(): boolean {
    const waiting = this.ready.size
    if (waiting === 0) return false
    return this.inFlight === 0 || (this.inFlight === 1 && waiting >= this.sent)
  }

  private flush(): void {
    const lanes: Array<Lane> = []
    const batch: Array<Pending> = []
    let bytes = 0
    for (const lane of this.next()) {
      const pending = lane.queue.shift()!
      lane.isSent = true
      lanes.push(lane)
      batch.push(pending)
      bytes += sizeOf(pending.write)
      if (batch.length === MAX_BATCH_WRITES || bytes > MAX_BATCH_BYTES) break
    }
    this.inFlight++
    this.sent += batch.length
    this.send(batch.map(({ write }) => write), (answers) => {
      this.inFlight--
      this.sent -= batch.length
      for (const lane of lanes) {
        lane.isSent = false
        if (lane.queue.length > 0) this.ready.add(lane)
      }
      for (const [at, { waiting }] of batch.entries()) for (const waiter of waiting) waiter(answers[at]!)
      for (const lane of lanes) this.settle(lane)
      this.wake()
    })
  }

  /** Those that are ready, then those that go along. */
  private *next(): Iterable<Lane> {
    for (const lane of this.ready) {
      this.ready.delete(lane)
      yield lane
    }
    if (this.riders.size === 0) return
    const now = monotonicMs()
    for (const lane of this.riders) {
      if (lane.ridesFrom > now) continue
      this.riders.delete(lane)
      yield lane
    }
  }

  private settle(lane: Lane): void {
    if (lane.isSent || lane.queue.length > 0 || this.lanes.get(lane.job) !== lane) return
    this.lanes.delete(lane.job)
    for (const then of lane.onQuiet) then()
  }
}

/** Both as one write, if storing `next` right after `last` means the same. */
const join = (last: StepWrite, next: StepWrite): StepWrite | undefined => {
  const isSameLease = last.lease.fence === next.lease.fence && last.lease.leaseId === next.lease.leaseId
  const endsCursor = last.record?.kind === "cursor" && next.cursor !== undefined
  if (!isSameLease || next.record !== undefined || endsCursor) return undefined
  return { ...last, mark: next.mark ?? last.mark, cursor: next.cursor ?? last.cursor, open: last.open ?? next.open }
}

const sizeOf = ({ cursor, record }: StepWrite): number => (record?.result?.length ?? 0) + (cursor?.bytes.length ?? 0)
