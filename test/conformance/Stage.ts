/**
 * What a store under test offers beside its contracts: it can be made empty, and its clock obeys. A store is built once
 * for each area of the corpus.
 */
import type { Checkpoints } from "@headgate/core/Checkpoints"
import type { Control } from "@headgate/core/Control"
import type { Duties } from "@headgate/core/Duties"
import type { Explain } from "@headgate/core/Explain"
import type { Gate } from "@headgate/core/Gate"
import type { Inspect } from "@headgate/core/Inspect"
import type { Leases } from "@headgate/core/Leases"
import type { Pauses } from "@headgate/core/Pauses"
import type { Policies } from "@headgate/core/Policies"
import type { Producer } from "@headgate/core/Producer"
import type { Quarantine } from "@headgate/core/Quarantine"
import { Context, type Effect } from "effect"

export class Stage extends Context.Service<Stage, {
  /** Leaves the store as it was when it was new, its clock stopped, and answers the epoch milliseconds it shows. */
  readonly clear: Effect.Effect<number>
  readonly advance: (ms: number) => Effect.Effect<void>
  /** A sign of life of a worker, as its heartbeat gives it. */
  readonly seen: (worker: Seen) => Effect.Effect<void>
}>()("headgate/conformance/Stage") {}

export interface Seen {
  readonly worker: string
  readonly leaseMs: number
  readonly queues: ReadonlyArray<string>
  /** With the highest versions it knows. */
  readonly kinds: Readonly<Record<string, number>>
}

/** The contracts a scenario speaks to. */
export type Contracts =
  | Producer
  | Gate
  | Leases
  | Checkpoints
  | Duties
  | Control
  | Policies
  | Pauses
  | Quarantine
  | Explain
  | Inspect

export type StoreUnderTest = Contracts | Stage
