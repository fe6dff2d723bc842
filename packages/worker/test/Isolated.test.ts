import { assert, layer } from "@effect/vitest"
import { Inspect, type Invalid, Task } from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Exit, Layer, Logger, References, Schema, Scope } from "effect"
import { spawn } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as Isolated from "../src/Isolated.ts"
import { Isolating } from "./fixtures/isolated.ts"
import * as Workers from "./Workers.ts"

const entry = `${import.meta.dirname}/fixtures/isolated-child.ts`
const node = { command: process.execPath, args: ["--conditions=headgate-source", entry] }
const isolated = (options: Partial<Isolated.IsolatedOptions> = {}) =>
  Isolated.toLayer(Isolating, { ...node, ...options })

const MEBIBYTE = 1_048_576

/** Lines that children write, in a folder of the scope's. */
const notebook = Effect.gen(function*() {
  const folder = yield* Effect.acquireRelease(
    Effect.sync(() => mkdtempSync(`${tmpdir()}/isolated-`)),
    (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
  )
  const notes = `${folder}/notes`
  const lines = (): ReadonlyArray<string> => {
    try {
      return readFileSync(notes, "utf8").split("\n").filter((line) => line !== "")
    } catch {
      return []
    }
  }
  const pids = () => lines().flatMap((line) => line.startsWith("start ") ? [Number(line.slice(6))] : [])
  /** Waits for so many processes to tell their ids. */
  const started = (count: number) =>
    Effect.as(Workers.untilTrue(() => pids().length >= count, "children to start", 60_000), pids)
  return { notes, lines, started: (count: number) => Effect.map(started(count), (pids) => pids()) }
})

/** Not counting one that ended and was not asked about yet. */
const isAlive = (pid: number): boolean => {
  try {
    return !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, "utf8"))
  } catch {
    return false
  }
}

/** Waits until they are gone, as they are after that time on a quiet machine. */
const gone = Effect.fnUntraced(function*(pids: ReadonlyArray<number>, promisedMs: number) {
  const from = monotonicMs()
  yield* Workers.untilTrue(() => !pids.some(isAlive), `processes ${pids.join(", ")} to be gone`, 60_000)
  Workers.within("children were gone", monotonicMs() - from, promisedMs)
})

const answer = (id: string) =>
  Effect.map(Workers.result(id, Isolating.definition.success), (value) => {
    // SAFETY: decoded by the task's own schema.
    return value as typeof Answer.Type
  })
const Answer = Schema.Struct({ pid: Schema.Int, env: Schema.Record(Schema.String, Schema.String), text: Schema.String })

/** How the last attempt ended. */
const lastAttempt = (id: string) => Effect.map(Workers.attempts(id), (attempts) => attempts.at(-1)!)

