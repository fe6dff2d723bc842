/**
 * The beat itself: renews every held lease in one statement, and the worker's row in the registry. Runs in the heartbeat
 * thread, or in the event loop where there can be no thread.
 */
import type { HeartbeatOptions } from "@headgate/core/Heartbeat"
import { Leases, type LostLease } from "@headgate/core/Leases"
import type { WorkerOrders } from "@headgate/core/WorkerControl"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { ControlSql } from "./ControlSql.ts"
import * as Slots from "./HeartbeatSlots.ts"
import * as WorkerRegistry from "./WorkerRegistry.ts"

/** What the loop tells the session. */
export type Report =
  /** A beat was accepted: the first one, and the first after an outage. */
  | { readonly _tag: "Beating" }
  /** The first failed beat of an outage. */
  | { readonly _tag: "Failing"; readonly message: string }
  | { readonly _tag: "Lost"; readonly leases: ReadonlyArray<LostSlot> }
  /** At each beat until the worker has taken it up. */
  | { readonly _tag: "Told"; readonly orders: WorkerOrders }

export interface LostSlot extends LostLease {
  readonly slot: number
  readonly generation: number
}

export interface LoopOptions {
  readonly options: HeartbeatOptions
  readonly slots: Slots.HeartbeatSlots
  /** When the event loop last showed that it runs. */
  readonly tick: () => number
  readonly report: (report: Report) => void
}

/** How often the event loop shows that it runs. */
export const tickMillis = (leaseMs: number): number => Math.min(200, Math.max(20, leaseMs / 20))

/**
 * A beat every quarter of a lease, and soon again after one that failed. An answer that comes late still counts from
 * when its question was sent, so a slow beat is not given up: the next one overtakes it on another connection.
 */
export const run = Effect.fnUntraced(function*(loop: LoopOptions): Effect.fn.Return<never, never, ControlSql | Leases> {
  const { leaseMs, maxBlockedMs } = loop.options
  const beat = yield* makeBeat(loop)
  const pause = leaseMs / 4
  const again = Math.min(2000, Math.max(20, leaseMs / 10))
  const longestTick = maxBlockedMs + 3 * tickMillis(leaseMs)
  while (true) {
    const startedAt = Slots.uptimeMs()
    if (startedAt - loop.tick() > longestTick) {
      yield* Effect.sleep(again)
      continue
    }
    const fiber = yield* Effect.forkChild(beat)
    const isAccepted = yield* Effect.timeoutOrElse(Fiber.join(fiber), {
      duration: pause,
      orElse: () => Effect.succeed(false)
    })
    yield* Effect.sleep(Math.max(0, startedAt + (isAccepted ? pause : again) - Slots.uptimeMs()))
  }
})

/** One beat; answers whether the store accepted it. Leases that were reported lost are not asked about again. */
const makeBeat = Effect.fnUntraced(function*({ options, report, slots }: LoopOptions) {
  const { leaseMs } = options
  const leases = yield* Leases
  const registry = yield* WorkerRegistry.make(options)
  const reader = Slots.makeReader(slots)
  const lostGenerations = new Map<number, number>()
  let isBeating: boolean | undefined

  const isLost = ({ generation, slot }: Slots.HeldSlot): boolean => lostGenerations.get(slot) === generation
  const lose = (gone: ReadonlyArray<LostSlot>): void => {
    for (const { generation, slot } of gone) lostGenerations.set(slot, generation)
    if (gone.length > 0) report({ _tag: "Lost", leases: gone })
  }
  const seen = (running: number) => {
    const standing = Slots.readStanding(slots)
    return Effect.map(registry.seen(running, standing), (orders) => {
      if (orders !== undefined && orders.seq > standing.appliedSeq) report({ _tag: "Told", orders })
    })
  }
  const renew = Effect.suspend(() => {
    // A later lease in the slot must not be taken for the lost one when the generations have gone round.
    for (const [slot, generation] of lostGenerations) {
      if (!reader.isCurrent({ slot, generation })) lostGenerations.delete(slot)
    }
    const { latest, overtaken } = byJob(reader.held().filter((held) => !isLost(held)))
    lose(overtaken.map((held) => lostSlot(held, "lease_lost")))
    if (latest.size === 0) return seen(0)
    const sentAt = Slots.uptimeMs()
    return Effect.flatMap(
      leases.renew(Array.from(latest.values(), ({ lease }) => lease), leaseMs),
      ({ busy, lost }) => {
        const gone: Array<LostSlot> = []
        for (const { jobId, reason } of lost) {
          const held = latest.get(jobId)
          if (held !== undefined) gone.push(lostSlot(held, reason))
          latest.delete(jobId)
        }
        for (const jobId of busy) latest.delete(jobId)
        for (const held of latest.values()) reader.accept(held, sentAt + leaseMs)
        lose(gone)
        return seen(latest.size + busy.length)
      }
    )
  })
  const accepted = Effect.sync(() => {
    if (isBeating !== true) report({ _tag: "Beating" })
    isBeating = true
    return true
  })
  return Effect.matchCauseEffect(Effect.timeout(renew, leaseMs), {
    onSuccess: () => accepted,
    onFailure: (cause) =>
      Effect.sync(() => {
        // The end of the session closes the connections under a beat.
        if (isBeating !== false && !Cause.hasInterruptsOnly(cause)) {
          report({ _tag: "Failing", message: Cause.pretty(cause) })
        }
        isBeating = false
        return false
      })
  })
})

/** A job that came back to this worker overtakes its own earlier attempt, which must not be renewed nor blamed on it. */
const byJob = (held: ReadonlyArray<Slots.HeldSlot>) => {
  const latest = new Map<string, Slots.HeldSlot>()
  const overtaken: Array<Slots.HeldSlot> = []
  for (const one of held) {
    const other = latest.get(one.lease.jobId)
    const isLatest = other === undefined || other.lease.fence < one.lease.fence
    if (isLatest) latest.set(one.lease.jobId, one)
    if (other !== undefined) overtaken.push(isLatest ? other : one)
  }
  return { latest, overtaken }
}

const lostSlot = ({ generation, lease, slot }: Slots.HeldSlot, reason: LostLease["reason"]): LostSlot => ({
  slot,
  generation,
  jobId: lease.jobId,
  fence: lease.fence,
  reason
})
