/** The jobs whose cost is measured: without policies, or under some. */
import { ConcurrencyLimit } from "@headgate/core/ConcurrencyLimit"
import type { Producer } from "@headgate/core/Producer"
import { RateClass } from "@headgate/core/RateClass"
import { Task } from "@headgate/core/Task"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { randomBytes } from "node:crypto"

interface Payload {
  readonly n: number
  readonly text: string
}

export interface GrowthTask {
  readonly kind: string
  readonly payloadOf: (n: number) => Payload
  readonly enqueueAll: (payloads: Iterable<Payload>) => Effect.Effect<ReadonlyArray<string>, unknown, Producer>
}

export interface Shape {
  /** Of the payload, about; base64 of random bytes, which compresses by a quarter. */
  readonly bytes?: number
  /** The n-th job is in partition n modulo this. */
  readonly partitions?: number
  readonly isRated?: boolean
  /** A limit that never holds anybody, with a slot for each of so many keys. */
  readonly limitKeys?: number
  readonly isKept?: boolean
}

const payload = Schema.Struct({ n: Schema.Int, text: Schema.String })
const smallest = 100

export const partitionOf = (n: number, partitions: number): string => `p${String(n % partitions).padStart(5, "0")}`

export const plentiful = RateClass.make("plentiful", { limit: 1_000_000_000, window: 1000 })
export const roomy = ConcurrencyLimit.make("roomy", { scope: "key", max: 1_000_000 })

export const taskOf = (shape: Shape): GrowthTask => {
  const { bytes = smallest, isKept = false, isRated = false, limitKeys = 0, partitions = 0 } = shape
  const task = Task.make("growth", {
    payload,
    retention: isKept ? "1 day" : 0,
    partitionKey: partitions === 0 ? undefined : ({ n }) => partitionOf(n, partitions),
    rates: isRated ? [plentiful] : undefined,
    limits: limitKeys === 0 ? undefined : [roomy.by(({ n }: Payload) => `k${n % limitKeys}`)]
  })
  const length = Math.max(0, bytes - 30)
  return {
    kind: task.kind,
    payloadOf: (n) => ({ n, text: randomBytes(Math.ceil(length * 3 / 4)).toString("base64").slice(0, length) }),
    enqueueAll: (payloads) => task.enqueueAll(payloads)
  }
}