layer(Workers.layer, { excludeTestServices: true, timeout: "4 minutes" })("An isolated handler", (it) => {
  it.effect("answers by the task's schemas, with its own layer, and sees nothing of the worker's environment", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated({ memoryLimit: 1024 * MEBIBYTE }), { queues: ["i1"] })
      const id = yield* Isolating.enqueue({ does: "answer", text: "to you \u0000\ud800" }, { queue: "i1" })
      yield* Workers.settled(id, "completed")
      const { env, pid, text } = yield* answer(id)
      assert.deepStrictEqual([env, text], [{}, "hello to you \u0000\ud800"])
      assert.notStrictEqual(pid, process.pid)
      yield* gone([pid], 2000)
    }))

  it.effect("is given the environment that is named, and no other", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated({ env: { GREETING: "hi" } }), { queues: ["i2"] })
      const id = yield* Isolating.enqueue({ does: "answer" }, { queue: "i2" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual((yield* answer(id)).env, { GREETING: "hi" })
    }))

  it.effect("fails with the task's own error, which consumes an attempt and reaches who awaits the job", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated(), { queues: ["i3"] })
      const id = yield* Isolating.enqueue({ does: "refuse", text: "not today" }, { queue: "i3" })
      const error = yield* Effect.flip(Isolating.await(id))
      assert.deepInclude(error, { _tag: "Refused", why: "not today", on: new Date(0) })
      assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 1, crashAttempt: 0 })
    }))

  it.effect("a segfault, an exit, a defect, an endless loop and 2 GiB end one job each, and siblings finish", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated({ memoryLimit: 512 * MEBIBYTE }), { queues: ["i4"], concurrency: 3 })
      const deed = (does: "segfault" | "exit" | "die" | "allocate" | "spin", timeout?: "5 seconds") =>
        Isolating.enqueue({ does, text: does }, { queue: "i4", timeout })
      const bad = yield* Effect.forEach(["segfault", "exit", "die", "allocate"] as const, (does) => deed(does))
      const spin = yield* deed("spin", "5 seconds")
      const good = yield* Isolating.enqueueAll([1, 2, 3].map((n) => ({ does: "answer", text: `${n}` } as const)), {
        queue: "i4"
      })
      for (const id of good) yield* Workers.settled(id, "completed")
      yield* Effect.forEach(bad, (id) => Workers.settled(id, "quarantined"))
      yield* Workers.settled(spin, "archived")
      const ends = yield* Effect.forEach([...bad, spin], lastAttempt)
      assert.deepStrictEqual(ends.map(({ errorTag, outcome }) => [outcome, errorTag]), [
        ["crashed", "IsolatedCrash"],
        ["crashed", "IsolatedCrash"],
        ["crashed", "TypeError"],
        ["crashed", "IsolatedCrash"],
        ["timed_out", "TaskTimeout"]
      ])
      const messages = ends.map(({ errorText }) => errorText ?? "")
      assert.match(messages[0]!, /ended by SIGSEGV/)
      assert.match(messages[1]!, /exited with code 3/)
      assert.match(messages[2]!, /^TypeError: nothing works\n +at .*isolated-child\.ts/)
      assert.match(messages[3]!, /ran out of memory \(its limit is 536870912 bytes\)/)
    }))

  it.effect("the end of what a crashed child printed, and no more, stands in its error", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated({ maxOutput: 100 }), { queues: ["i5"] })
      const id = yield* Isolating.enqueue({ does: "print" }, { queue: "i5" })
      yield* Workers.settled(id, "quarantined")
      const text = (yield* lastAttempt(id)).errorText ?? ""
      assert.match(text, /stderr: \[cut: \d+ bytes\]e+ last complaint/)
      assert.match(text, /stdout: \[cut: \d+ bytes\]o+ last words/)
      assert.isBelow(text.length, 2000)
    }))

  it.effect("an answer that the worker's schemas do not read is a crash, which says so", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated({ args: [...node.args, "other"] }), { queues: ["i6"] })
      const id = yield* Isolating.enqueue({ does: "answer" }, { queue: "i6" })
      yield* Workers.settled(id, "quarantined")
      const { errorTag, errorText } = yield* lastAttempt(id)
      assert.strictEqual(errorTag, "UndecodableAnswer")
      assert.match(errorText ?? "", /the result that the child answered does not fit the task's schema.*\(at pid\)/s)
    }))

  it.effect("a program that cannot be started, or does not serve, crashes the job and says why", () =>
    Effect.gen(function*() {
      const quiet = Task.make("quiet", { payload: Schema.Void, crashLimit: 1 })
      const handlers = Layer.merge(
        isolated({ command: "/nowhere/to/be/found" }),
        Isolated.toLayer(quiet, { command: "/bin/sleep", args: ["1000"], startTimeout: "300 millis" })
      )
      yield* Workers.start(handlers, { queues: ["i7"] })
      const ids = [
        yield* Isolating.enqueue({ does: "answer" }, { queue: "i7" }),
        yield* quiet.enqueue(undefined, { queue: "i7" })
      ]
      for (const id of ids) yield* Workers.settled(id, "quarantined")
      const messages = yield* Effect.forEach(
        ids,
        (id) => Effect.map(lastAttempt(id), ({ errorText }) => errorText)
      )
      assert.match(messages[0] ?? "", /\/nowhere\/to\/be\/found did not start: .*ENOENT/)
      assert.match(messages[1] ?? "", /did not serve within 300 ms/)
    }))

  it.effect("chooses how its attempt ends, and reports progress, through the worker", () =>
    Effect.gen(function*() {
      const { notes, started } = yield* notebook
      yield* Workers.start(isolated(), { queues: ["i8"] })
      const snoozed = yield* Isolating.enqueue({ does: "snooze" }, { queue: "i8" })
      const working = yield* Isolating.enqueue({ does: "progress", notes }, { queue: "i8" })
      yield* Workers.settled(snoozed, "scheduled")
      assert.deepStrictEqual(yield* Workers.counters(snoozed), { attempt: 0, crashAttempt: 0 })
      yield* started(1)
      const progress = yield* Workers.eventually(
        Inspect.use((inspect) => inspect.progress(working)),
        (progress) => progress !== undefined
      )
      assert.deepInclude(progress, { current: 3, total: 7, message: "half" })
    }))

  it.effect("waits for what it tracks, and a failure of that is its own", () =>
    Effect.gen(function*() {
      const { lines, notes } = yield* notebook
      yield* Workers.start(isolated(), { queues: ["i9"] })
      const waiting = yield* Isolating.enqueue({ does: "track", notes }, { queue: "i9" })
      const failing = yield* Isolating.enqueue({ does: "track-refuse", text: "no", notes }, { queue: "i9" })
      const shown = yield* Workers.eventually(
        Inspect.use((inspect) => inspect.tracked(waiting)),
        (tracked) => tracked?.isWaiting === true
      )
      assert.deepStrictEqual(shown?.work.map(({ name, state }) => [name, state]), [["work", "running"]])
      yield* Workers.settled(waiting, "completed")
      yield* Workers.settled(failing, "archived")
      assert.includeMembers([...lines()], ["tracked", "interrupted for nothing"])
      const attempt = yield* lastAttempt(failing)
      assert.deepStrictEqual([attempt.outcome, attempt.errorTag], ["retry", "Refused"])
    }))

  it.effect("has its lease extended by the worker", () =>
    Effect.gen(function*() {
      const { lines, notes } = yield* notebook
      yield* Workers.start(isolated(), { queues: ["i10"] })
      const id = yield* Isolating.enqueue({ does: "extend", notes }, { queue: "i10" })
      yield* Workers.untilTrue(() => lines().includes("extended"), "the lease to be extended")
      const { claimedAtMs = 0, leaseExpiresAtMs = 0 } = yield* Workers.job(id)
      assert.isAtLeast(leaseExpiresAtMs - claimedAtMs, 600_000)
    }))

  it.effect("logs through the worker's own loggers as well, also when it succeeds", () =>
    Effect.gen(function*() {
      const said: Array<unknown> = []
      const logger = Logger.make(({ fiber, logLevel, message }) => {
        const { page } = fiber.getRef(References.CurrentLogAnnotations)
        if (page !== undefined) said.push([logLevel, message, page])
      })
      yield* Workers.start(isolated().pipe(Layer.provide(Logger.layer([logger]))), { queues: ["i13"] })
      const id = yield* Isolating.enqueue({ does: "log-and-answer", text: "a" }, { queue: "i13" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(said, [["Warn", ["well done { text: \"a\" }"], "7"]])
    }))

  it.effect("that asks for a step or completeWith, past the compiler, fails for good and says why", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated(), { queues: ["i14"] })
      for (const does of ["step", "step-or-die", "complete"] as const) {
        const id = yield* Isolating.enqueue({ does }, { queue: "i14" })
        yield* Workers.settled(id, "archived", "quarantined")
        const { reason } = yield* Workers.job(id)
        const { errorTag, errorText } = yield* lastAttempt(id)
        assert.deepStrictEqual([reason, errorTag], ["fatal", "Invalid"], does)
        assert.match(errorText ?? "", /a handler in a child process has no steps, outputs or completeWith/)
      }
    }))

  it.effect("of a task that declares steps, or a time for them, is refused at the worker's start", () =>
    Effect.gen(function*() {
      const payload = Schema.Void
      const refused = <Handlers>(layer: Layer.Layer<Handlers, Invalid>) =>
        Effect.scoped(Layer.build(layer)).pipe(Effect.flip, Effect.map(({ field }) => field))
      const fields = [
        yield* refused(Isolated.toLayer(Task.make("steps", { payload, steps: ["one"] }), node)),
        yield* refused(Isolated.toLayer(Task.make("step-time", { payload, stepTimeout: "1 second" }), node))
      ]
      assert.deepStrictEqual(fields, ["steps", "stepTimeout"])
    }))

  it.effect("logs into its attempt, also when it crashes", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated(), { queues: ["i11"] })
      yield* Workers.start(isolated(), { queues: ["i12"], attemptLogs: false })
      const id = yield* Isolating.enqueue({ does: "log", text: "a" }, { queue: "i11" })
      const silent = yield* Isolating.enqueue({ does: "log", text: "a" }, { queue: "i12" })
      yield* Workers.settled(id, "quarantined")
      const { log } = yield* lastAttempt(id)
      assert.deepStrictEqual(
        log?.lines.map(({ annotations, level, message }) => ({ annotations, level, message })),
        [{ annotations: { page: "7" }, level: "Warn", message: "in the child { text: \"a\" }" }]
      )
      yield* Workers.settled(silent, "quarantined")
      assert.isUndefined((yield* lastAttempt(silent)).log)
    }))
})

