/**
 * The child's side of an isolated task: the main module of its program calls `serve`, which runs one job at a time until
 * the worker closes the channel.
 */
import { logLine } from "@headgate/core/AttemptLog"
import type { CodecError } from "@headgate/core/Codec"
import { storedError } from "@headgate/core/ErrorText"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Job, Progress } from "@headgate/core/Job"
import type { InterruptionReason } from "@headgate/core/Leases"
import { type ProgressUpdate, validateProgress } from "@headgate/core/Progress"
import { Invalid } from "@headgate/core/Refusals"
import type { Task } from "@headgate/core/Task"
import type { TaskDefinition } from "@headgate/core/TaskDefinition"
import type * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type { LogLevel } from "effect/LogLevel"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { fstatSync } from "node:fs"
import { Socket } from "node:net"
import { addLogger } from "./AttemptLogger.ts"
import {
  CHANNEL_FD,
  Frame,
  frame,
  FrameReader,
  jsonFrame,
  LIFELINE_FD,
  MAX_FRAME_BYTES,
  PROTOCOL,
  readJson,
  readRun
} from "./IsolatedFrames.ts"
import { ServedJob } from "./IsolatedJob.ts"
import { killGroup, watchLifeline } from "./IsolatedLifeline.ts"
import { notInChild, refusing } from "./IsolatedLimits.ts"

/**
 * What the child gives to a handler, beside its layer. Steps, cursors and output write to the store under the attempt's
 * lease, which stays with the worker: they are not among these. Asked for all the same, as `Job.completeWith` can be, they
 * are refused (`Invalid`), and the job is not tried again.
 */
export type IsolatedServices = Job | Progress | Scope.Scope

/** Runs the handler for each job that the worker sends. To be called once, as the last thing a main module does. */
export const serve: {
  <Kind extends string, P, S, E, Steps extends string>(
    task: Task<Kind, P, S, E, Steps>,
    handler: (payload: P) => Effect.Effect<S, E, IsolatedServices>
  ): void
  /** The layer is built once, before the first job, and closed when the channel is. */
  <Kind extends string, P, S, E, Steps extends string, R, E2>(
    task: Task<Kind, P, S, E, Steps>,
    handler: (payload: P) => Effect.Effect<S, E, R | IsolatedServices>,
    layer: Layer.Layer<R, E2>
  ): void
} = <P, S, E, R, E2>(
  { definition }: { readonly definition: TaskDefinition },
  handler: (payload: P) => Effect.Effect<S, E, R | IsolatedServices>,
  // SAFETY: left out only where the handler asks for nothing of it.
  layer: Layer.Layer<R, E2> = Layer.empty as Layer.Layer<never> as Layer.Layer<R>
): void => {
  const channel = openChannel()
  watchLifeline(LIFELINE_FD)
  // A service manager signals the whole control group at once. The worker drains; its children end with the channel.
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) process.on(signal, () => {})
  const hungUp = new Promise<void>((resolve) => channel.once("close", () => resolve()))
  // What the handler started ends with it: its worker, which would see to that, may be dead.
  channel.once("close", () => process.once("exit", killGroup))
  const program = Effect.scoped(Effect.gen(function*() {
    const context = yield* Layer.build(layer)
    // SAFETY: `definition` decodes payloads of the handler's own task.
    const server = new Server(definition, handler as (payload: unknown) => Effect.Effect<S, E, R | IsolatedServices>, {
      context,
      channel
    })
    server.start()
    yield* Effect.promise(() => hungUp)
    yield* server.stop
  }))
  Effect.runFork(Effect.tapCause(program, (cause) => Effect.logError(cause))).addObserver((exit) =>
    process.exit(Exit.isSuccess(exit) ? 0 : 1)
  )
}

const openChannel = (): Socket => {
  if (![CHANNEL_FD, LIFELINE_FD].every(isSocket)) {
    console.error("this program serves the jobs of a headgate worker, which starts it")
    process.exit(64)
  }
  return new Socket({ fd: CHANNEL_FD, readable: true, writable: true }).on("error", () => {})
}

const isSocket = (fd: number): boolean => {
  try {
    return fstatSync(fd).isSocket()
  } catch {
    return false
  }
}

class Server<S, E, R> {
  private running: ServedJob | undefined = undefined
  private readonly definition: TaskDefinition
  private readonly handler: (payload: unknown) => Effect.Effect<S, E, R | IsolatedServices>
  private readonly context: Context.Context<R>
  private readonly channel: Socket

  constructor(
    definition: TaskDefinition,
    handler: (payload: unknown) => Effect.Effect<S, E, R | IsolatedServices>,
    { channel, context }: { readonly channel: Socket; readonly context: Context.Context<R> }
  ) {
    this.definition = definition
    this.handler = handler
    this.context = context
    this.channel = channel
  }

