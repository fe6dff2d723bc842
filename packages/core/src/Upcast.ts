/** Reads payloads of older versions: each is brought, version by version, to the shape of the newest. */
import * as Result from "effect/Result"
import { Codec, CodecError, parseJson } from "./Codec.ts"

/** From version n to version n + 1, by n. */
export type Upcasts = Readonly<Record<number, (old: any) => unknown>>

export interface Versions<P> {
  readonly kind: string
  readonly version: number
  readonly codec: Codec<P>
  readonly upcasts: Upcasts
  /** Upcasts take and give JSON values; otherwise bytes. */
  readonly isJson: boolean
}

export const payloadDecoder =
  <P>(versions: Versions<P>) => (bytes: Uint8Array, from: number): Result.Result<P, CodecError> => {
    if (from === versions.version) return versions.codec.decode(bytes)
    const { kind } = versions
    // Guarded: what an upcast throws is a fault of the payload, not of the worker.
    return Codec.guarded({ encode: () => Result.succeed(bytes), decode: (bytes) => decodeOld(versions, bytes, from) }, {
      kind
    })
      .decode(bytes)
  }

const decodeOld = <P>(
  { codec, isJson, kind, upcasts, version }: Versions<P>,
  bytes: Uint8Array,
  from: number
): Result.Result<P, CodecError> => {
  // A payload of nothing takes no bytes, and reads null as well.
  const parsed = !isJson ? Result.succeed<unknown>(bytes) : bytes.length === 0
    ? Result.succeed(null)
    : parseJson(bytes, { kind })
  if (Result.isFailure(parsed)) return Result.fail(parsed.failure)
  let value = parsed.success
  for (let at = from; at < version; at++) {
    const upcast = upcasts[at]
    if (upcast === undefined) return refused(kind, from, version, `there is no upcast from ${at} to ${at + 1}`)
    value = upcast(value)
  }
  const upcasted = isJson ? toJsonBytes(value) : value
  return upcasted instanceof Uint8Array
    ? codec.decode(upcasted)
    : refused(kind, from, version, `the upcasts answer no ${isJson ? "JSON value" : "bytes"}`)
}

const toJsonBytes = (value: unknown): Uint8Array | undefined => {
  const text: string | undefined = JSON.stringify(value === undefined ? null : value)
  return text === undefined ? undefined : new TextEncoder().encode(text)
}

const refused = (kind: string, from: number, version: number, why: string): Result.Result<never, CodecError> => {
  const message = `payload has version ${from}, this worker has ${version}, and ${why}`
  return Result.fail(new CodecError({ direction: "decode", kind, message }))
}
