/** What a worker can be told. Durations are checked once, here, and are whole milliseconds from then on. */
import { WorkerId } from "@headgate/core/Ids"
import { refuseName } from "@headgate/core/Kind"
import { refuseInteger, wholeMillis, zeroOrMillis } from "@headgate/core/Millis"
import { Invalid } from "@headgate/core/Refusals"
import type { StuckEvidence } from "@headgate/core/Stuck"
import type { AnyTask, TaskGroup } from "@headgate/core/TaskGroup"
import { utf8Length } from "@headgate/core/Text"
import * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { hostname } from "node:os"
import { type AttemptLogOptions, type AttemptLogSettings, logSettingsOf } from "./AttemptLog.ts"
import { residentBytes } from "./MemoryWatch.ts"

export interface WorkerOptions<Tasks extends AnyTask = never> {
  /** Serve these tasks only, and let the compiler ask for their handlers. Default: every handler the layer is given. */
  readonly tasks?: ReadonlyArray<Tasks> | TaskGroup<Tasks> | undefined
  /** Default: the queues the tasks name. */
  readonly queues?: ReadonlyArray<string> | undefined
  /** Handlers at a time, 1 to 10,000. Default 100. Short jobs drain faster with more: each call of the store serves more of them. */
  readonly concurrency?: number | undefined
  /**
   * Jobs claimed beyond `concurrency`, to have the next ones at hand. By default the worker chooses by the pace of its
   * handlers: none for long jobs, up to 1,000 for short ones. Their leases are kept like those of running jobs, a drain
   * hands them back, and so does a wait of half a second (with a number of your own: of one lease). 0 for none.
   */
  readonly prefetch?: number | undefined
  /** Default 30 s, at least 500 ms. A dead worker's jobs are taken over one lease after its last sign of life. */
  readonly lease?: Duration.Input | undefined
  /** How long handlers may block the event loop before the worker's leases are let go. Default ten leases; zero: at expiry. */
  readonly maxBlocked?: Duration.Input | undefined
  /** Longest time between two looks at an empty queue, when no announcement comes. Default 1 s, at least 10 ms. */
  readonly pollInterval?: Duration.Input | undefined
  /** How long a drain lets handlers finish before it interrupts them. Default 25 s; zero interrupts at once. */
  readonly shutdownGrace?: Duration.Input | undefined
  /** A handler deaf to its interruption for so long is declared a zombie: its attempt is settled without it. Default 10 s. */
  readonly handlerGrace?: Duration.Input | undefined
  /**
   * Bytes of the process's resident set. Above it for five seconds, the worker takes no more work, lets its handlers
   * finish and ends, for its supervisor to start a new one: see `Worker.ended`. Must be more than the process takes at
   * its start. Default: none.
   */
  readonly memoryLimit?: number | undefined
  /**
   * What an attempt that does not succeed keeps of the lines its handler logged through Effect. Default: the last 100 of
   * level `Info` and above, 16 kB in all. False keeps none.
   */
  readonly attemptLogs?: AttemptLogOptions | false | undefined
  /**
   * Called with what is known of an attempt that made no progress for its task's `stallTimeout`, or that was told to stop
   * and has not within `handlerGrace`. It has `handlerGrace` itself, and is interrupted then; a failure is logged and
   * changes nothing. Default: nothing but a warning and the event `JobStuck`.
   */
  readonly onStuck?: ((evidence: StuckEvidence) => Effect.Effect<void, unknown>) | undefined
  /** Take part in the background work that keeps the queue healthy. Default true; at least one worker must. */
  readonly duties?: boolean | undefined
  /** Unique per worker and life. Default: name, process id and a random part. */
  readonly id?: string | undefined
  /** Shown to operators as the first part of the default id. Default: the host's name. */
  readonly name?: string | undefined
}

