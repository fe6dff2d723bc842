/** Workers as processes of their own, and what they say on their standard output. */
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import type { WorkerOptions } from "../src/WorkerOptions.ts"
import * as Workers from "./Workers.ts"

export interface Process {
  readonly child: ChildProcess
  readonly lines: Array<string>
  readonly said: (line: string) => Effect.Effect<boolean>
  /** Exit code, or the signal that ended it. */
  readonly end: Effect.Effect<number | NodeJS.Signals>
}

export interface Around {
  readonly env?: NodeJS.ProcessEnv
  /** Program and arguments that start the worker's own command line, given as `node` and its arguments. */
  readonly within?: (node: ReadonlyArray<string>) => ReadonlyArray<string>
}

const entry = ["--conditions=headgate-source", `${import.meta.dirname}/fixtures/worker-process.ts`]

/** A worker process for the scope, at the head of a process group of its own. */
export const run = Effect.fnUntraced(function*(options: WorkerOptions, { env = {}, within }: Around = {}) {
  const { url } = yield* TestDatabase.TestDatabase
  const node = [process.execPath, ...entry]
  const [file = "", ...args] = within === undefined ? node : within(node)
  const child = yield* Effect.acquireRelease(
    Effect.sync(() =>
      spawn(file, args, {
        env: { ...process.env, DATABASE_URL: url, OPTIONS: JSON.stringify(options), ...env },
        stdio: ["ignore", "pipe", "inherit"],
        detached: true
      })
    ),
    (child) => Effect.sync(() => signalGroup(child, "SIGKILL"))
  )
  const lines: Array<string> = []
  let rest = ""
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    const parts = (rest + text).split("\n")
    rest = parts.pop() ?? ""
    lines.push(...parts.filter((line) => line !== ""))
  })
  const ended = new Promise<number | NodeJS.Signals>((resolve) =>
    child.once("close", (code, signal) => resolve(code ?? signal ?? -1))
  )
  const said = (line: string) => Workers.untilTrue(() => lines.includes(line), `a process to say ${line}`, 60_000)
  const process_: Process = { child, lines, said, end: Effect.promise(() => ended) }
  return process_
})

/** As a terminal does, to every process of the group that is left. */
export const signalGroup = ({ pid }: ChildProcess, signal: NodeJS.Signals): void => {
  try {
    process.kill(-(pid ?? Number.NaN), signal)
  } catch {
    // None is left.
  }
}

export const hasEnded = ({ child }: Process): boolean => child.exitCode !== null || child.signalCode !== null
