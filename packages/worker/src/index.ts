/** Runs the jobs of a headgate store: `Worker.layer` with the handlers' layers, and `launch` for a process of its own. */
export type { Attempt, Ending } from "./Attempt.ts"
export * as Isolated from "./Isolated.ts"
export { launch } from "./Launch.ts"
export * as Metrics from "./Metrics.ts"
export { ResultTooLarge } from "./Normalise.ts"
export { StepSettings } from "./StepStores.ts"
export * from "./Worker.ts"
export type { WorkerOptions } from "./WorkerOptions.ts"