export interface WorkerSettings {
  readonly id: WorkerId
  readonly queues: ReadonlyArray<string> | undefined
  readonly concurrency: number
  /** Undefined: as many as the handlers' pace asks for. */
  readonly prefetch: number | undefined
  readonly leaseMs: number
  readonly maxBlockedMs: number
  readonly pollMs: number
  readonly shutdownGraceMs: number
  readonly handlerGraceMs: number
  readonly onStuck: WorkerOptions["onStuck"]
  readonly memoryLimit: number | undefined
  readonly attemptLogs: AttemptLogSettings | undefined
  readonly hasDuties: boolean
}

const MAX_CONCURRENCY = 10_000
const MIN_LEASE_MS = 500

export const settingsOf = <Tasks extends AnyTask>(
  options: WorkerOptions<Tasks>
): Result.Result<WorkerSettings, Invalid> =>
  Result.gen(function*() {
    const concurrency = yield* whole("concurrency", options.concurrency ?? 100, 1)
    const prefetch = options.prefetch === undefined ? undefined : yield* whole("prefetch", options.prefetch, 0)
    const leaseMs = yield* wholeMillis("lease", options.lease ?? "30 seconds", MIN_LEASE_MS)
    const id = options.id ?? defaultId(options.name)
    if (!/^[\x21-\x7e]{1,128}$/.test(id)) {
      return yield* Result.fail(
        new Invalid({
          field: "id",
          message: "a worker's id is 1 to 128 visible ASCII characters",
          limit: 128,
          actual: utf8Length(id)
        })
      )
    }
    return {
      id: WorkerId.make(id),
      queues: yield* names(options.queues),
      concurrency,
      prefetch,
      leaseMs,
      maxBlockedMs: options.maxBlocked === undefined
        ? 10 * leaseMs
        : yield* zeroOrMillis("maxBlocked", options.maxBlocked),
      pollMs: yield* wholeMillis("pollInterval", options.pollInterval ?? "1 second", 10),
      shutdownGraceMs: yield* zeroOrMillis("shutdownGrace", options.shutdownGrace ?? "25 seconds"),
      handlerGraceMs: yield* wholeMillis("handlerGrace", options.handlerGrace ?? "10 seconds"),
      onStuck: options.onStuck,
      memoryLimit: options.memoryLimit === undefined ? undefined : yield* bytes("memoryLimit", options.memoryLimit),
      attemptLogs: yield* logSettingsOf(options.attemptLogs),
      hasDuties: options.duties ?? true
    }
  })

const whole = (field: string, value: number, min: number): Result.Result<number, Invalid> => {
  const refusal = refuseInteger(field, value, min, MAX_CONCURRENCY)
  return refusal === undefined ? Result.succeed(value) : Result.fail(refusal)
}

/** A process that takes more from the start would end before its first job, again and again. */
const bytes = (field: string, value: number): Result.Result<number, Invalid> => {
  const refusal = refuseInteger(field, value, 1, Number.MAX_SAFE_INTEGER)
  if (refusal !== undefined) return Result.fail(refusal)
  const taken = residentBytes()
  if (value > taken) return Result.succeed(value)
  const message = `${field} is less than the ${taken} bytes that the process takes before its first job`
  return Result.fail(new Invalid({ field, message, limit: taken, actual: value }))
}

const names = (
  queues: ReadonlyArray<string> | undefined
): Result.Result<ReadonlyArray<string> | undefined, Invalid> => {
  if (queues === undefined) return Result.succeed(undefined)
  if (queues.length === 0) {
    return Result.fail(new Invalid({ field: "queues", message: "queues names no queue", limit: 1, actual: 0 }))
  }
  for (const queue of queues) {
    const refusal = refuseName("queues", queue)
    if (refusal !== undefined) return Result.fail(refusal)
  }
  return Result.succeed([...new Set(queues)])
}

const defaultId = (name: string | undefined): string => {
  const random = crypto.randomUUID().slice(0, 8)
  const first = (name ?? hostname()).replaceAll(/[^\x21-\x7e]/g, "_").slice(0, 100)
  return `${first}-${process.pid}-${random}`
}
