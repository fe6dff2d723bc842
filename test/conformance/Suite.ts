/** The corpus as tests for any store: give them the layer of an empty one. */
import { layer } from "@effect/vitest"
import type { Layer } from "effect"
import { moves, standstills } from "./Cells.ts"
import { areas, type ScenarioFile, scenarios } from "./Corpus.ts"
import * as Runner from "./Runner.ts"
import type { StoreUnderTest } from "./Stage.ts"

/** One test a scenario, grouped by area. */
export const conformance = <E>(store: Layer.Layer<StoreUnderTest, E>): void => {
  for (const area of areas) run(store, area, scenarios.filter((file) => file.area === area))
}

/** One test a cell of the state machine, and one a state for all that is no cell. */
export const stateMachine = <E>(store: Layer.Layer<StoreUnderTest, E>): void => {
  run(store, "the store moves a job as the table says:", moves)
  run(store, "and not otherwise:", standstills)
}

const run = <E>(store: Layer.Layer<StoreUnderTest, E>, title: string, files: ReadonlyArray<ScenarioFile>): void =>
  layer(store, { excludeTestServices: true })(title, (it) => {
    for (const file of files) it.effect(file.scenario.promise, () => Runner.run(file))
  })