  start(): void {
    const reader = new FrameReader((kind, body) => this.onFrame(kind, body))
    this.channel.on("data", (chunk: Buffer) => reader.push(chunk))
    this.channel.write(jsonFrame(Frame.ready, { protocol: PROTOCOL, kind: this.definition.kind }))
  }

  /** The job that runs when the channel closes loses its worker, and with that its lease. */
  get stop(): Effect.Effect<void> {
    return Effect.suspend(() => this.running === undefined ? Effect.void : this.running.lose)
  }

  private onFrame(kind: number, body: Buffer): void {
    if (kind === Frame.run) this.run(body)
    if (kind === Frame.interrupt) {
      this.running?.interrupt(readJson<{ readonly reason?: InterruptionReason }>(body).reason)
    }
    if (kind === Frame.extended) this.running?.extended(readJson<{ readonly id: number }>(body).id)
  }

  private run(body: Buffer): void {
    const { head: { facts, logLevel, schemaVersion }, payload: bytes } = readRun(body)
    const payload = this.definition.decodePayload(bytes, schemaVersion)
    if (Result.isFailure(payload)) {
      return this.send(jsonFrame(Frame.defect, storedError(payload.failure)))
    }
    const job = new ServedJob(facts, (said) => this.send(said))
    this.running = job
    const scope = Scope.makeUnsafe()
    let answered: Exit.Exit<S, E> | undefined
    // What the handler answered stands; what the finalizers of its scope do changes nothing.
    const program = Effect.onExit(Effect.suspend(() => this.handler(payload.success)), (exit) => {
      answered = exit
      return Effect.andThen(job.joined(exit), Effect.exit(Scope.close(scope, exit)))
    })
    const services = Context.merge(this.logging(logLevel), refusing).pipe(
      Context.add(Job, job),
      Context.add(Progress, { report: (update: ProgressUpdate) => this.report(update) }),
      Context.add(Scope.Scope, scope)
    )
    const fiber = Effect.runForkWith(services)(program)
    job.attach(fiber)
    fiber.addObserver((exit) => {
      this.running = undefined
      this.send(answerOf(this.definition, job, answered ?? exit))
    })
  }

  private logging(level: LogLevel): Context.Context<R> {
    const startedAt = monotonicMs()
    return addLogger(this.context, level, (line) => {
      const afterMs = monotonicMs() - startedAt
      this.send(jsonFrame(Frame.log, logLine({ ...line, afterMs })))
    })
  }

  private report(update: ProgressUpdate) {
    return Effect.flatMap(
      Effect.fromResult(validateProgress(update)),
      (valid) => Effect.sync(() => this.send(jsonFrame(Frame.progress, valid)))
    )
  }

  private send(bytes: Buffer): void {
    this.channel.write(bytes)
  }
}

const answerOf = (definition: TaskDefinition, job: ServedJob, exit: Exit.Exit<unknown, unknown>): Buffer => {
  if (job.ending !== undefined) return jsonFrame(Frame.ending, job.ending)
  if (job.isInterrupted) return frame(Frame.interrupted)
  try {
    if (job.failure !== undefined) return ofCause(definition, job.failure)
    return Exit.isSuccess(exit)
      ? encoded(Frame.success, definition.success.encode(exit.value))
      : ofCause(definition, exit.cause)
  } catch (defect) {
    return jsonFrame(Frame.defect, storedError(defect))
  }
}

const ofCause = (definition: TaskDefinition, cause: Cause.Cause<unknown>): Buffer => {
  const failure = cause.reasons.find((reason) => reason._tag === "Fail")
  if (failure !== undefined) return ofFailure(definition, failure.error)
  const died = cause.reasons.find((reason) => reason._tag === "Die")
  if (died?.defect === notInChild) return refused(notInChild)
  return jsonFrame(Frame.defect, died === undefined ? SELF_INTERRUPTED : storedError(died.defect))
}

const ofFailure = (definition: TaskDefinition, error: unknown): Buffer => {
  const bytes = definition.error.encode(error)
  return Result.isFailure(bytes) && error instanceof Invalid
    ? refused(error)
    : encoded(Frame.failure, bytes)
}

const refused = ({ actual, field, limit, message }: Invalid): Buffer =>
  jsonFrame(Frame.refused, { field, message, limit, actual })

const encoded = (kind: typeof Frame.success | typeof Frame.failure, result: Result.Result<Uint8Array, CodecError>) => {
  if (Result.isFailure(result)) {
    const { message, path } = result.failure
    return jsonFrame(Frame.unencodable, { message, path })
  }
  const { length } = result.success
  if (length < MAX_FRAME_BYTES) return frame(kind, result.success)
  return jsonFrame(Frame.unencodable, { message: `the answer is ${length} bytes, far above any limit` })
}

const SELF_INTERRUPTED = {
  tag: "SelfInterrupted",
  message: "the handler interrupted itself",
  text: "SelfInterrupted: the handler interrupted itself, or waited for a fiber that was interrupted"
}
