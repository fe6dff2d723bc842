/** What the steps of all attempts of one worker share. */
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Leases } from "@headgate/core/Leases"
import { OutputStore, ProgressStore } from "@headgate/core/Reports"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Checkpointer from "./Checkpointer.ts"

export interface StepSettings {
  /**
   * How long a step's start may rest on the boundary before it, whose write verified the lease and marked this step.
   * 0 verifies at each start, for one write more a step. Default 50 ms.
   */
  readonly guessMs: number
}

export const StepSettings = Context.Reference<StepSettings>("@headgate/worker/StepSettings", {
  defaultValue: () => ({ guessMs: 50 })
})

export interface StepStores {
  readonly settings: StepSettings
  readonly leases: Leases["Service"]
  readonly checkpoints: Checkpoints["Service"]
  readonly checkpointer: Checkpointer.Checkpointer
  readonly progress: ProgressStore["Service"]
  readonly output: OutputStore["Service"]
}

/** Once per worker; its checkpoint writes end with the scope. */
export const make = Effect.gen(function*() {
  return {
    settings: yield* StepSettings,
    leases: yield* Leases,
    checkpoints: yield* Checkpoints,
    checkpointer: yield* Checkpointer.make,
    progress: yield* ProgressStore,
    output: yield* OutputStore
  } satisfies StepStores
})