layer(Workers.layer, { excludeTestServices: true, timeout: "4 minutes" })(
  "An isolated handler that has to stop",
  (it) => {
    it.effect("a cancelled job's handler learns the reason; a deaf one, and what it started, are killed within a second", () =>
      Effect.gen(function*() {
        const { lines, notes, started } = yield* notebook
        yield* Workers.start(isolated(), { queues: ["s1"], lease: "12 seconds" })
        const ids = yield* Isolating.enqueueAll(
          (["hang", "spin", "deaf", "fork"] as const).map((does) => ({ does, notes })),
          { queue: "s1" }
        )
        const pids = yield* started(5)
        for (const id of ids) yield* Workers.cancel(id)
        const cancelledAt = monotonicMs()
        // What tells the worker is its heartbeat.
        yield* Workers.untilTrue(() => lines().includes("interrupted operator_cancel"), "the reason to arrive")
        yield* gone(pids, 1000)
        Workers.within("cancelled children were gone", monotonicMs() - cancelledAt, 3000 + 2000)
        for (const id of ids) assert.strictEqual(yield* Workers.stateOf(id), "cancelled")
      }))

    it.effect("what a child started and left behind when it crashed is killed", () =>
      Effect.gen(function*() {
        const { notes, started } = yield* notebook
        yield* Workers.start(isolated(), { queues: ["s5"] })
        const id = yield* Isolating.enqueue({ does: "abandon", notes }, { queue: "s5" })
        yield* Workers.settled(id, "quarantined")
        yield* gone(yield* started(2), 1000)
      }))

    it.effect("a lease that is lost while the store is out of reach kills the child within a second", () =>
      Effect.gen(function*() {
        const { lines, notes, started } = yield* notebook
        const { proxy, use } = yield* Workers.throughProxy()
        yield* use(Workers.start(isolated(), { queues: ["s2"], lease: "4 seconds" }))
        yield* Isolating.enqueueAll([{ does: "hang", notes }, { does: "spin", notes }], { queue: "s2" })
        const pids = yield* started(2)
        yield* proxy.cut
        yield* gone(pids, 4000 + 1000)
        assert.include(lines(), "interrupted lease_lost")
      }))

    it.effect("a drain tells the handler, releases the job uncharged, and leaves no child", () =>
      Effect.gen(function*() {
        const { lines, notes, started } = yield* notebook
        const scope = yield* Scope.make()
        yield* Scope.provide(
          Workers.start(isolated({ pool: 2 }), { queues: ["s3"], shutdownGrace: "100 millis" }),
          scope
        )
        const ids = yield* Isolating.enqueueAll([{ does: "hang", notes }, { does: "spin", notes }], { queue: "s3" })
        const pids = yield* started(2)
        yield* Scope.close(scope, Exit.void)
        assert.deepStrictEqual(pids.filter(isAlive), [])
        assert.include(lines(), "interrupted shutdown")
        for (const id of ids) {
          assert.strictEqual(yield* Workers.stateOf(id), "available")
          assert.deepStrictEqual(yield* Workers.counters(id), { attempt: 0, crashAttempt: 0 })
        }
      }))

    it.effect("a worker that is killed leaves no child, not one in an endless loop either", () =>
      Effect.gen(function*() {
        const { lines, notes, started } = yield* notebook
        const { url } = yield* TestDatabase.TestDatabase
        const worker = spawn(process.execPath, [
          "--conditions=headgate-source",
          `${import.meta.dirname}/fixtures/isolated-worker.ts`
        ], { env: { ...process.env, DATABASE_URL: url }, stdio: ["ignore", "inherit", "inherit"] })
        yield* Effect.addFinalizer(() => Effect.sync(() => worker.kill("SIGKILL")))
        yield* Isolating.enqueueAll([{ does: "hang", notes }, { does: "spin", notes }, { does: "fork", notes }])
        const pids = yield* started(4)
        assert.isTrue(pids.every(isAlive))
        worker.kill("SIGKILL")
        yield* gone(pids, 3000)
        assert.include(lines(), "interrupted lease_lost")
      }))
  }
)

