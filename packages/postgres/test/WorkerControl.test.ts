import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Heartbeat, type HeartbeatOptions } from "@headgate/core/Heartbeat"
import { Inspect } from "@headgate/core/Inspect"
import { type WorkerCommand, WorkerControl } from "@headgate/core/WorkerControl"
import { Effect, Option, Queue } from "effect"
import * as Jobs from "./Jobs.ts"
import * as Store from "./Store.ts"

const leaseMs = 1000
const options: HeartbeatOptions = {
  worker: Jobs.workerId("w1"),
  queues: ["default"],
  kinds: [{ kind: "greet", version: 1 }],
  capacity: 8,
  leaseMs,
  maxBlockedMs: 10 * leaseMs
}

const tell = (command: WorkerCommand, actor?: string, worker = "w1") =>
  WorkerControl.use((control) => control.tell(Jobs.workerId(worker), command, actor))

const start = (changes: Partial<HeartbeatOptions> = {}) =>
  Effect.gen(function*() {
    const session = yield* (yield* Heartbeat).start({ ...options, ...changes })
    if (session.orders === undefined || session.stand === undefined) {
      return yield* Effect.die("a store that cannot tell")
    }
    return {
      told: Effect.timeout(Queue.take(session.orders), "1 minute"),
      orders: session.orders,
      stand: session.stand
    }
  })

const listed = Effect.map(Inspect.use(({ workers }) => workers), (all) => all.find(({ id }) => id === "w1"))

const eventually = <A, E, R>(look: Effect.Effect<A, E, R>, isWanted: (answer: A) => boolean) =>
  Effect.timeout(Effect.repeat(Effect.delay(look, 20), { until: isWanted }), "1 minute")

layer(Store.layer, { excludeTestServices: true })("WorkerControl.tell", (it) => {
  it.effect("reaches the worker with the next heartbeat's answer, once, and is shown until it is taken up and after", () =>
    Effect.gen(function*() {
      const { orders, stand, told } = yield* start()
      yield* Effect.sleep(leaseMs / 2)
      const seq = yield* tell("quiet", "ada")
      const heard = yield* told
      assert.deepInclude(heard, { seq, command: "quiet", actor: "ada", isQuiet: true, end: undefined })
      assert.deepInclude((yield* listed)?.command, { seq, command: "quiet", actor: "ada", isApplied: false })
      assert.strictEqual((yield* listed)?.status, "working")
      assert.isTrue(Option.isNone(yield* Effect.timeoutOption(told, leaseMs)))
      stand({ appliedSeq: heard.seq, isQuiet: true, isResigned: false, isDraining: false })
      const worker = yield* eventually(listed, (worker) => worker?.command?.isApplied === true)
      assert.strictEqual(worker?.status, "quiet")
      assert.strictEqual(yield* Queue.size(orders), 0)
    }).pipe(Effect.scoped))

  it.effect("loses none of the commands that come between two heartbeats", () =>
    Effect.gen(function*() {
      const { told } = yield* start({ leaseMs: 4000 })
      const seqs = yield* Effect.all([tell("quiet"), tell("resign"), tell("terminate"), tell("restart")])
      const heard = yield* Effect.repeat(told, { until: ({ seq }) => seq === seqs[3] })
      assert.deepInclude(heard, { command: "restart", isQuiet: true, isResigned: true, end: "terminate" })
    }).pipe(Effect.scoped))

  it.effect("resume takes back quiet and resign, and no end", () =>
    Effect.gen(function*() {
      const { told } = yield* start({ leaseMs: 4000 })
      const seqs = yield* Effect.all([tell("quiet"), tell("resign"), tell("restart"), tell("resume")])
      const heard = yield* Effect.repeat(told, { until: ({ seq }) => seq === seqs[3] })
      assert.deepInclude(heard, { isQuiet: false, isResigned: false, end: "restart" })
    }).pipe(Effect.scoped))

  it.effect("a worker that is unknown, dead or gone is not found", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* Effect.scoped(start())
      const gone = yield* Effect.flip(tell("quiet"))
      assert.deepInclude(gone, { _tag: "NotFound", id: "w1", message: "no worker w1 is alive" })
      yield* sql`INSERT INTO headgate.worker (id, queues, kinds, versions, capacity, lease_ms, running, started_at_ms, seen_at_ms)
        VALUES ('dead', '{}', '{}', '{}', 1, 1000, 0, 0, headgate.now_ms() - 1000)`
      assert.strictEqual((yield* Effect.flip(tell("quiet", undefined, "dead")))._tag, "NotFound")
      assert.strictEqual((yield* Effect.flip(tell("quiet", undefined, "w\0")))._tag, "NotFound")
    }))

  it.effect("what was told to an earlier life of an id is not for the next", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      // A process that died left its row.
      yield* sql`INSERT INTO headgate.worker (id, queues, kinds, versions, capacity, lease_ms, running, started_at_ms, seen_at_ms)
        VALUES ('w1', '{}', '{}', '{}', 1, 60000, 0, 0, headgate.now_ms())`
      const before = yield* tell("terminate")
      const { told } = yield* start()
      assert.isTrue(Option.isNone(yield* Effect.timeoutOption(told, leaseMs)))
      assert.deepInclude(yield* listed, { command: undefined, status: "working" })
      assert.isAbove(yield* tell("resign"), before)
      assert.deepInclude(yield* told, { command: "resign", isResigned: true, end: undefined })
    }).pipe(Effect.scoped))

  it.effect("a worker whose row was removed is told what comes after", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const { stand, told } = yield* start()
      yield* tell("quiet")
      const { seq } = yield* told
      stand({ appliedSeq: seq, isQuiet: true, isResigned: false, isDraining: false })
      yield* eventually(listed, (worker) => worker?.command?.isApplied === true)
      yield* sql`DELETE FROM headgate.worker`
      yield* eventually(listed, (worker) => worker !== undefined)
      yield* tell("resume")
      assert.deepInclude(yield* told, { command: "resume", isQuiet: false })
    }).pipe(Effect.scoped))

  it.effect("a command that no worker knows is refused", () =>
    Effect.gen(function*() {
      yield* start()
      for (const command of ["pause", "", "qu\0iet"]) {
        const refusal = yield* Effect.flip(tell(command as WorkerCommand))
        assert.deepInclude(refusal, { _tag: "Invalid", field: "command" })
      }
    }).pipe(Effect.scoped))

  it.effect("an actor that cannot be stored is refused", () =>
    Effect.gen(function*() {
      const refusal = yield* Effect.flip(tell("quiet", "a".repeat(257)))
      assert.deepInclude(refusal, { _tag: "Invalid", field: "actor", limit: 256, actual: 257 })
      assert.deepInclude(yield* Effect.flip(tell("quiet", "a\0")), { _tag: "Invalid", field: "actor" })
    }))
})
