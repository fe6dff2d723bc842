import { assert, describe, it } from "@effect/vitest"
import { Frame, frame, FrameReader, MAX_FRAME_BYTES, readRun, runFrame } from "../src/IsolatedFrames.ts"

const facts = { id: "j", headers: { a: "b" } }
// SAFETY: the frames look at none of it.
const head = {
  facts: facts as unknown as Parameters<typeof runFrame>[0]["facts"],
  schemaVersion: 7,
  logLevel: "Info" as const
}
const payload = new Uint8Array([0, 255, 1, 2, 3])

const read = (bytes: Buffer, size: number) => {
  const frames: Array<readonly [number, string]> = []
  const reader = new FrameReader((kind, body) => frames.push([kind, body.toString("latin1")]))
  for (let at = 0; at < bytes.length; at += size) reader.push(bytes.subarray(at, at + size))
  return frames
}

describe("IsolatedFrames", () => {
  it("frames arrive whole and in order, wherever the stream is cut", () => {
    const bytes = Buffer.concat([frame(Frame.interrupted), frame(Frame.success, payload), runFrame(head, payload)])
    const whole = read(bytes, bytes.length)
    assert.deepStrictEqual(whole.map(([kind]) => kind), [Frame.interrupted, Frame.success, Frame.run])
    for (let size = 1; size < 20; size++) assert.deepStrictEqual(read(bytes, size), whole)
  })

  it("a run carries its head and its payload, byte by byte", () => {
    const ran = readRun(runFrame(head, payload).subarray(5))
    assert.deepStrictEqual(ran, { head, payload })
  })

  it("a length that no frame has is refused before its bytes are waited for", () => {
    for (const length of [0, MAX_FRAME_BYTES + 1]) {
      const bytes = Buffer.alloc(5)
      bytes.writeUInt32BE(length, 0)
      assert.throws(() => read(bytes, 5), `a frame of ${length} bytes`)
    }
  })
})
