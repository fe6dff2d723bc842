/**
 * The whole product under random faults, judged by an independent account of what happened. Ends with one line, `soak: J
 * jobs, F faults, V violations`, and fails unless V is 0.
 *
 *   --minutes N      how long faults go on (2)
 *   --seed S         draws the same faults again; what they meet depends on the machine
 *   --broken WORD    runs in a copy of the tree without the guards whose promise holds the word, and fails if V is 0
 *                    there: `fence` for all that refuse a holder who has lost its lease, `ceiling` for the gate's lock
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { spawn } from "node:child_process"
import { once } from "node:events"
import { readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { guards } from "../test/guards.ts"
import * as Soak from "../test/soak/Soak.ts"
import { copyTree } from "./tree-copy.ts"

const words: Readonly<Record<string, string>> = {
  fence: "current holder only",
  ceiling: "decide about one policy one at a time"
}

const { broken, minutes, seed } = readArguments(process.argv.slice(2))
if (broken === undefined) soak()
else await soakWithout(words[broken] ?? broken)

function soak(): void {
  const fiber = Effect.runFork(Soak.run(minutes, seed))
  onSignal(() => fiber.interruptUnsafe())
  fiber.addObserver((exit) => {
    if (Exit.isFailure(exit)) console.error(String(exit.cause))
    process.exit(Exit.isSuccess(exit) && exit.value === 0 ? 0 : 1)
  })
}

async function soakWithout(word: string): Promise<void> {
  const copy = copyTree("soak")
  try {
    const deleted = deleteGuards(copy, word)
    console.log(deleted.map((promise) => `without: ${promise}`).join("\n"))
    const arguments_ = [
      "--conditions=headgate-source",
      "scripts/soak.ts",
      "--minutes",
      `${minutes}`,
      "--seed",
      `${seed}`
    ]
    const child = spawn(process.execPath, arguments_, { cwd: copy, stdio: ["ignore", "pipe", "ignore"] })
    // It cleans up by itself, and ends.
    onSignal(() => child.kill("SIGINT"))
    let output = ""
    child.stdout.on("data", (bytes) => {
      output += String(bytes)
      process.stdout.write(bytes)
    })
    await once(child, "close")
    const found = Number(/^soak: .* (\d+) violations$/m.exec(output)?.[1] ?? 0)
    console.log(found > 0 ? "the checker has seen it" : "NOT SEEN by the checker")
    process.exitCode = found > 0 ? 0 : 1
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

function deleteGuards(copy: string, word: string): ReadonlyArray<string> {
  const chosen = guards.filter(({ promise }) => promise.includes(word))
  if (chosen.length === 0) throw new Error(`no guard's promise holds "${word}"`)
  for (const { file, guarded, without } of chosen) {
    const path = join(copy, file)
    writeFileSync(path, readFileSync(path, "utf8").replace(guarded, () => without))
  }
  return chosen.map(({ promise }) => promise)
}

function onSignal(act: () => void): void {
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, act)
}

function readArguments(all: ReadonlyArray<string>) {
  const valueOf = (name: string): string | undefined => {
    const at = all.indexOf(name)
    return at === -1 ? undefined : all[at + 1]
  }
  const numberOf = (name: string, otherwise: number): number => {
    const value = Number(valueOf(name) ?? otherwise)
    if (!(value > 0)) throw new Error(`${name} takes a number above 0`)
    return value
  }
  return {
    minutes: numberOf("--minutes", 2),
    seed: numberOf("--seed", Date.now() % 2 ** 31),
    broken: valueOf("--broken")
  }
}
