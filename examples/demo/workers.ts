/** Keeps worker processes running: one that dies is started again, as a service manager would. */
import { Effect, Latch } from "effect"
import { ChildProcess, ChildProcessSpawner } from "effect/process"
import { Inspect } from "headgate"
import { fileURLToPath } from "node:url"
import { Story } from "./story.ts"

const program = fileURLToPath(new URL("worker.ts", import.meta.url))

export interface Workers {
  readonly nameOf: (pid: number) => string
  /** How many have died so far. */
  readonly deaths: () => number
  readonly kill: (pid: number) => Effect.Effect<void>
  /** Open: the dead are replaced at once. Closed: once it opens. */
  readonly restarts: Latch.Latch
}

/** One process for each name, until the scope closes. */
export const start = Effect.fn("Workers.start")(function*(names: ReadonlyArray<string>, databaseUrl: string) {
  const story = yield* Story
  const { spawn } = yield* ChildProcessSpawner.ChildProcessSpawner
  const restarts = yield* Latch.make(true)
  const pids = new Map<number, string>()
  let deaths = 0

  const nameOf = (pid: number) => `worker ${pids.get(pid) ?? "?"} (pid ${pid})`
  const runOnce = Effect.fnUntraced(function*(name: string) {
    const child = yield* spawn(ChildProcess.make(process.execPath, ["--conditions=headgate-source", program], {
      env: { DATABASE_URL: databaseUrl },
      extendEnv: true,
      stdin: "pipe",
      stdout: "inherit",
      stderr: "inherit",
      forceKillAfter: "3 seconds"
    }))
    const isAgain = [...pids.values()].includes(name)
    pids.set(child.pid, name)
    if (isAgain) yield* story.say(`${nameOf(child.pid)} is started in its place`)
    yield* Effect.exit(child.exitCode)
    deaths++
    yield* story.say(`${nameOf(child.pid)} is dead`)
    yield* restarts.await
  }, Effect.scoped)

  yield* Effect.forEach(names, (name) => Effect.forkScoped(Effect.forever(runOnce(name))))
  const workers: Workers = {
    nameOf,
    restarts,
    deaths: () => deaths,
    kill: (pid) => Effect.sync(() => process.kill(pid, "SIGKILL"))
  }
  return workers
})

/** Waits until so many workers have registered with the store. */
export const areLive = (count: number) =>
  Effect.repeat(Effect.delay(Inspect.use((inspect) => inspect.workers), "50 millis"), {
    until: (workers) => workers.filter(({ isLive }) => isLive).length === count
  })
