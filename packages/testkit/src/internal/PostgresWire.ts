/**
 * Just enough of the Postgres wire protocol to see, in the bytes passing by, which statement a client runs and when the
 * server has answered it. Assumes no encryption.
 */

/** What a client sent: `run` names the SQL of a statement to be executed, `sync` ends a request that gets one answer. */
export type ClientEvent = { readonly event: "run"; readonly sql: string } | { readonly event: "sync" }

/** Reads one connection's client side, chunk by chunk. Prepared statements are remembered by name. */
export const clientReader = () => {
  const statements = new Map<string, string>()
  const read = frameReader(1)
  return (chunk: Buffer): ReadonlyArray<ClientEvent> =>
    read(chunk).flatMap(({ body, type }): ReadonlyArray<ClientEvent> => {
      const strings = () => body.toString("utf8").split("\0")
      switch (type) {
        case "Q":
          return [{ event: "run", sql: strings()[0] ?? "" }, { event: "sync" }]
        case "P": {
          const [name = "", sql = ""] = strings()
          statements.set(name, sql)
          return []
        }
        case "B":
          return [{ event: "run", sql: statements.get(strings()[1] ?? "") ?? "" }]
        case "S":
          return [{ event: "sync" }]
        default:
          return []
      }
    })
}

/** Reads one connection's server side: where in each chunk an answer is complete. The first answers the start-up. */
export const serverReader = () => {
  const read = frameReader(0)
  return (chunk: Buffer): ReadonlyArray<number> => read(chunk).flatMap(({ end, type }) => type === "Z" ? [end] : [])
}

interface Frame {
  readonly type: string
  readonly body: Buffer
  /** Its end within the chunk that completed it. */
  readonly end: number
}

/** A frame is a type byte and a length that counts itself; a client's first `untyped` frames have no type byte. */
const frameReader = (untyped: number) => {
  let pending: Buffer = Buffer.alloc(0)
  let left = untyped
  return (chunk: Buffer): ReadonlyArray<Frame> => {
    pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk])
    const frames: Array<Frame> = []
    for (;;) {
      const head = left > 0 ? 0 : 1
      if (pending.length < head + 4) return frames
      const end = head + pending.readUInt32BE(head)
      if (pending.length < end) return frames
      if (left > 0) left--
      const type = pending.toString("latin1", 0, head)
      const body = pending.subarray(head + 4, end)
      pending = pending.subarray(end)
      frames.push({ type, body, end: chunk.length - pending.length })
    }
  }
}
