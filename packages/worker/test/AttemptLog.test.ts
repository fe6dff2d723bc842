import { assert, layer } from "@effect/vitest"
import { Inspect, Job, Retry, Step, Task } from "@headgate/core"
import { Cause, Effect, Layer, Logger, References, Result, Schema } from "effect"
import { logSettingsOf } from "../src/AttemptLog.ts"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const retry = Retry.fixed("1 hour")
class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}
const broken = new Broken({ part: "wheel" })

/** Nothing on the console. */
const quiet = Logger.layer([])

const logs = (id: string) => Effect.map(Workers.attempts(id), (attempts) => attempts.map(({ log }) => log))
const messages = (id: string) =>
  Effect.map(logs(id), ([log]) => log?.lines.map(({ level, message }) => `${level} ${message}`))

layer(Workers.layer, { excludeTestServices: true })("Attempt logs", (it) => {
  it.effect("what a handler logs is kept with the attempt that fails, with level, time and annotations", () =>
    Effect.gen(function*() {
      const task = Task.make("logs", { payload, error: Broken, retry, maxAttempts: 1 })
      const run = Effect.gen(function*() {
        yield* Effect.log("start", { shop: "north" }, 3)
        yield* Effect.logDebug("not shown")
        yield* Effect.annotateLogs(Effect.logWarning("slow"), { page: 7, name: "x".repeat(300) })
        yield* Effect.sleep(50)
        yield* Effect.logError("later", Cause.fail(broken))
        return yield* broken
      })
      yield* Workers.start(task.toLayer(() => run).pipe(Layer.provide(quiet)), { queues: ["l1"] })
      const id = yield* task.enqueue(undefined, { queue: "l1" })
      yield* Workers.settled(id, "archived")
      const [log] = yield* logs(id)
      const [start, slow, later] = log?.lines ?? []
      assert.deepStrictEqual([start?.level, start?.message, start?.annotations], [
        "Info",
        "start { shop: \"north\" } 3",
        {}
      ])
      assert.deepStrictEqual([slow?.level, slow?.message, slow?.annotations["page"]], ["Warn", "slow", "7"])
      assert.match(slow?.annotations["name"] ?? "", /^x+\[cut: \d+ bytes\]$/)
      assert.strictEqual(later?.level, "Error")
      assert.match(later?.message ?? "", /^later\nBroken: \{ part: "wheel" \}\n +at /)
      assert.isAtLeast((later?.afterMs ?? 0) - (slow?.afterMs ?? 0), 45)
      assert.isBelow(start?.afterMs ?? -1, 60_000)
      assert.deepStrictEqual([log?.lines.length, log?.dropped], [3, 0])
    }))

  it.effect("the newest lines within the limits stay, and the rest are counted", () =>
    Effect.gen(function*() {
      const lines = Task.make("logs-lines", { payload, error: Broken, retry })
      const bytes = Task.make("logs-bytes", { payload, error: Broken, retry })
      const run = (size: number) =>
        Effect.andThen(
          Effect.forEach([1, 2, 3, 4, 5, 6, 7], (n) => Effect.log(`${n}${"x".repeat(size)}`), { discard: true }),
          Effect.fail(broken)
        )
      const options = { attemptLogs: { maxLines: 3, maxBytes: 2048 } }
      yield* Workers.start(lines.toLayer(() => run(1)).pipe(Layer.provide(quiet)), { queues: ["l2"], ...options })
      yield* Workers.start(bytes.toLayer(() => run(900)).pipe(Layer.provide(quiet)), { queues: ["l3"], ...options })
      const few = yield* lines.enqueue(undefined, { queue: "l2" })
      const small = yield* bytes.enqueue(undefined, { queue: "l3" })
      yield* Workers.settled(few, "retryable")
      yield* Workers.settled(small, "retryable")
      const shown = Effect.fnUntraced(function*(id: string) {
        const [log] = yield* logs(id)
        return [log?.lines.map(({ message }) => message[0]).join(""), log?.dropped]
      })
      assert.deepStrictEqual([yield* shown(few), yield* shown(small)], [["567", 4], ["67", 5]])
    }))

  it.effect("a line is cut to 4 kB and made storable, and one that is more than all bytes stays alone", () =>
    Effect.gen(function*() {
      const task = Task.make("logs-long", { payload, error: Broken, retry })
      const run = Effect.gen(function*() {
        yield* Effect.log("before")
        yield* Effect.log(`\u0000\ud800${"ä".repeat(3_000_000)}`)
        return yield* broken
      })
      const options = { queues: ["l4"], attemptLogs: { maxBytes: 1024 } }
      yield* Workers.start(task.toLayer(() => run).pipe(Layer.provide(quiet)), options)
      const id = yield* task.enqueue(undefined, { queue: "l4" })
      yield* Workers.settled(id, "retryable")
      const [log] = yield* logs(id)
      const message = log?.lines[0]?.message ?? ""
      assert.match(message, /^\ufffd\ufffdä+\[cut: more than \d+ bytes\]$/)
      assert.isAtMost(Buffer.byteLength(message), 4096)
      assert.deepStrictEqual([log?.lines.length, log?.dropped], [1, 1])
    }))

  it.effect("a crash keeps its lines, also those of a fiber, a step and tracked work of its own", () =>
    Effect.gen(function*() {
      const task = Task.make("logs-crash", { payload, crashLimit: 1 })
      const run = Effect.gen(function*() {
        yield* Effect.log("handler")
        yield* Effect.forkChild(Effect.log("child"), { startImmediately: true })
        yield* Step.run("s", Effect.log("step"))
        yield* Job.track("work", Effect.andThen(Effect.log("tracked"), Effect.die(new Error("bug"))))
        return yield* Effect.never
      })
      yield* Workers.start(task.toLayer(() => run).pipe(Layer.provide(quiet)), { queues: ["l5"] })
      const id = yield* task.enqueue(undefined, { queue: "l5" })
      yield* Workers.settled(id, "quarantined")
      assert.deepStrictEqual(yield* messages(id), ["Info handler", "Info child", "Info step", "Info tracked"])
      const [log] = yield* logs(id)
      assert.deepStrictEqual(log?.lines.map(({ annotations }) => annotations["tracked"]), [
        undefined,
        undefined,
        undefined,
        "work"
      ])
    }))

  it.effect("each attempt keeps its own; a success, a silent attempt and a lost lease keep none", () =>
    Effect.gen(function*() {
      const task = Task.make("logs-own", { payload, error: Broken, retry: Retry.fixed("10 millis", { jitter: 0 }) })
      let tries = 0
      const run = Effect.gen(function*() {
        const attempt = ++tries
        if (attempt !== 2) yield* Effect.log(`attempt ${attempt}`)
        if (attempt < 4) return yield* broken
      })
      yield* Workers.start(task.toLayer(() => run).pipe(Layer.provide(quiet)), { queues: ["l6"] })
      const id = yield* task.enqueue(undefined, { queue: "l6" })
      yield* Workers.settled(id, "completed")
      const found = yield* logs(id)
      assert.deepStrictEqual(found.map((log) => log?.lines.map(({ message }) => message)), [
        ["attempt 1"],
        undefined,
        ["attempt 3"],
        undefined
      ])
      const lost = Task.make("logs-lost", { payload })
      yield* Workers.start(
        lost.toLayer(() => Effect.andThen(Effect.log("here"), Effect.never)).pipe(Layer.provide(quiet)),
        { queues: ["l7"] }
      )
      const cancelled = yield* lost.enqueue(undefined, { queue: "l7" })
      yield* Workers.begins(cancelled)
      yield* Workers.cancel(cancelled)
      assert.deepStrictEqual((yield* logs(cancelled)).map((log) => log?.lines), [undefined])
    }))

  it.effect("the level is the worker's to choose, behind Effect's own, and false keeps none", () =>
    Effect.gen(function*() {
      const say = Effect.andThen(
        Effect.logDebug("debug"),
        Effect.andThen(Effect.log("info"), Effect.logWarning("warn"))
      )
      const kinds = ["all", "warn", "none"] as const
      const attemptLogs = { all: { level: "Trace" }, warn: { level: "Warn" }, none: false } as const
      const found: Record<string, unknown> = {}
      for (const kind of kinds) {
        const task = Task.make(`logs-${kind}`, { payload, error: Broken, retry })
        const debug = Layer.succeed(References.MinimumLogLevel, "Debug")
        const handlers = task.toLayer(() => Effect.andThen(say, Effect.fail(broken))).pipe(
          Layer.provide(Layer.merge(quiet, debug))
        )
        yield* Workers.start(handlers, { queues: [kind], attemptLogs: attemptLogs[kind] })
        const id = yield* task.enqueue(undefined, { queue: kind })
        yield* Workers.settled(id, "retryable")
        found[kind] = yield* messages(id)
      }
      assert.deepStrictEqual(found, {
        all: ["Debug debug", "Info info", "Warn warn"],
        warn: ["Warn warn"],
        none: undefined
      })
    }))

  it.effect("the application's own loggers hear what they heard before", () =>
    Effect.gen(function*() {
      const heard: Array<unknown> = []
      const own = Logger.layer([Logger.make(({ message }) => void heard.push(message))])
      const task = Task.make("logs-app", { payload })
      yield* Workers.start(task.toLayer(() => Effect.log("hello")).pipe(Layer.provide(own)), { queues: ["l8"] })
      const id = yield* task.enqueue(undefined, { queue: "l8" })
      yield* Workers.settled(id, "completed")
      assert.deepStrictEqual(heard, [["hello"]])
    }))

  it.effect("options outside their limits are refused with the limit", () =>
    Effect.sync(() => {
      const refusals = [{ maxLines: 0 }, { maxLines: 1001 }, { maxBytes: 1023 }, { maxBytes: 65_537 }].map((options) =>
        Result.getFailure(logSettingsOf(options))
      )
      assert.deepStrictEqual(refusals.map((refusal) => refusal._tag === "Some" ? refusal.value.limit : undefined), [
        1,
        1000,
        1024,
        65_536
      ])
    }))

  it.effect("a value that cannot be read sinks neither the line nor the attempt", () =>
    Effect.gen(function*() {
      const hostile = Object.defineProperty({}, "field", {
        enumerable: true,
        get: () => {
          throw new Error("unreadable")
        }
      })
      const task = Task.make("logs-hostile", { payload, error: Broken, retry })
      const run = Effect.andThen(Effect.log(hostile, () => 1, Symbol("s"), 10n), Effect.fail(broken))
      yield* Workers.start(task.toLayer(() => run).pipe(Layer.provide(quiet)), { queues: ["l9"] })
      const id = yield* task.enqueue(undefined, { queue: "l9" })
      yield* Workers.settled(id, "retryable")
      assert.deepStrictEqual((yield* Inspect.use((inspect) => inspect.attempts(id))).map(({ outcome }) => outcome), [
        "retry"
      ])
      assert.deepStrictEqual(yield* messages(id), ["Info { field: undefined } [function] Symbol(s) 10"])
    }))
})
