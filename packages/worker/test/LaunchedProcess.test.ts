import { assert, layer } from "@effect/vitest"
import { Inspect, type WorkerCommand, WorkerControl, WorkerId } from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { Effect } from "effect"
import { execFileSync, spawnSync } from "node:child_process"
import { Chore } from "./fixtures/chore.ts"
import { hasEnded, type Process, run, signalGroup } from "./Processes.ts"
import * as Workers from "./Workers.ts"

const tell = (id: string, command: WorkerCommand) =>
  WorkerControl.use((control) => control.tell(WorkerId.make(id), command))

const isListed = (id: string) =>
  Effect.map(Inspect.use(({ workers }) => workers), (all) => all.some((worker) => worker.id === id))

/** A job that this process has started. */
const started = Effect.fnUntraced(
  function*(process: Process, name: string, ms: number, does: "sleep" | "block" | "grow" = "sleep") {
    const id = yield* Chore.enqueue({ name, does, ms })
    yield* process.said(`start ${name}`)
    return id
  }
)

/** Milliseconds until the process has ended with this exit code. */
const endsWith = Effect.fnUntraced(function*(process: Process, code: number | NodeJS.Signals) {
  const from = monotonicMs()
  assert.strictEqual(yield* Effect.timeout(process.end, "1 minute"), code)
  return monotonicMs() - from
})

const canUnshare = spawnSync("unshare", ["--pid", "--fork", "true"]).status === 0

/** The worker as a script of npm's: a child of a shell, or in the shell's place. */
const asScript = (script: "shell" | "exec") => ({
  env: { WORKER_NODE: process.execPath },
  within: () => ["npm", "--prefix", `${import.meta.dirname}/fixtures/npm`, "run", "--silent", script]
})

