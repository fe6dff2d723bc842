import { assert, describe, it } from "@effect/vitest"
import type { Fence, JobId, LeaseId, LeaseRef } from "@headgate/core/Ids"
import * as Slots from "@headgate/postgres/HeartbeatSlots"

const lease = (n: number, jobId = `job ${n}`): LeaseRef => ({
  jobId: jobId as JobId,
  leaseId: `6c1d6d0a-0c61-4d0c-9a2f-${String(n).slice(-12).padStart(12, "0")}` as LeaseId,
  fence: n as Fence
})

/** A writer, and a reader of the same memory as another thread would have it. */
const make = (capacity: number) => {
  const slots = Slots.make(capacity)
  return { writer: Slots.makeWriter(slots), reader: Slots.makeReader(Slots.view(slots.memory)), slots }
}

describe("HeartbeatSlots", () => {
  it("a reader finds the leases that are held, whole, and no others", () => {
    const { reader, writer } = make(4)
    const longest = lease(2 ** 53 - 1, "ü".repeat(64))
    writer.take(lease(1))
    const gone = writer.take(lease(2))
    writer.take(longest)
    writer.leave(gone.slot, gone.generation)
    assert.deepStrictEqual(reader.held().map((held) => held.lease), [lease(1), longest])
    assert.deepStrictEqual(reader.held().map((held) => held.lease), [lease(1), longest])
  })

  it("what the worker says of itself reaches the reader whole", () => {
    const { slots } = make(1)
    const read = () => Slots.readStanding(Slots.view(slots.memory))
    assert.deepStrictEqual(read(), { appliedSeq: 0, isQuiet: false, isResigned: false, isDraining: false })
    for (const flags of [[true, false, false], [false, true, false], [false, false, true]] as const) {
      const [isQuiet, isResigned, isDraining] = flags
      const standing = { appliedSeq: 2 ** 53 - 1, isQuiet, isResigned, isDraining }
      Slots.writeStanding(slots, standing)
      assert.deepStrictEqual(read(), standing)
    }
  })

  it("an accepted renewal is seen by the writer, and time is never taken away", () => {
    const { reader, writer } = make(1)
    const { generation, slot } = writer.take(lease(1))
    const [held] = reader.held()
    if (held === undefined) return assert.fail("nothing held")
    assert.strictEqual(writer.validUntil(slot, generation), 0)
    reader.accept(held, 5000.9)
    reader.accept(held, 4000)
    assert.strictEqual(writer.validUntil(slot, generation), 5000)
  })

  it("a renewal that comes late never falls upon the next lease in the slot", () => {
    const { reader, writer } = make(1)
    const first = writer.take(lease(1))
    const [held] = reader.held()
    if (held === undefined) return assert.fail("nothing held")
    writer.leave(first.slot, first.generation)
    const second = writer.take(lease(2))
    assert.strictEqual(second.slot, first.slot)
    reader.accept(held, 5000)
    assert.strictEqual(writer.validUntil(second.slot, second.generation), 0)
    assert.strictEqual(writer.validUntil(first.slot, first.generation), 0)
    assert.deepStrictEqual([first, second].map((one) => writer.isCurrent(one.slot, one.generation)), [false, true])
  })

  it("a slot is left once, however often it is told to", () => {
    const { writer } = make(1)
    const first = writer.take(lease(1))
    writer.leave(first.slot, first.generation)
    writer.leave(first.slot, first.generation)
    const second = writer.take(lease(2))
    writer.leave(first.slot, first.generation)
    assert.isTrue(writer.isCurrent(second.slot, second.generation))
    assert.throws(() => writer.take(lease(3)), /more than 1 leases/)
  })

  it("slots are used again and again, through every generation", () => {
    const { reader, slots, writer } = make(1)
    slots.words[0] = BigInt(2 ** 23 - 4) << 40n
    for (let n = 0; n < 5; n++) {
      const { generation, slot } = writer.take(lease(n))
      assert.deepStrictEqual(reader.held().map((held) => held.lease), [lease(n)])
      writer.leave(slot, generation)
    }
    assert.deepStrictEqual(reader.held(), [])
  })

  it("a slot whose generations have gone round is no longer what it was", () => {
    const { reader, slots, writer } = make(1)
    const first = writer.take(lease(1))
    reader.held()
    assert.isTrue(writer.firstLoss(first.slot, first.generation))
    assert.isFalse(writer.firstLoss(first.slot, first.generation))
    writer.leave(first.slot, first.generation)
    reader.held()
    slots.words[0] = 0n
    const second = writer.take(lease(2))
    assert.deepStrictEqual(second, first)
    assert.deepStrictEqual(reader.held().map((held) => held.lease), [lease(2)])
    assert.isTrue(writer.firstLoss(second.slot, second.generation))
  })

  it("half a million jobs in one slot between two beats are not mistaken for one another", () => {
    const { reader, writer } = make(1)
    const first = writer.take(lease(1))
    reader.held()
    writer.leave(first.slot, first.generation)
    for (let n = 2; n <= 2 ** 18; n++) {
      const { generation, slot } = writer.take(lease(n))
      writer.leave(slot, generation)
    }
    writer.take(lease(7))
    assert.deepStrictEqual(reader.held().map((held) => held.lease), [lease(7)])
  })
})
