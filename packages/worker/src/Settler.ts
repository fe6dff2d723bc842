/**
 * Settles ended attempts in batches: what ends while a flush is on its way goes out with the next one. An outage is
 * waited out; until the store has answered, the lease is kept. A refused settlement means that the job was lost before;
 * one whose row another transaction holds is tried again apart, so that nothing waits for it.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { Charge, Leases, Settled, Settlement } from "@headgate/core/Leases"
import { type Outcome, outcomeName } from "@headgate/core/Outcome"
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { LocalAttempt } from "./Attempt.ts"
import type { InFlight } from "./InFlight.ts"
import type { Outage } from "./Outage.ts"
import { backoffMs } from "./Ownership.ts"
import type { Reporter } from "./Reporter.ts"

const MAX_SETTLE_BATCH = 2000

interface Ended {
  readonly attempt: LocalAttempt
  readonly outcome: Outcome
}

interface SettlerParts {
  readonly leases: Leases["Service"]
  readonly context: Context.Context<never>
  readonly inFlight: InFlight
  readonly reporter: Reporter
  readonly outage: Outage
  /** Leases were given back: there is room, and a limit they held may have opened. Or a crash is waited for no longer. */
  readonly settled: () => void
  /** A crash of this kind closed its fingerprint. */
  readonly fingerprintClosed: (kind: string) => void
}

export class Settler {
  private pending: Array<Ended> = []
  private flushes = 0
  /** Settlements that are tried again apart. */
  private busy = 0
  /** Crashes that the store has not been heard about. */
  private readonly crashes = new Set<Ended>()
  private isDue = false
  private isClosed = false
  private readonly parts: SettlerParts

  constructor(parts: SettlerParts) {
    this.parts = parts
  }

  push(attempt: LocalAttempt, outcome: Outcome): void {
    const ended = { attempt, outcome }
    this.pending.push(ended)
    if (outcome._tag === "Crashed") this.crashes.add(ended)
    if (this.isDue) return
    this.isDue = true
    // Attempts that end in this turn of the event loop go out together.
    setImmediate(this.pump)
  }

  /** A crash is on its way to the store for the first time: what is not started yet may be of the same content. */
  get awaitsCrash(): boolean {
    return this.crashes.size > 0
  }

  get isIdle(): boolean {
    return this.flushes === 0 && this.pending.length === 0
  }

  get isDone(): boolean {
    return this.isIdle && this.busy === 0
  }

  /** Gives up what is still being retried. */
  close(): void {
    this.isClosed = true
  }

  private readonly pump = (): void => {
    this.isDue = false
    while (this.mayFlush()) {
      const batch = this.pending.length <= MAX_SETTLE_BATCH ? this.pending : this.pending.slice(0, MAX_SETTLE_BATCH)
      this.pending = this.pending.slice(batch.length)
      this.flushes++
      const fiber = Effect.runForkWith(this.parts.context)(this.flush(batch, 0), { uninterruptible: true })
      fiber.addObserver(() => {
        this.flushes--
        this.parts.settled()
        this.pump()
      })
    }
  }

  /** A second flush goes out beside the first only when it is worth a commit of its own. */
  private mayFlush(): boolean {
    if (this.pending.length === 0) return false
    return this.flushes === 0 || (this.flushes === 1 && this.pending.length >= WORTH_A_COMMIT)
  }

  private flush(batch: ReadonlyArray<Ended>, tries: number): Effect.Effect<void> {
    const settlements = batch.map(settlementOf)
    return Effect.flatMap(Effect.exit(this.parts.leases.settle(settlements)), (exit) => {
      // Whatever the answer: an outage, or a row that somebody holds, must not keep the others waiting.
      const hasWaited = this.awaitsCrash
      for (const ended of batch) this.crashes.delete(ended)
      if (Exit.isSuccess(exit)) return Effect.sync(() => this.answered(batch, exit.value, tries))
      if (Cause.hasDies(exit.cause)) return this.died(batch, exit.cause)
      this.parts.outage.failed(OPERATION, exit.cause)
      if (hasWaited) this.parts.settled()
      const kept = this.isClosed ? [] : batch.filter((ended) => this.isWorthRetrying(ended))
      if (kept.length === 0) return Effect.void
      return Effect.andThen(Effect.sleep(backoffMs(tries)), Effect.suspend(() => this.flush(kept, tries + 1)))
    })
  }

