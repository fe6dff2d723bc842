/**
 * How values become the opaque bytes a store keeps. JSON in UTF-8 by default, any `Codec` by choice. A codec is
 * synchronous, answers faults as values and never throws.
 *
 * JSON text escapes NUL and unpaired surrogates, so every JavaScript string comes back exactly as it went in.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as SchemaAST from "effect/SchemaAST"
import * as SchemaIssue from "effect/SchemaIssue"
import { cutUtf8, toStorableText, toUtf8 } from "./Text.ts"

/**
 * A value does not fit its schema, or bytes are not what the codec writes. `path` leads to the faulty part (`a.b[0]`).
 * Neither text quotes the value: it may be secret.
 */
export class CodecError extends Schema.TaggedError<CodecError>()("CodecError", {
  direction: Schema.Literals(["encode", "decode"]),
  message: Schema.String,
  path: Schema.optionalKey(Schema.String),
  /** The job kind or another name of what was coded. */
  kind: Schema.optionalKey(Schema.String)
}) {}

export interface Codec<A> {
  readonly encode: (value: A) => Result.Result<Uint8Array, CodecError>
  readonly decode: (bytes: Uint8Array) => Result.Result<A, CodecError>
}

export interface CodecOptions {
  /** Named in errors: the job's kind, usually. */
  readonly kind?: string
}

export const Codec = {
  /**
   * JSON of any schema that needs no services (dates, bigints, maps, bytes... have a JSON form). `Schema.Void` and
   * `Schema.Undefined` take no bytes at all, and also read JSON `null`. Transformations must be synchronous. Make one
   * per schema and keep it.
   */
  json: <A>(schema: Schema.Codec<A, unknown>, options: CodecOptions = {}): Codec<A> => {
    const wire = Schema.toCodecJson(schema)
    const toJson = Schema.encodeUnknownResult(wire)
    const fromJson = Schema.decodeUnknownResult(wire)
    const isVoid = SchemaAST.isVoid(schema.ast) || SchemaAST.isUndefined(schema.ast)
    const nothing = isVoid
      ? Result.mapError(fromJson(null), (error) => schemaFault("decode", error, options))
      : undefined
    return guarded<A>({
      encode: (value) => {
        if (isVoid && value === undefined) return NOTHING_ENCODED
        const json = toJson(value)
        if (Result.isFailure(json)) return Result.fail(schemaFault("encode", json.failure, options))
        return isVoid ? NOTHING_ENCODED : Result.succeed(toUtf8(JSON.stringify(json.success)))
      },
      decode: (bytes) => {
        if (nothing !== undefined && bytes.length === 0) return nothing
        const json = parseJson(bytes, options)
        if (Result.isFailure(json)) return Result.fail(json.failure)
        const value = fromJson(json.success)
        return Result.isFailure(value)
          ? Result.fail(schemaFault("decode", value.failure, options))
          : Result.succeed(value.success)
      }
    }, options)
  },
  /** Makes a codec of two functions, which may throw: what they throw becomes a `CodecError`. */
  make: <A>(
    functions: { readonly encode: (value: A) => Uint8Array; readonly decode: (bytes: Uint8Array) => A },
    options: CodecOptions = {}
  ): Codec<A> =>
    guarded({
      encode: (value) => Result.succeed(functions.encode(value)),
      decode: (bytes) => Result.succeed(functions.decode(bytes))
    }, options),
  /** The same codec, but what it throws becomes a `CodecError`. */
  guarded: <A>(codec: Codec<A>, options: CodecOptions = {}): Codec<A> => guarded(codec, options)
}

const guarded = <A>(codec: Codec<A>, options: CodecOptions): Codec<A> => ({
  encode: (value) => {
    try {
      return codec.encode(value)
    } catch (error) {
      return Result.fail(thrownFault("encode", error, options))
    }
  },
  decode: (bytes) => {
    try {
      return codec.decode(bytes)
    } catch (error) {
      return Result.fail(thrownFault("decode", error, options))
    }
  }
})

/** JSON from UTF-8 bytes; a fault names the place and quotes nothing. */
export const parseJson = (bytes: Uint8Array, options: CodecOptions): Result.Result<unknown, CodecError> => {
  if (bytes.length === 0) return Result.fail(fault("decode", "no bytes where JSON was expected", options))
  let text: string
  try {
    text = decoder.decode(bytes)
  } catch {
    return Result.fail(fault("decode", "the bytes are not UTF-8", options))
  }
  try {
    return Result.succeed(JSON.parse(text))
  } catch (error) {
    // The engine's message quotes the text; only the position is taken from it.
    const position = /at position (\d+)/.exec(String(error))?.[1]
    const where = position === undefined ? "" : ` (at character ${position})`
    return Result.fail(fault("decode", `the bytes are not valid JSON${where}`, options))
  }
}

const schemaFault = (direction: Direction, error: Schema.SchemaError, options: CodecOptions): CodecError => {
  const [first] = formatIssue(error.issue).issues
  return fault(direction, first?.message ?? "the value does not fit its schema", options, first?.path)
}

const thrownFault = (direction: Direction, error: unknown, options: CodecOptions): CodecError => {
  if (error instanceof RangeError) return fault(direction, "the value is nested too deeply or too large", options)
  try {
    return fault(direction, error instanceof Error ? error.message : String(error), options)
  } catch {
    return fault(direction, "the codec threw a value that cannot be shown", options)
  }
}

const fault = (
  direction: Direction,
  message: string,
  { kind }: CodecOptions,
  path: ReadonlyArray<unknown> = []
): CodecError =>
  new CodecError({
    direction,
    message: toStorableText(cutUtf8(message, MAX_MESSAGE_BYTES)),
    ...(path.length === 0 ? {} : { path: pathText(path) }),
    ...(kind === undefined ? {} : { kind })
  })

const pathText = (path: ReadonlyArray<unknown>): string => {
  let text = ""
  for (const segment of path) {
    const key = typeof segment === "object" && segment !== null && "key" in segment ? segment.key : segment
    if (typeof key === "number") text += `[${key}]`
    else if (IDENTIFIER.test(String(key))) text += text === "" ? String(key) : `.${String(key)}`
    else text += `[${JSON.stringify(String(key))}]`
    if (text.length > MAX_PATH_BYTES) break
  }
  return toStorableText(cutUtf8(text, MAX_PATH_BYTES))
}

type Direction = "encode" | "decode"

const MAX_MESSAGE_BYTES = 2048
const MAX_PATH_BYTES = 512
const IDENTIFIER = /^[A-Za-z_$][\w$]{0,127}$/
const NOTHING_ENCODED = Result.succeed(new Uint8Array(0))
const decoder = new TextDecoder("utf-8", { fatal: true })
const formatIssue = SchemaIssue.makeFormatterStandardSchemaV1()