layer(Workers.layer, { excludeTestServices: true, timeout: "4 minutes" })("A pool of children", (it) => {
  it.effect("serves many jobs with one child, one at a time, and replaces it after a crash", () =>
    Effect.gen(function*() {
      yield* Workers.start(isolated({ pool: 1 }), { queues: ["p1"], concurrency: 1 })
      const batch = () =>
        Isolating.enqueueAll([1, 2, 3].map((n) => ({ does: "answer", text: `${n}` } as const)), { queue: "p1" })
      const pidsOf = Effect.fnUntraced(function*(ids: ReadonlyArray<string>) {
        for (const id of ids) yield* Workers.settled(id, "completed")
        return new Set(yield* Effect.forEach(ids, (id) => Effect.map(answer(id), ({ pid }) => pid)))
      })
      const first = yield* pidsOf(yield* batch())
      assert.strictEqual(first.size, 1)
      const refused = yield* Isolating.enqueue({ does: "refuse" }, { queue: "p1" })
      yield* Workers.settled(refused, "archived")
      assert.deepStrictEqual(yield* pidsOf(yield* batch()), first)
      const crashed = yield* Isolating.enqueue({ does: "segfault" }, { queue: "p1" })
      yield* Workers.settled(crashed, "quarantined")
      const second = yield* pidsOf(yield* batch())
      assert.strictEqual(second.size, 1)
      assert.notDeepEqual(second, first)
    }))

  it.effect("is no bound: jobs beyond it get children of their own, which end with them", () =>
    Effect.gen(function*() {
      const { notes, started } = yield* notebook
      yield* Workers.start(isolated({ pool: 1 }), { queues: ["p3"] })
      const hanging = yield* Isolating.enqueue({ does: "hang", notes }, { queue: "p3" })
      yield* started(1)
      const id = yield* Isolating.enqueue({ does: "refuse", notes }, { queue: "p3" })
      yield* Workers.settled(id, "archived")
      assert.strictEqual(yield* Workers.stateOf(hanging), "running")
      const pids = yield* started(2)
      assert.strictEqual(new Set(pids).size, 2)
    }))

  it.effect("keeps a child whose job stopped as it was told, and replaces one after so many jobs", () =>
    Effect.gen(function*() {
      const { notes, started } = yield* notebook
      const scope = { queue: "p2" }
      yield* Workers.start(isolated({ pool: { size: 1, jobs: 2 }, killAfter: "3 seconds" }), { queues: ["p2"] })
      const hanging = yield* Isolating.enqueue({ does: "hang", notes }, { ...scope, timeout: "8 seconds" })
      const [pid] = yield* started(1)
      yield* Workers.settled(hanging, "archived")
      // Longer than a child has that does not stop.
      yield* Effect.sleep(3500)
      const pids: Array<number> = []
      for (const text of ["1", "2"]) {
        const id = yield* Isolating.enqueue({ does: "answer", text }, scope)
        yield* Workers.settled(id, "completed")
        pids.push((yield* answer(id)).pid)
      }
      assert.strictEqual(pids[0], pid)
      assert.notStrictEqual(pids[1], pid)
    }))

  it.effect("options out of bounds stop the worker's start", () =>
    Effect.gen(function*() {
      const bad: ReadonlyArray<Partial<Isolated.IsolatedOptions>> = [
        { pool: -1 },
        { memoryLimit: 1 },
        { maxOutput: 1e6 },
        { startTimeout: 0 },
        { command: "" }
      ]
      for (const options of bad) {
        const refusal = yield* Effect.flip(Effect.scoped(Layer.build(isolated(options))))
        assert.strictEqual(refusal.field, Object.keys(options)[0]!)
      }
    }))
})