  private answered(batch: ReadonlyArray<Ended>, answers: ReadonlyArray<Settled>, tries: number): void {
    const { inFlight, outage, reporter } = this.parts
    const busy: Array<Ended> = []
    outage.succeeded(OPERATION)
    for (let at = 0; at < batch.length; at++) {
      const { attempt, outcome } = batch[at]!
      const answer = answers[at]
      if (answer?._tag === "Busy") {
        busy.push(batch[at]!)
        continue
      }
      inFlight.release(attempt)
      if (answer?._tag === "Applied") {
        reporter.settled(attempt, outcomeName(outcome), answer)
        if (answer.closedFingerprint !== undefined) this.parts.fingerprintClosed(attempt.claim.kind)
      } else reporter.lost(attempt, "lease_lost")
    }
    reporter.flush()
    if (busy.length > 0) this.tryApart(busy, tries)
  }

  private tryApart(batch: ReadonlyArray<Ended>, tries: number): void {
    this.busy += batch.length
    const again = Effect.suspend(() => {
      const kept = this.isClosed ? [] : batch.filter((ended) => this.isWorthRetrying(ended))
      return kept.length === 0 ? Effect.void : this.flush(kept, tries + 1)
    })
    const fiber = Effect.runForkWith(this.parts.context)(Effect.delay(again, backoffMs(tries)), {
      uninterruptible: true
    })
    fiber.addObserver(() => {
      this.busy -= batch.length
      this.parts.settled()
    })
  }

  /** One settlement the store cannot take must not hold up the others: halves, until it stands alone. */
  private died(batch: ReadonlyArray<Ended>, cause: Cause.Cause<unknown>): Effect.Effect<void> {
    const [first] = batch
    if (first === undefined) return Effect.void
    if (batch.length === 1) {
      const { jobId } = first.attempt.claim.lease
      this.parts.reporter.warn(`Job ${jobId} cannot be settled: its lease will run out`, Cause.pretty(cause))
      this.giveUp(first)
      return Effect.void
    }
    const half = Math.ceil(batch.length / 2)
    return Effect.andThen(
      this.flush(batch.slice(0, half), 0),
      Effect.suspend(() => this.flush(batch.slice(half), 0))
    )
  }

  /** A row nobody took over can be settled after its lease ran out, but not for ever. */
  private isWorthRetrying(ended: Ended): boolean {
    const { leaseMs, tracked } = ended.attempt
    if (tracked.validUntil() + PATIENCE_LEASES * leaseMs > monotonicMs()) return true
    this.giveUp(ended)
    return false
  }

  private giveUp({ attempt }: Ended): void {
    this.parts.inFlight.release(attempt)
    this.parts.reporter.lost(attempt, "lease_lost")
  }
}

/** A claim that never started has used nothing. A mark made ahead stands for a step only once a step has begun. */
const settlementOf = ({ attempt, outcome }: Ended): Settlement => {
  const { ahead, claim: { lease }, startedAt, stepsUnderWay } = attempt
  const charges = startedAt === undefined ? unused : attempt.charges
  const log = outcome._tag === "Success" ? undefined : attempt.log
  const isUnbegun = ahead?.isMarking === true && stepsUnderWay === undefined
  if (log === undefined && !isUnbegun) return charges === undefined ? { lease, outcome } : { lease, outcome, charges }
  return { lease, outcome, charges, log, isUnbegun }
}

const unused: ReadonlyArray<Charge> = [{ actual: 0 }]

const OPERATION = "Leases.settle"
const WORTH_A_COMMIT = 100
const PATIENCE_LEASES = 10
