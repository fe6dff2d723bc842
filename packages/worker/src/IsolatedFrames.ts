/**
 * What a worker and an isolated child say to each other, on file descriptor 3 of the child: frames of a length (4 bytes,
 * big-endian, of what follows it), a kind (1 byte) and a body. The child says `ready` once, then answers each `run` with
 * exactly one of the answers; `progress`, `charge`, `extend`, `log` and `tracked` may come before it.
 *
 * | frame | from | body |
 * | --- | --- | --- |
 * | ready | child | JSON `{ protocol, kind }` |
 * | run | worker | length of the head (4 bytes), head as JSON, payload as bytes |
 * | interrupt | worker | JSON `{ reason }` |
 * | success, failure | child | the value as bytes, by the task's schemas |
 * | defect | child | JSON `{ tag, message, text }` |
 * | unencodable | child | JSON `{ message, path }`: the handler's answer does not fit its schema |
 * | refused | child | JSON `{ field, message, limit, actual }`: what the handler asked for breaks a rule of the library |
 * | interrupted | child | none: it stopped as it was told |
 * | ending | child | JSON: the handler chose snooze, skip, revoke, release or rateLimited |
 * | progress, charge | child | JSON |
 * | extend | child | JSON `{ id, ms }`: asks for a longer lease |
 * | extended | worker | JSON `{ id }`: it has it |
 * | log | child | JSON: a line that the handler logged |
 * | tracked | child | JSON: the work that it tracks |
 */
import type { ActualCost, JobFacts } from "@headgate/core/Job"
import type { LogLevel } from "effect/LogLevel"

export const PROTOCOL = 1

/** The child's end of the frames. */
export const CHANNEL_FD = 3

/** Nothing is ever written to it. That it closes tells the child, whatever its event loop does, that its worker died. */
export const LIFELINE_FD = 4

/** Larger frames end the child: nothing that a job may answer takes so much. */
export const MAX_FRAME_BYTES = 16 * 1_048_576

export const Frame = {
  ready: 1,
  run: 2,
  interrupt: 3,
  success: 4,
  failure: 5,
  defect: 6,
  unencodable: 7,
  interrupted: 8,
  ending: 9,
  progress: 10,
  charge: 11,
  extend: 12,
  extended: 13,
  log: 14,
  tracked: 15,
  refused: 16
} as const

export type FrameKind = (typeof Frame)[keyof typeof Frame]

export interface RunHead {
  readonly facts: Omit<JobFacts, "trace">
  readonly schemaVersion: number
  /** The least level of the lines that the worker logs. */
  readonly logLevel: LogLevel
}

/** An end that the handler chose. Milliseconds as the handler gave them; null for what is no duration. */
export type ChosenEnding =
  | { readonly _tag: "Snooze"; readonly ms: number | null }
  | { readonly _tag: "Skip"; readonly reason: string }
  | { readonly _tag: "Revoke" }
  | { readonly _tag: "Release" }
  | { readonly _tag: "RateLimited"; readonly retryAfterMs?: number | null | undefined }

export interface AskedExtension {
  readonly id: number
  readonly ms: number
}

export type SaidCharge = { readonly actual: number | ActualCost }

export const frame = (kind: FrameKind, body: Uint8Array = NOTHING): Buffer => {
  const bytes = Buffer.allocUnsafe(HEAD_BYTES + body.length)
  bytes.writeUInt32BE(1 + body.length, 0)
  bytes[4] = kind
  bytes.set(body, HEAD_BYTES)
  return bytes
}

export const jsonFrame = (kind: FrameKind, value: unknown): Buffer => frame(kind, Buffer.from(JSON.stringify(value)))

export const runFrame = (head: RunHead, payload: Uint8Array): Buffer => {
  const json = Buffer.from(JSON.stringify(head))
  const length = Buffer.allocUnsafe(4)
  length.writeUInt32BE(json.length, 0)
  return frame(Frame.run, Buffer.concat([length, json, payload]))
}

export const readRun = (body: Buffer): { readonly head: RunHead; readonly payload: Uint8Array } => {
  const end = 4 + body.readUInt32BE(0)
  // A copy, for codecs that look at the buffer below the bytes.
  return { head: readJson<RunHead>(body.subarray(4, end)), payload: new Uint8Array(body.subarray(end)) }
}

// SAFETY: both ends are this module's; what the worker reads of a child's is checked where it is used.
export const readJson = <A>(body: Buffer): A => JSON.parse(body.toString("utf8")) as A

/** Cuts a stream of bytes into frames. Throws on a length that no frame has. */
export class FrameReader {
  private chunks: Array<Buffer> = []
  private length = 0
  private readonly onFrame: (kind: number, body: Buffer) => void

  constructor(onFrame: (kind: number, body: Buffer) => void) {
    this.onFrame = onFrame
  }

  push(chunk: Buffer): void {
    this.chunks.push(chunk)
    this.length += chunk.length
    while (this.length >= HEAD_BYTES) {
      const head = this.chunks[0]!.length >= HEAD_BYTES ? this.chunks[0]! : this.joined()
      const bytes = head.readUInt32BE(0)
      if (bytes < 1 || bytes > MAX_FRAME_BYTES) throw new Error(`a frame of ${bytes} bytes`)
      if (this.length < 4 + bytes) return
      const all = this.joined()
      const rest = all.subarray(4 + bytes)
      this.chunks = [rest]
      this.length = rest.length
      this.onFrame(all[4]!, all.subarray(HEAD_BYTES, 4 + bytes))
    }
  }

  private joined(): Buffer {
    const all = this.chunks.length === 1 ? this.chunks[0]! : Buffer.concat(this.chunks)
    this.chunks = [all]
    return all
  }
}

const HEAD_BYTES = 5
const NOTHING = new Uint8Array(0)
