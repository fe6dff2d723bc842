/** The corpus as tests, one a scenario, for any store: give it the layer of a store that is empty each time it is built. */
import { describe, it } from "@effect/vitest"
import { Effect, type Layer } from "effect"
import { areas, scenarios } from "./Corpus.ts"
import * as Runner from "./Runner.ts"
import type { StoreUnderTest } from "./Stage.ts"

export const conformance = <E>(store: Layer.Layer<StoreUnderTest, E>): void => {
  for (const area of areas) {
    describe(area, () => {
      for (const file of scenarios.filter((file) => file.area === area)) {
        it.live(file.scenario.promise, () => Effect.provide(Runner.run(file), store))
      }
    })
  }
}