layer(Workers.layer, { excludeTestServices: true, timeout: "4 minutes" })("The end of a worker's process", (it) => {
  it.effect("told to restart it lets its handlers end, however long they take, and exits with 0", () =>
    Effect.gen(function*() {
      const process = yield* run({ id: "restarted", lease: "8 seconds", shutdownGrace: "100 millis" })
      yield* process.said("ready")
      const id = yield* started(process, "long", 5000)
      yield* tell("restarted", "restart")
      yield* process.said("told restart")
      const late = yield* Chore.enqueue({ name: "late", does: "sleep", ms: 1 })
      yield* endsWith(process, 0)
      assert.deepStrictEqual(yield* Effect.forEach([id, late], Workers.stateOf), ["completed", "available"])
      assert.isTrue(process.lines.includes("last words"))
      assert.isFalse(yield* isListed("restarted"))
    }))

  it.effect("told to terminate it hands back what outlasts its grace, and exits with 0", () =>
    Effect.gen(function*() {
      const process = yield* run({ id: "terminated", lease: "8 seconds", shutdownGrace: "500 millis" })
      yield* process.said("ready")
      const id = yield* started(process, "endless", 60_000)
      yield* tell("terminated", "terminate")
      yield* process.said("told terminate")
      Workers.within("a process told to terminate had ended", yield* endsWith(process, 0), 500 + 1500)
      assert.strictEqual(yield* Workers.stateOf(id), "available")
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
      yield* Workers.cancel(id)
    }))

  it.effect("told to be quiet while its event loop is blocked, it takes no more work once it is free", () =>
    Effect.gen(function*() {
      const process = yield* run({ id: "blocked", lease: "8 seconds", concurrency: 2 })
      yield* process.said("ready")
      const id = yield* started(process, "spin", 8000, "block")
      yield* tell("blocked", "quiet")
      const late = yield* Chore.enqueue({ name: "after", does: "sleep", ms: 1 })
      yield* process.said("told quiet")
      yield* Workers.settled(id, "completed")
      assert.strictEqual(yield* Workers.stateOf(late), "available")
      yield* Workers.cancel(late)
      assert.isFalse(process.lines.includes("start after"))
    }))

  it.effect("told to terminate while its event loop is blocked for good, it is killed", () =>
    Effect.gen(function*() {
      const process = yield* run({ id: "wedged", lease: "2 seconds", shutdownGrace: "100 millis" })
      yield* process.said("ready")
      const id = yield* started(process, "wedge", 600_000, "block")
      yield* tell("wedged", "terminate")
      yield* endsWith(process, "SIGKILL")
      assert.strictEqual(yield* Workers.stateOf(id), "running")
      yield* Workers.cancel(id)
    }))

  it.effect("above its memory limit it takes no more work, lets its handlers end, says so and exits with 0", () =>
    Effect.gen(function*() {
      const memoryLimit = 300 * 1024 * 1024
      const process = yield* run({ id: "grown", lease: "30 seconds", memoryLimit })
      yield* process.said("ready")
      yield* Workers.settled(yield* started(process, "small", 1), "completed")
      const id = yield* started(process, "grow", 8000, "grow")
      yield* process.said("over memory")
      const late = yield* Chore.enqueue({ name: "later", does: "sleep", ms: 1 })
      yield* endsWith(process, 0)
      assert.deepStrictEqual(yield* Effect.forEach([id, late], Workers.stateOf), ["completed", "available"])
      yield* Workers.cancel(late)
    }))

  it.effect("a memory limit below what the process takes at its start is refused", () =>
    Effect.gen(function*() {
      const handler = Chore.toLayer(() => Effect.void)
      const refusal = yield* Effect.flip(Workers.start(handler, { memoryLimit: 1024 * 1024 }))
      assert.deepInclude(refusal, { _tag: "Invalid", field: "memoryLimit", actual: 1024 * 1024 })
    }))

  it.effect("what was still to be written reaches a slow reader", () =>
    Effect.gen(function*() {
      const process = yield* run({ shutdownGrace: "100 millis" }, { env: { EXIT_TEXT: String(2 ** 20) } })
      yield* process.said("ready")
      process.child.stdout?.pause()
      process.child.kill("SIGTERM")
      yield* Effect.sleep(700)
      process.child.stdout?.resume()
      yield* endsWith(process, 0)
      assert.deepStrictEqual([process.lines.at(-2)?.length, process.lines.at(-1)], [2 ** 20, "last words"])
    }))

  it.effect("under npm, a terminal's interrupt of the whole group drains", () =>
    Effect.gen(function*() {
      const process = yield* run({ shutdownGrace: "20 seconds" }, asScript("shell"))
      yield* process.said("ready")
      const id = yield* started(process, "interrupted", 2500)
      signalGroup(process.child, "SIGINT")
      yield* process.said("end interrupted")
      yield* process.said("last words")
      yield* Effect.timeout(process.end, "1 minute")
      assert.strictEqual(yield* Workers.stateOf(id), "completed")
    }))

  for (const script of ["exec", "shell"] as const) {
    const how = script === "exec" ? "which it passes on" : "of which the script's shell dies"
    it.effect(`under npm, SIGTERM to npm, ${how}, drains`, () =>
      Effect.gen(function*() {
        const process = yield* run({ shutdownGrace: "20 seconds" }, asScript(script))
        yield* process.said("ready")
        const id = yield* started(process, script, 3000)
        process.child.kill("SIGTERM")
        yield* process.said(`end ${script}`)
        yield* process.said("last words")
        // Its output has ended, so no process of the group is left to write to it.
        yield* Effect.timeout(process.end, "1 minute")
        assert.strictEqual(yield* Workers.stateOf(id), "completed")
      }))
  }

  it.effect.runIf(canUnshare)(
    "as the first process of a container it drains on SIGTERM, and ends at once on a second",
    () =>
      Effect.gen(function*() {
        const asFirst = (node: ReadonlyArray<string>) => ["unshare", "--pid", "--fork", ...node]
        const process = yield* run({ shutdownGrace: "20 seconds" }, { within: asFirst })
        yield* process.said("ready")
        const id = yield* started(process, "in a container", 2000)
        const [inner] = childrenOf(process.child.pid!)
        globalThis.process.kill(inner!, "SIGTERM")
        yield* process.said("end in a container")
        yield* endsWith(process, 0)
        assert.strictEqual(yield* Workers.stateOf(id), "completed")

        const second = yield* run({ shutdownGrace: "20 seconds" }, { within: asFirst })
        yield* second.said("ready")
        const cut = yield* started(second, "cut", 60_000)
        const [pid] = childrenOf(second.child.pid!)
        globalThis.process.kill(pid!, "SIGTERM")
        yield* Effect.sleep(1000)
        assert.isFalse(hasEnded(second))
        globalThis.process.kill(pid!, "SIGTERM")
        Workers.within("a process told twice had ended", yield* endsWith(second, 143), 1000)
        yield* Workers.cancel(cut)
      })
  )
})

const childrenOf = (pid: number): ReadonlyArray<number> =>
  execFileSync("ps", ["-o", "pid=", "--ppid", String(pid)], { encoding: "utf8" }).split("\n").map(Number).filter(
    Boolean
  )
