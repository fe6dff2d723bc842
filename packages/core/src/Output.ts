/** Opaque, versioned bytes that an attempt leaves behind: the result of its success, and output while it runs. */
import * as Result from "effect/Result"
import type { Fence } from "./Ids.ts"
import { refuseInteger } from "./Millis.ts"
import { Invalid } from "./Refusals.ts"

/** 2^31 - 1, the largest schema version every store can hold; the smallest is 1. */
export const MAX_OPAQUE_SCHEMA_VERSION = 2_147_483_647

/** Default limit of one result or output, in bytes of the encoded form. Exactly this many are accepted. */
export const MAX_OUTPUT_BYTES = 1_048_576

/** What a job answered, recorded in the statement that completes it. */
export interface JobResult {
  readonly version: number
  readonly bytes: Uint8Array
}

/** The latest output: `fence` names the attempt that wrote it, `updatedAtMs` is the store's time. */
export interface JobOutput {
  readonly version: number
  readonly bytes: Uint8Array
  readonly fence: Fence
  readonly updatedAtMs: number
}

/** Checks version and size of opaque bytes; `field` (`result`, `output`...) is named in the refusal. */
export const validateOpaque = <A extends JobResult>(
  field: string,
  value: A,
  maxBytes: number = MAX_OUTPUT_BYTES
): Result.Result<A, Invalid> => {
  const refusal = refuseInteger("version", value.version, 1, MAX_OPAQUE_SCHEMA_VERSION) ??
    refuseBytes(field, value.bytes, maxBytes)
  return refusal === undefined ? Result.succeed(value) : Result.fail(refusal)
}

/** The refusal of bytes above a limit, if they are. */
export const refuseBytes = (field: string, bytes: Uint8Array, maxBytes: number): Invalid | undefined => {
  if (!(bytes instanceof Uint8Array)) return new Invalid({ field, message: `${field} must be bytes` })
  if (bytes.length <= maxBytes) return undefined
  const message = `${field} is ${bytes.length} bytes, the limit is ${maxBytes}`
  return new Invalid({ field, message, limit: maxBytes, actual: bytes.length })
}
