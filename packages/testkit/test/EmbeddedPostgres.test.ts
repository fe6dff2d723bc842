import { PgClient } from "@effect/sql-pg"
import { assert, describe, it } from "@effect/vitest"
import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import { Effect, Exit, Redacted, Scope } from "effect"
import * as ChildProcess from "node:child_process"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import * as Readline from "node:readline"

const query = (url: string, statement: string) =>
  PgClient.PgClient.use((sql) => sql.unsafe<Record<string, unknown>>(statement)).pipe(
    Effect.provide(PgClient.layer({ url: Redacted.make(url), maxConnections: 1 }))
  )

/** Living processes whose command line names the directory: the guardian and the server's main process. */
const processesOf = (directory: string): ReadonlyArray<{ readonly pid: number; readonly command: string }> =>
  ChildProcess.execFileSync("ps", ["-eo", "pid=,stat=,args="], { encoding: "utf8" }).split("\n").flatMap((line) => {
    const [, pid, state, command] = /^\s*(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? []
    return command?.includes(directory) && !state?.startsWith("Z") ? [{ pid: Number(pid), command }] : []
  })

const eventually = Effect.fnUntraced(function*(condition: () => boolean) {
  const giveUpAt = performance.now() + 60_000
  while (!condition()) {
    if (performance.now() > giveUpAt) return false
    yield* Effect.sleep(20)
  }
  return true
})

const isGone = (dataDirectory: string) =>
  eventually(() => !Fs.existsSync(Path.dirname(dataDirectory)) && processesOf(dataDirectory).length === 0)

const temporaryFolder = Effect.acquireRelease(
  Effect.sync(() => Fs.mkdtempSync(Path.join(Os.tmpdir(), "headgate-testkit-"))),
  (folder) => Effect.sync(() => Fs.rmSync(folder, { recursive: true, force: true }))
)

describe("EmbeddedPostgres.start", () => {
  it.live("the server answers, and is gone with its scope", () =>
    Effect.gen(function*() {
      const scope = yield* Scope.make()
      const server = yield* Scope.provide(EmbeddedPostgres.start(), scope)
      assert.deepStrictEqual(yield* query(server.url, "SELECT 1 AS it"), [{ it: 1 }])
      assert.isNotEmpty(processesOf(server.dataDirectory))
      yield* Scope.close(scope, Exit.void)
      assert.isFalse(Fs.existsSync(Path.dirname(server.dataDirectory)))
      assert.isEmpty(processesOf(server.dataDirectory))
    }))

  it.live("committed rows of a durable server survive an immediate stop and a kill, on the same port", () =>
    Effect.gen(function*() {
      const server = yield* EmbeddedPostgres.start({ isDurable: true })
      yield* query(server.url, "CREATE TABLE kept (id int)")
      yield* query(server.url, "INSERT INTO kept VALUES (1)")
      yield* server.restart("immediate")
      yield* query(server.url, "INSERT INTO kept VALUES (2)")
      yield* server.kill
      assert.isFalse(yield* server.isRunning)
      assert.strictEqual((yield* Effect.exit(query(server.url, "SELECT 1")))._tag, "Failure")
      yield* server.start
      assert.deepStrictEqual(yield* query(server.url, "SELECT id FROM kept ORDER BY id"), [{ id: 1 }, { id: 2 }])
    }))

  it.live("a data directory of the caller is kept for the next server", () =>
    Effect.gen(function*() {
      const dataDirectory = Path.join(yield* temporaryFolder, "data")
      if (process.getuid?.() === 0) Fs.chmodSync(Path.dirname(dataDirectory), 0o755)
      yield* Effect.scoped(Effect.gen(function*() {
        const { url } = yield* EmbeddedPostgres.start({ dataDirectory })
        yield* query(url, "CREATE TABLE kept AS SELECT 7 AS id")
      }))
      const { url } = yield* EmbeddedPostgres.start({ dataDirectory })
      assert.deepStrictEqual(yield* query(url, "SELECT id FROM kept"), [{ id: 7 }])
    }))

  it.live("a server that does not start says which program and what it printed", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(EmbeddedPostgres.start({ settings: { no_such_setting: "1" } }))
      assert.strictEqual(error._tag, "PostgresUnavailable")
      assert.include(error.message, "unrecognized configuration parameter \"no_such_setting\"")
      assert.match(error.binary, /postgres$/)
    }))

  it.live("a missing program is named", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(EmbeddedPostgres.start({ binaries: { directory: "/nowhere/bin" } }))
      assert.include(error.message, "/nowhere/bin/postgres")
    }))
})

