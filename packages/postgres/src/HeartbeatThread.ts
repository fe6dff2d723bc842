/** Starts the heartbeat thread, starts it again when it dies, and stops it with the scope. */
import type * as PgClient from "@effect/sql-pg/PgClient"
import type { HeartbeatOptions } from "@headgate/core/Heartbeat"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Redacted from "effect/Redacted"
import { Worker } from "node:worker_threads"
import type { Report } from "./HeartbeatLoop.ts"
import type { PostgresSettings } from "./Settings.ts"

/** What the thread is given: plain data and shared memory. */
export interface ThreadData {
  readonly config:
    & Omit<
      PgClient.PgClientConfig,
      "url" | "password" | "stream" | "types" | "transformResultNames" | "transformQueryNames"
    >
    & { readonly url?: string | undefined; readonly password?: string | undefined }
  readonly settings: PostgresSettings
  readonly options: HeartbeatOptions
  readonly memory: SharedArrayBuffer
}

/**
 * The client's configuration as plain data; undefined when it holds what cannot leave the event loop: a password that is
 * computed, a socket of its own, functions among the TLS options.
 */
export const portableConfig = (config: PgClient.PgClientConfig): ThreadData["config"] | undefined => {
  const { connectTimeout, keepAlive, password, spanAttributes: _spanAttributes, stream, url, ...rest } = config
  if (stream !== undefined || Effect.isEffect(password)) return undefined
  try {
    return structuredClone({
      ...rest,
      ...(url === undefined ? {} : { url: Redacted.value(url) }),
      ...(password === undefined ? {} : { password: Redacted.value(password) }),
      ...(connectTimeout === undefined ? {} : { connectTimeout: millis(connectTimeout) }),
      ...(keepAlive === undefined ? {} : { keepAlive: millis(keepAlive) })
    })
  } catch {
    return undefined
  }
}

const millis = (input: Duration.Input): number => Duration.toMillis(Duration.fromInputUnsafe(input))

/** A thread that takes longer to its first beat is stood in for: on a busy machine it may outlast a short lease. */
export const longestStartMillis = 3000

/** Deaths in a row, each before a beat was accepted or failed, after which the thread is given up. */
const mostDeaths = 3
const farewellMillis = 1000

/**
 * Runs the thread; answers the last death when it will not stay alive. From a death, and from `patienceMillis` after the
 * start, to the thread's first beat `meanwhile` renews. Interruption stops it.
 */
export const run = Effect.fnUntraced(
  function*(
    data: ThreadData,
    onReport: (report: Report) => void,
    meanwhile: Effect.Effect<never>,
    entry: URL = thread,
    patienceMillis: number = longestStartMillis
  ) {
    let deaths = 0
    let standIn = Effect.delay(meanwhile, patienceMillis)
    while (true) {
      const isBeating = yield* Deferred.make<void>()
      const life = liveOnce(data, entry, (report) => {
        Deferred.doneUnsafe(isBeating, Exit.void)
        onReport(report)
      })
      const untilBeating = Effect.andThen(Effect.raceFirst(standIn, Deferred.await(isBeating)), Effect.never)
      const cause = yield* Effect.raceFirst(life, untilBeating)
      deaths = Deferred.isDoneUnsafe(isBeating) ? 0 : deaths + 1
      if (deaths >= mostDeaths) return cause
      yield* Effect.logWarning("The heartbeat thread died and is started again", cause)
      yield* Effect.sleep(100)
      standIn = meanwhile
    }
  }
)

/** Answers why the thread ended. */
const liveOnce = (data: ThreadData, entry: URL, onReport: (report: Report) => void): Effect.Effect<Error> =>
  Effect.callback<Error>((resume) => {
    let cause = new Error("the heartbeat thread ended")
    const worker = new Worker(entry, { name: "headgate heartbeat", workerData: data, ...execArgv })
    worker.on("message", onReport)
    worker.on("error", (error) => void (cause = error instanceof Error ? error : new Error(String(error))))
    worker.on("exit", () => resume(Effect.succeed(cause)))
    return stop(worker)
  })

const stop = (worker: Worker): Effect.Effect<void> =>
  Effect.callback<void>((resume) => {
    const timer = setTimeout(() => void worker.terminate(), farewellMillis)
    worker.removeAllListeners("exit")
    worker.once("exit", () => {
      clearTimeout(timer)
      resume(Effect.void)
    })
    worker.postMessage("stop")
  })

const isSource = import.meta.url.endsWith(".ts")
const thread = new URL(isSource ? "./heartbeat-thread.ts" : "./heartbeat-thread.js", import.meta.url)
/** From its sources the package finds its siblings' sources; a built one inherits the program's own flags. */
const execArgv = isSource
  ? { execArgv: ["--conditions=headgate-source", "--disable-warning=ExperimentalWarning"] }
  : {}
