/**
 * The leases a worker holds, in memory that its event loop and its heartbeat thread share: the loop writes a slot when
 * it gets a job and clears it when the job ends, the thread reads all slots at each beat. Neither waits for the other.
 *
 * A slot's word holds a generation (odd while the slot is in use) and the time until which its lease is valid. What the
 * reader writes is exchanged against the word it has read, so it can never fall upon the next lease in the slot. Times
 * are `uptimeMs`.
 */
import type { Fence, JobId, LeaseId, LeaseRef } from "@headgate/core/Ids"
import type { WorkerStanding } from "@headgate/core/WorkerControl"

/** Milliseconds on a monotonic clock that all threads of the process share. */
export const uptimeMs = (): number => {
  const [seconds, nanos] = process.hrtime()
  return seconds * 1000 + nanos / 1e6
}

export interface HeartbeatSlots {
  readonly memory: SharedArrayBuffer
  readonly tick: BigInt64Array
  readonly standing: BigInt64Array
  readonly words: BigInt64Array
  readonly fences: BigInt64Array
  readonly texts: Buffer
}

/** A lease as the reader found it. */
export interface HeldSlot {
  readonly slot: number
  readonly generation: number
  readonly lease: LeaseRef
}

export const make = (capacity: number): HeartbeatSlots =>
  view(new SharedArrayBuffer(headBytes + capacity * (wordBytes + fenceBytes + textBytes)))

export const view = (memory: SharedArrayBuffer): HeartbeatSlots => {
  const capacity = (memory.byteLength - headBytes) / (wordBytes + fenceBytes + textBytes)
  const fencesAt = headBytes + capacity * wordBytes
  return {
    memory,
    tick: new BigInt64Array(memory, 0, 1),
    standing: new BigInt64Array(memory, 8, 1),
    words: new BigInt64Array(memory, headBytes, capacity),
    fences: new BigInt64Array(memory, fencesAt, capacity),
    texts: Buffer.from(memory, fencesAt + capacity * fenceBytes)
  }
}

/** The event loop says that it is not blocked. */
export const writeTick = (slots: HeartbeatSlots): void =>
  void Atomics.store(slots.tick, 0, BigInt(Math.floor(uptimeMs())))

export const readTick = (slots: HeartbeatSlots): number => Number(Atomics.load(slots.tick, 0))

/** What the beats are to say of the worker. */
export const writeStanding = (slots: HeartbeatSlots, standing: WorkerStanding): void => {
  const { appliedSeq, isDraining, isQuiet, isResigned } = standing
  const flags = (isQuiet ? QUIET : 0n) | (isResigned ? RESIGNED : 0n) | (isDraining ? DRAINING : 0n)
  Atomics.store(slots.standing, 0, (BigInt(appliedSeq) << FLAG_BITS) | flags)
}

export const readStanding = (slots: HeartbeatSlots): WorkerStanding => {
  const word = Atomics.load(slots.standing, 0)
  return {
    appliedSeq: Number(word >> FLAG_BITS),
    isQuiet: (word & QUIET) !== 0n,
    isResigned: (word & RESIGNED) !== 0n,
    isDraining: (word & DRAINING) !== 0n
  }
}

const QUIET = 1n
const RESIGNED = 2n
const DRAINING = 4n
const FLAG_BITS = 3n

