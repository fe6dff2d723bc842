/**
 * The process that runs a worker, where it is one of the program's own: `launch` provides it to the layers it runs, so
 * that the first signal reaches every worker at once, and a worker that has ended ends the process.
 */
import * as Context from "effect/Context"

export interface LaunchedProcess {
  /** `drain` is called when the process is told to end, before any scope closes. */
  readonly join: (drain: () => void) => void
  /** To be called by a worker that was told to end and has: the process ends with exit code 0. */
  readonly end: () => void
}

/** Undefined in a program that runs its layers by itself. */
export const LaunchedProcess: Context.Reference<LaunchedProcess | undefined> = Context.Reference<
  LaunchedProcess | undefined
>("@headgate/worker/LaunchedProcess", { defaultValue: () => undefined })