describe("EmbeddedPostgres.url", () => {
  it.live("prefers DATABASE_URL to starting a server", () =>
    Effect.gen(function*() {
      const before = process.env["DATABASE_URL"]
      process.env["DATABASE_URL"] = "postgres://somewhere/else"
      const url = yield* EmbeddedPostgres.url().pipe(Effect.ensuring(Effect.sync(() => {
        if (before === undefined) delete process.env["DATABASE_URL"]
        else process.env["DATABASE_URL"] = before
      })))
      assert.strictEqual(url, "postgres://somewhere/else")
    }))
})

interface Owner {
  readonly child: ChildProcess.ChildProcess
  readonly dataDirectory: string
  readonly uid: number
  readonly printed: ReadonlyArray<string>
}

const owner = (ending: string, options: ChildProcess.SpawnOptions = {}) =>
  Effect.acquireRelease(
    Effect.callback<Owner, Error>((resume) => {
      const script = Path.join(import.meta.dirname, "embedded-owner.ts")
      const child = ChildProcess.spawn(process.execPath, ["--conditions=headgate-source", script, ending], {
        ...options,
        stdio: ["ignore", "pipe", "ignore"]
      })
      child.once("exit", (status) => resume(Effect.fail(new Error(`the owner ended early with ${status}`))))
      const printed: Array<string> = []
      const lines = Readline.createInterface({ input: child.stdout })
      lines.on("line", (line) => printed.push(line))
      lines.once("line", (line) => resume(Effect.succeed({ child, printed, ...JSON.parse(line) })))
    }),
    ({ child }) => Effect.sync(() => void child.kill("SIGKILL"))
  )

describe("a program that ends leaves no server and no directory", () => {
  for (const signal of ["SIGINT", "SIGTERM", "SIGKILL"] as const) {
    it.live(`by ${signal}`, () =>
      Effect.gen(function*() {
        const { child, dataDirectory } = yield* owner("wait")
        assert.isNotEmpty(processesOf(dataDirectory))
        child.kill(signal)
        assert.isTrue(yield* isGone(dataDirectory))
      }))
  }

  it.live("by Ctrl-C in its terminal, and its finalizers still have the server", () =>
    Effect.gen(function*() {
      const { child, dataDirectory, printed } = yield* owner("finalize", { detached: true })
      process.kill(-(child.pid ?? 0), "SIGINT") // a terminal sends it to the whole process group
      assert.isTrue(yield* isGone(dataDirectory))
      assert.strictEqual(printed[1], "finalized")
    }))

  for (const ending of ["close", "exit", "throw"]) {
    it.live(`by ${ending}`, () =>
      Effect.gen(function*() {
        const { dataDirectory } = yield* owner(ending)
        assert.isTrue(yield* isGone(dataDirectory))
      }))
  }

  // Elsewhere nothing ties the server to its guardian.
  const onLinux = process.platform === "linux" ? it.live : (..._test: Parameters<typeof it.live>) => {}
  onLinux(
    "when its guardian is killed first, and a later start removes the directory",
    () =>
      Effect.gen(function*() {
        const { child, dataDirectory } = yield* owner("wait")
        for (const { command, pid } of processesOf(dataDirectory)) {
          if (command.includes("headgate-guardian")) process.kill(pid, "SIGKILL")
        }
        child.kill("SIGKILL")
        assert.isTrue(yield* eventually(() => child.signalCode !== null && processesOf(dataDirectory).length === 0))
        yield* Effect.scoped(EmbeddedPostgres.start())
        assert.isFalse(Fs.existsSync(Path.dirname(dataDirectory)))
      })
  )
})

const ordinary = { uid: 1, gid: 1 }

const canRunAsOrdinaryUser = process.getuid?.() === 0 &&
  ChildProcess.spawnSync("test", ["-r", import.meta.filename], ordinary).status === 0

/** Only root can become somebody else, and only where that user can read the checkout. */
const asOther = canRunAsOrdinaryUser ? it.live : (..._test: Parameters<typeof it.live>) => {}

asOther(
  "an ordinary user runs the server under the own account",
  () =>
    Effect.gen(function*() {
      const { child, dataDirectory, uid } = yield* owner("wait", ordinary)
      assert.strictEqual(uid, 1)
      assert.strictEqual(Fs.statSync(dataDirectory).uid, 1)
      child.kill("SIGKILL")
      assert.isTrue(yield* isGone(dataDirectory))
    })
)
