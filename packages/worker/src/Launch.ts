/**
 * Runs a program's layer as a process: until a signal, then a drain, then the end. SIGTERM and SIGINT drain and end with
 * exit code 0; a second one ends the process at once. A layer that fails ends it with 1, its cause logged.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"

/** To be called once, as the last thing a program's main module does. */
export const launch = <A, E>(layer: Layer.Layer<A, E>): void => {
  let signalledAt: number | undefined
  const fiber = Effect.runFork(
    Layer.launch(Layer.tapCause(layer, (cause) => isInterruption(cause) ? Effect.void : Effect.logError(cause)))
  )
  const onSignal = (signal: keyof typeof SIGNALS): void => {
    const now = performance.now()
    if (signalledAt === undefined) {
      signalledAt = now
      fiber.interruptUnsafe()
    } else if (now - signalledAt > SAME_SIGNAL_MS) process.exit(128 + SIGNALS[signal])
  }
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.on(signal, onSignal)
  fiber.addObserver((exit) => {
    // Handlers that did not stop, and timers of the application's, must not keep the process.
    process.exit(Exit.isSuccess(exit) || isInterruption(exit.cause) ? 0 : 1)
  })
}

const isInterruption = (cause: Cause.Cause<unknown>): boolean => Cause.hasInterruptsOnly(cause)

const SIGNALS = { SIGINT: 2, SIGTERM: 15 } as const

/** A terminal's Ctrl-C reaches a process under a package manager twice. */
const SAME_SIGNAL_MS = 250
