/**
 * Runs a program's layer as a process: until a signal, or until one of its workers was told to end, then a drain, then
 * the end. SIGTERM and SIGINT drain and end with exit code 0; a second one ends the process at once. A layer that fails
 * ends it with 1, its cause logged.
 *
 * A promise that a handler left behind and that is rejected is logged: it does not end the process, and the jobs beside it.
 *
 * The shell of an npm script dies of a SIGTERM that npm passes on to it, and keeps it to itself: its end is a signal too.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import { LaunchedProcess } from "./LaunchedProcess.ts"

/** To be called once, as the last thing a program's main module does. */
export const launch = <A, E>(layer: Layer.Layer<A, E>): void => {
  const drains = new Set<() => void>()
  let signalledAt: number | undefined
  const end = (): void => {
    for (const drain of drains) drain()
    fiber.interruptUnsafe()
  }
  const begin = (): void => {
    if (signalledAt !== undefined) return
    signalledAt = performance.now()
    end()
  }
  const onSignal = (signal: keyof typeof SIGNALS): void => {
    if (signalledAt === undefined) begin()
    else if (performance.now() - signalledAt > SAME_SIGNAL_MS) process.exit(128 + SIGNALS[signal])
  }
  const launched = Layer.succeed(LaunchedProcess, { join: (drain) => void drains.add(drain), end })
  const program = Layer.tapCause(layer, (cause) => isInterruption(cause) ? Effect.void : Effect.logError(cause))
  const fiber = Effect.runFork(Layer.launch(Layer.provide(program, launched)))
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.on(signal, onSignal)
  process.on("unhandledRejection", logRejection)
  if (process.env["npm_lifecycle_event"] !== undefined) whenOrphaned(begin)
  // Handlers that did not stop, and timers of the application's, must not keep the process.
  fiber.addObserver((exit) => exitWhenWritten(Exit.isSuccess(exit) || isInterruption(exit.cause) ? 0 : 1))
}

const logRejection = (reason: unknown): void =>
  void Effect.runFork(Effect.logError("A promise that nobody waits for was rejected", Cause.die(reason)))

const whenOrphaned = (then: () => void): void => {
  const { ppid } = process
  const timer = setInterval(() => {
    if (process.ppid === ppid) return
    clearInterval(timer)
    then()
  }, LOOK_MS)
  timer.unref()
}

const isInterruption = (cause: Cause.Cause<unknown>): boolean => Cause.hasInterruptsOnly(cause)

/** Ends the process once its last lines have left it, or when nobody has read them for a while. */
const exitWhenWritten = (code: number): void => {
  const unwritten = [process.stdout, process.stderr].filter(({ writableLength }) => writableLength > 0)
  const exit = () => process.exit(code)
  if (unwritten.length === 0) return exit()
  setTimeout(exit, UNREAD_MS)
  let left = unwritten.length
  for (const stream of unwritten) stream.once("error", () => {}).write("", () => void (--left === 0 && exit()))
}

const SIGNALS = { SIGINT: 2, SIGTERM: 15 } as const

/** A terminal's Ctrl-C reaches a process under a package manager twice: from the terminal, and passed on. */
const SAME_SIGNAL_MS = 500
const UNREAD_MS = 2000
const LOOK_MS = 500
