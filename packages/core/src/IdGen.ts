/**
 * Where ids of jobs come from when the caller gives none. Replaceable: provide another `IdGen` to fix ids in a test or
 * to use ids of another make.
 */
import * as Context from "effect/Context"

export interface IdGen {
  /** A new id, unique across processes: 1 to 128 bytes of visible text. Synchronous; called once per job. */
  readonly next: () => string
}

/**
 * By default a ULID: 26 characters of Crockford base 32 (48 bits of time, 80 of randomness), strictly increasing within
 * the process even inside one millisecond and when the clock goes back. The time in it orders ids for the index; no
 * decision reads it.
 */
export const IdGen: Context.Reference<IdGen> = Context.Reference<IdGen>("@headgate/core/IdGen", {
  defaultValue: () => processUlids
})

export const ULID_LENGTH = 26

/** A source of strictly increasing ULIDs over a millisecond clock and a source of 10 random bytes. */
export const makeUlid = (now: () => number, randomBytes: () => Uint8Array): IdGen => {
  let time = -1
  let high = 0
  let low = 0
  let prefix = ""
  const refresh = (ms: number) => {
    time = ms
    const bytes = randomBytes()
    high = fortyBits(bytes, 0)
    low = fortyBits(bytes, 5)
    prefix = encodeTime(ms) + encodeFortyBits(high)
  }
  const increment = () => {
    low++
    if (low < FORTY_BITS) return
    low = 0
    high++
    if (high < FORTY_BITS) prefix = encodeTime(time) + encodeFortyBits(high)
    // All ids of this millisecond are used up: borrow the next one.
    else refresh(time + 1)
  }
  return {
    next: () => {
      const ms = now()
      if (ms > time) refresh(ms)
      else increment()
      return prefix + encodeFortyBits(low)
    }
  }
}

const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
const FORTY_BITS = 2 ** 40
const TEN_BITS = Array.from({ length: 1024 }, (_, n) => ALPHABET.charAt(n >> 5) + ALPHABET.charAt(n & 31))

const tenBits = (n: number): string => TEN_BITS[n & 1023] ?? ""

const encodeTwentyBits = (n: number): string => tenBits(n >> 10) + tenBits(n)

const encodeFortyBits = (n: number): string =>
  encodeTwentyBits(Math.floor(n / 0x100000)) + encodeTwentyBits(n % 0x100000)

const encodeTime = (ms: number): string => tenBits(Math.floor(ms / FORTY_BITS)) + encodeFortyBits(ms % FORTY_BITS)

const fortyBits = (bytes: Uint8Array, offset: number): number => {
  let n = 0
  for (let i = offset; i < offset + 5; i++) n = n * 256 + (bytes[i] ?? 0)
  return n
}

// One call to the platform for 256 ids of different milliseconds.
const pooledRandomBytes = (): () => Uint8Array => {
  const pool = new Uint8Array(2560)
  let used = pool.length
  return () => {
    if (used === pool.length) {
      crypto.getRandomValues(pool)
      used = 0
    }
    used += 10
    return pool.subarray(used - 10, used)
  }
}

const processUlids: IdGen = makeUlid(Date.now, pooledRandomBytes())
