/**
 * What a store under test offers beside its contracts: it can be made empty, and its clock obeys. A store is built once
 * for each area of the corpus.
 */
import type { Checkpoints } from "@headgate/core/Checkpoints"
import type { Control } from "@headgate/core/Control"
import type { Duties } from "@headgate/core/Duties"
import type { Gate } from "@headgate/core/Gate"
import type { Inspect } from "@headgate/core/Inspect"
import type { Leases } from "@headgate/core/Leases"
import type { Producer } from "@headgate/core/Producer"
import { Context, type Effect } from "effect"

export class Stage extends Context.Service<Stage, {
  /** Leaves the store as it was when it was new, its clock stopped, and answers the epoch milliseconds it shows. */
  readonly clear: Effect.Effect<number>
  readonly advance: (ms: number) => Effect.Effect<void>
}>()("headgate/conformance/Stage") {}

/** The contracts a scenario speaks to. */
export type Contracts = Producer | Gate | Leases | Checkpoints | Duties | Control | Inspect

export type StoreUnderTest = Contracts | Stage
