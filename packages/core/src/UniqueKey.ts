/**
 * The key by which one unfinished job excludes another. Stored in a versioned form in which a key inside a kind and a
 * key across kinds can never meet.
 */
import * as Result from "effect/Result"
import { Invalid } from "./Refusals.ts"
import { utf8Length } from "./Text.ts"

/** Limit of the effective key, its prefix included: at most 1,018 bytes minus the kind's are the caller's. */
export const MAX_UNIQUE_KEY_BYTES = 1024

/** Bits of `uniqueReplace`: what a refused duplicate writes over the waiting holder of the key. */
export const UNIQUE_REPLACE_PAYLOAD = 1
export const UNIQUE_REPLACE_SCHEDULED_AT = 2
export const UNIQUE_REPLACE_PRIORITY = 4
export const UNIQUE_REPLACE_MAX_ATTEMPTS = 8
export const UNIQUE_REPLACE_ALL = 15

export interface UniqueKeyParts {
  readonly kind: string
  /** The caller's bytes; empty means one job per kind (or one at all when the kind is excluded). */
  readonly key: Uint8Array
  /** The key is shared by all kinds. */
  readonly excludeKind: boolean
}

/** `01 'K' u32be(len(kind)) kind key`, or `01 'G' key` when the kind is excluded. */
export const effectiveUniqueKey = (parts: UniqueKeyParts): Result.Result<Uint8Array, Invalid> => {
  const refusal = refuseUniqueKey(parts)
  if (refusal !== undefined) return Result.fail(refusal)
  if (parts.excludeKind) return Result.succeed(Uint8Array.from([VERSION, GLOBAL, ...parts.key]))
  const name = new TextEncoder().encode(parts.kind)
  const bytes = new Uint8Array(6 + name.length + parts.key.length)
  bytes[0] = VERSION
  bytes[1] = BY_KIND
  new DataView(bytes.buffer).setUint32(2, name.length)
  bytes.set(name, 6)
  bytes.set(parts.key, 6 + name.length)
  return Result.succeed(bytes)
}

/** The refusal of a key whose effective form is too long, if it is. */
export const refuseUniqueKey = (parts: UniqueKeyParts): Invalid | undefined => {
  const length = parts.key.length + (parts.excludeKind ? 2 : 6 + utf8Length(parts.kind))
  if (length <= MAX_UNIQUE_KEY_BYTES) return undefined
  const message = `the unique key takes ${length} bytes with its prefix, the limit is ${MAX_UNIQUE_KEY_BYTES}`
  return new Invalid({ field: "uniqueKey", message, limit: MAX_UNIQUE_KEY_BYTES, actual: length })
}

const VERSION = 1
const BY_KIND = 0x4b
const GLOBAL = 0x47