/** The event loop's half: gives out slots. */
export const makeWriter = (slots: HeartbeatSlots) => {
  const { fences, texts, words } = slots
  const free = Array.from(words, (_, slot) => words.length - 1 - slot)
  const reported = new Set<number>()
  return {
    /** Puts a lease into a free slot and answers slot and generation. Throws when all are in use. */
    take: ({ fence, jobId, leaseId }: LeaseRef): { readonly slot: number; readonly generation: number } => {
      const slot = free.pop()
      if (slot === undefined) throw new Error(`more than ${words.length} leases are tracked at a time`)
      const at = slot * textBytes
      const length = texts.write(jobId, at + 2 + leaseIdBytes, "utf8")
      if (length < Buffer.byteLength(jobId)) throw new Error("a job id takes more than 128 bytes")
      texts[at] = length
      texts.write(leaseId, at + 2, "latin1")
      fences[slot] = BigInt(fence)
      const generation = nextGeneration(generationOf(words[slot] ?? 0n))
      reported.delete(slot)
      Atomics.store(words, slot, wordOf(generation, 0))
      return { slot, generation }
    },
    /** Until when the reader has extended the lease; 0 when it has not yet. */
    validUntil: (slot: number, generation: number): number => {
      const word = Atomics.load(words, slot)
      return generationOf(word) === generation ? timeOf(word) : 0
    },
    isCurrent: (slot: number, generation: number): boolean => generationOf(Atomics.load(words, slot)) === generation,
    /** True once for a lease in a slot, and not after it has left. */
    firstLoss: (slot: number, generation: number): boolean => {
      if (generationOf(Atomics.load(words, slot)) !== generation || reported.has(slot)) return false
      reported.add(slot)
      return true
    },
    /** Frees a slot, once. */
    leave: (slot: number, generation: number): void => {
      if (generationOf(Atomics.load(words, slot)) !== generation) return
      Atomics.store(words, slot, wordOf(nextGeneration(generation), 0))
      free.push(slot)
    }
  }
}

/** The thread's half. */
export const makeReader = (slots: HeartbeatSlots) => {
  const { words } = slots
  const known: Array<HeldSlot | undefined> = Array.from(words, () => undefined)
  return {
    held: (): ReadonlyArray<HeldSlot> => {
      const held: Array<HeldSlot> = []
      for (let slot = 0; slot < words.length; slot++) {
        const generation = generationOf(Atomics.load(words, slot))
        if (generation % 2 === 0) {
          known[slot] = undefined
          continue
        }
        const before = known[slot]
        const found = before?.generation === generation ? before : { slot, generation, lease: readLease(slots, slot) }
        // Read again behind a full barrier: a slot that changed meanwhile gave half of two leases.
        if (generationOf(Atomics.or(words, slot, 0n)) !== generation) continue
        known[slot] = found
        held.push(found)
      }
      return held
    },
    isCurrent: ({ generation, slot }: Pick<HeldSlot, "generation" | "slot">): boolean =>
      generationOf(Atomics.load(words, slot)) === generation,
    /** Records an accepted renewal, unless the slot has been left since. Never takes time away. */
    accept: ({ generation, slot }: HeldSlot, validUntil: number): void => {
      const until = Math.floor(validUntil)
      let word = Atomics.load(words, slot)
      while (generationOf(word) === generation && timeOf(word) < until) {
        const found = Atomics.compareExchange(words, slot, word, wordOf(generation, until))
        if (found === word) return
        word = found
      }
    }
  }
}

const readLease = ({ fences, texts }: HeartbeatSlots, slot: number): LeaseRef => {
  const at = slot * textBytes
  const leaseId = texts.toString("latin1", at + 2, at + 2 + leaseIdBytes)
  const jobId = texts.toString("utf8", at + 2 + leaseIdBytes, at + 2 + leaseIdBytes + (texts[at] ?? 0))
  // SAFETY: the writer got these from a lease of the same types.
  return { jobId: jobId as JobId, leaseId: leaseId as LeaseId, fence: Number(fences[slot]) as Fence }
}

/** The tick, and the worker's standing. */
const headBytes = 16
const wordBytes = 8
const fenceBytes = 8
const leaseIdBytes = 36
const jobIdBytes = 128
/** Length of the job id (and one byte unused), lease id, job id. */
const textBytes = 2 + leaseIdBytes + jobIdBytes + 2

/**
 * 40 bits of time last 34 years of uptime; 23 bits of generation leave the sign alone. A slot that goes through all of
 * its generations between two beats would be taken for the one it was before: four million jobs in one slot.
 */
const timeBits = 40n
const timeMask = (1n << timeBits) - 1n
const generations = 2 ** 23

const wordOf = (generation: number, time: number): bigint => (BigInt(generation) << timeBits) | BigInt(time)
const generationOf = (word: bigint): number => Number(word >> timeBits)
const timeOf = (word: bigint): number => Number(word & timeMask)
const nextGeneration = (generation: number): number => (generation + 1) % generations
