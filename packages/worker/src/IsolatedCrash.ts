/** Why a child ended without an answer, with the end of what it printed: the defect of the attempt that it ran. */
import { toStorableText } from "@headgate/core/Text"
import * as Schema from "effect/Schema"

/** The child of an isolated task ended, or was ended, before it answered. */
export class IsolatedCrash extends Schema.TaggedError<IsolatedCrash>()("IsolatedCrash", {
  message: Schema.String,
  reason: Schema.Literals(["not_started", "exit", "signal", "out_of_memory", "protocol"]),
  exitCode: Schema.optionalKey(Schema.Number),
  signal: Schema.optionalKey(Schema.String),
  /** The end of stderr and, behind it, of stdout. */
  cause: Schema.optionalKey(Schema.Unknown)
}) {}

/** The child answered with bytes that the task's schemas do not read: it runs other code than its worker. */
export class UndecodableAnswer extends Schema.TaggedError<UndecodableAnswer>()("UndecodableAnswer", {
  message: Schema.String
}) {}

/** How a child ended, as far as its worker saw it. */
export interface ChildEnd {
  readonly exitCode: number | null
  readonly signal: NodeJS.Signals | null
  /** What the worker found wrong with it before. */
  readonly fault?: { readonly reason: "not_started" | "protocol"; readonly message: string } | undefined
  readonly memoryLimit: number | undefined
  readonly stdout: OutputTail
  readonly stderr: OutputTail
}

export const crashOf = (end: ChildEnd): IsolatedCrash => {
  const { reason, message } = end.fault ?? diagnose(end)
  const output = printed("stderr", end.stderr, printed("stdout", end.stdout, undefined))
  return new IsolatedCrash({
    message,
    reason,
    ...(end.exitCode === null ? {} : { exitCode: end.exitCode }),
    ...(end.signal === null ? {} : { signal: end.signal }),
    ...(output === undefined ? {} : { cause: output })
  })
}

const diagnose = (end: ChildEnd): Pick<IsolatedCrash, "reason" | "message"> => {
  const { exitCode, memoryLimit, signal } = end
  const how = signal === null ? `exited with code ${exitCode}` : `was ended by ${signal}`
  if (end.stderr.includes(OUT_OF_MEMORY)) {
    const limit = memoryLimit === undefined ? "" : ` (its limit is ${memoryLimit} bytes)`
    return { reason: "out_of_memory", message: `the child ran out of memory${limit} and ${how}` }
  }
  if (signal === "SIGKILL") {
    const message =
      "the child was ended by SIGKILL, not by its worker: the system ran out of memory, or somebody killed it"
    return { reason: "signal", message }
  }
  return { reason: signal === null ? "exit" : "signal", message: `the child ${how} before it answered` }
}

/** In the form of an error's cause, for the text that is stored of it. */
const printed = (name: string, tail: OutputTail, cause: object | undefined): object | undefined => {
  const message = tail.text
  return message === "" ? cause : { _tag: name, message, ...(cause === undefined ? {} : { cause }) }
}

/** The last bytes of a stream, however many it has. */
export class OutputTail {
  private kept: Buffer = Buffer.alloc(0)
  private total = 0
  private readonly maxBytes: number

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes
  }

  push(chunk: Buffer): void {
    this.total += chunk.length
    const joined = chunk.length >= this.maxBytes ? chunk : Buffer.concat([this.kept, chunk])
    // Copied, or one byte would keep all of a large chunk.
    this.kept = joined.length > this.maxBytes ? Buffer.from(joined.subarray(joined.length - this.maxBytes)) : joined
  }

  clear(): void {
    this.kept = Buffer.alloc(0)
    this.total = 0
  }

  includes(pattern: RegExp): boolean {
    return pattern.test(this.kept.toString("utf8"))
  }

  get text(): string {
    const text = toStorableText(this.kept.toString("utf8")).trimEnd()
    const cut = this.total - this.kept.length
    return cut === 0 ? text : `[cut: ${cut} bytes]${text}`
  }
}

const OUT_OF_MEMORY = /out of memory|Cannot allocate memory|std::bad_alloc/i
