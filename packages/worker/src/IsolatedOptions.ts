/** What an isolated task can be told, checked once when its layer is built. */
import { refuseInteger, wholeMillis, zeroOrMillis } from "@headgate/core/Millis"
import { Invalid } from "@headgate/core/Refusals"
import type * as Duration from "effect/Duration"
import * as Result from "effect/Result"

export interface IsolatedOptions {
  /** The program, and nothing of the payload in it: an absolute path (the environment is empty, so is its `PATH`). */
  readonly command: string
  readonly args?: ReadonlyArray<string> | undefined
  /** All of the child's environment. Default: empty. */
  readonly env?: Readonly<Record<string, string>> | undefined
  /** Default: the worker's own. */
  readonly cwd?: string | undefined
  /**
   * Bytes of private writable memory of the child: heaps, buffers, the stacks of its threads. Linux only. Files mapped into
   * memory and shared memory are not counted, and each process that the child starts has a limit of its own. A child that
   * serves takes about 120 MB of it before its first job. Default: none.
   */
  readonly memoryLimit?: number | undefined
  /** Bytes kept of the end of stdout, and of stderr, for the error of a crash. Default 8,192, at most 16,000. */
  readonly maxOutput?: number | undefined
  /**
   * Also writes what the child prints to the worker's own stdout and stderr. What its handler logs through Effect goes to
   * the worker's loggers in any case. Default false.
   */
  readonly echo?: boolean | undefined
  /**
   * How many children are kept, ready for the next job, from the worker's start on. Each takes one job at a time and is
   * replaced after a crash and after `jobs` jobs (1,000). It bounds nothing: jobs beyond it get a child for their attempt,
   * and the worker's `concurrency` is what bounds them all. Default: none are kept.
   */
  readonly pool?: number | { readonly size: number; readonly jobs?: number | undefined } | undefined
  /** How long the child may clean up after it was told to stop, before it is killed. Default 500 ms; keep it below 2 s. */
  readonly killAfter?: Duration.Input | undefined
  /** How long the child may take from its start until it serves. Default 30 s. */
  readonly startTimeout?: Duration.Input | undefined
}

export interface IsolatedSettings {
  readonly command: string
  readonly args: ReadonlyArray<string>
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string | undefined
  readonly memoryLimit: number | undefined
  readonly maxOutput: number
  readonly echo: boolean
  readonly pool: { readonly size: number; readonly jobs: number }
  readonly killAfterMs: number
  readonly startTimeoutMs: number
}

export const settingsOf = (options: IsolatedOptions): Result.Result<IsolatedSettings, Invalid> =>
  Result.gen(function*() {
    const { memoryLimit, pool } = options
    if (options.command === "") yield* refuse("command", "command names no program")
    if (process.platform === "win32") {
      yield* refuse("command", "isolated execution needs process groups: Linux or macOS")
    }
    if (memoryLimit !== undefined) {
      yield* whole("memoryLimit", memoryLimit, MIN_MEMORY_BYTES, Number.MAX_SAFE_INTEGER)
      if (process.platform !== "linux") yield* refuse("memoryLimit", "memoryLimit is kept by Linux alone")
    }
    const { jobs = DEFAULT_JOBS, size = 0 } = typeof pool === "number" ? { size: pool } : pool ?? {}
    return {
      command: options.command,
      args: options.args ?? [],
      env: options.env ?? {},
      cwd: options.cwd,
      memoryLimit,
      maxOutput: yield* whole("maxOutput", options.maxOutput ?? 8192, 0, MAX_OUTPUT_TAIL_BYTES),
      echo: options.echo ?? false,
      pool: { size: yield* whole("pool", size, 0, MAX_POOL), jobs: yield* whole("pool.jobs", jobs, 1, MAX_JOBS) },
      killAfterMs: yield* zeroOrMillis("killAfter", options.killAfter ?? "500 millis"),
      startTimeoutMs: yield* wholeMillis("startTimeout", options.startTimeout ?? "30 seconds")
    }
  })

const whole = (field: string, value: number, min: number, max: number): Result.Result<number, Invalid> => {
  const refusal = refuseInteger(field, value, min, max)
  return refusal === undefined ? Result.succeed(value) : Result.fail(refusal)
}

const refuse = (field: string, message: string): Result.Result<never, Invalid> =>
  Result.fail(new Invalid({ field, message }))

const MIN_MEMORY_BYTES = 1_048_576
const DEFAULT_JOBS = 1000
const MAX_JOBS = 1_000_000_000
const MAX_POOL = 1000
/** What one part of a stored error can hold. */
const MAX_OUTPUT_TAIL_BYTES = 16_000
