/**
 * The fingerprint of a job's content, by which crashes are counted across jobs. Derived where a job is enqueued when the
 * producer gives none; a supplied one passes through untouched. Every implementation must compute the same value.
 */
import * as Effect from "effect/Effect"

export const MAX_FINGERPRINT_BYTES = 128

/** The exact bytes that are hashed: `u32le(len(kind)) kind u32le(len(payload)) payload`, lengths in bytes. */
export const fingerprintBytes = (kind: string, payload: Uint8Array): Uint8Array<ArrayBuffer> => {
  const name = encoder.encode(kind)
  const bytes = new Uint8Array(8 + name.length + payload.length)
  const view = new DataView(bytes.buffer)
  view.setUint32(0, name.length, true)
  bytes.set(name, 4)
  view.setUint32(4 + name.length, payload.length, true)
  bytes.set(payload, 8 + name.length)
  return bytes
}

/**
 * Lowercase hex of the first 16 bytes of the SHA-256 of `fingerprintBytes`. Uses the platform's WebCrypto (about 15 us);
 * a store that can hash does it in the insert instead.
 */
export const fingerprint = (kind: string, payload: Uint8Array): Effect.Effect<string> =>
  Effect.map(Effect.promise(() => crypto.subtle.digest("SHA-256", fingerprintBytes(kind, payload))), (digest) => {
    let hex = ""
    for (const byte of new Uint8Array(digest, 0, 16)) hex += byte.toString(16).padStart(2, "0")
    return hex
  })

/** A supplied fingerprint is any 1 to 128 visible ASCII characters. */
export const isFingerprint = (text: string): boolean => /^[\x21-\x7e]{1,128}$/.test(text)

const encoder = new TextEncoder()
