/** The corpus as tests, one a scenario, for any store: give it the layer of an empty one. */
import { layer } from "@effect/vitest"
import type { Layer } from "effect"
import { areas, scenarios } from "./Corpus.ts"
import * as Runner from "./Runner.ts"
import type { StoreUnderTest } from "./Stage.ts"

export const conformance = <E>(store: Layer.Layer<StoreUnderTest, E>): void => {
  for (const area of areas) {
    layer(store, { excludeTestServices: true })(area, (it) => {
      for (const file of scenarios.filter((file) => file.area === area)) {
        it.effect(file.scenario.promise, () => Runner.run(file))
      }
    })
  }
}
