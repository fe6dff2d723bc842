import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import {
  type AttemptRefusal,
  type AttemptServices,
  ConcurrencyLimit,
  type InterruptionReason,
  Job,
  Retry,
  Step,
  Task
} from "@headgate/core"
import { Deferred, Effect, Option, Schema } from "effect"
import * as Workers from "./Workers.ts"

const payload = Schema.Void
const retry = Retry.fixed("20 millis", { jitter: 0 })
class Broken extends Schema.TaggedError<Broken>()("Broken", { part: Schema.String }) {}

interface Way {
  readonly timeout?: number
  readonly stallTimeout?: number
  readonly deadline?: number
  readonly limits?: ReadonlyArray<ConcurrencyLimit>
  readonly stepTimeout?: number
  /** Done from outside, once the handler runs. */
  readonly done?: "cancel" | "stop" | "enqueue another" | "take over"
}

/** How each reason comes about: a new one does not compile without. */
const ways: Record<InterruptionReason, Way> = {
  timeout: { timeout: 4000 },
  step_timeout: { stepTimeout: 150 },
  progress_stalled: { stallTimeout: 4000 },
  deadline: { deadline: 4000 },
  operator_cancel: { done: "cancel" },
  superseded: {
    limits: [ConcurrencyLimit.make("newest", { scope: "key", max: 1, onSaturated: "cancel_running" })],
    done: "enqueue another"
  },
  shutdown: { done: "stop" },
  lease_lost: { done: "take over" }
}

const takeOver = (id: string) =>
  Effect.flatMap(
    PgClient.PgClient,
    (sql) => sql`UPDATE headgate.job SET lease_id = gen_random_uuid(), fence = fence + 1 WHERE id = ${id}`
  )

const dies = Effect.die(new Error("finalizer"))

layer(Workers.layer, { excludeTestServices: true })("Dispatch", (it) => {
  for (const [why, { done, ...options }] of Object.entries(ways)) {
    it.effect(`a finalizer reads why it was interrupted: ${why}`, () =>
      Effect.gen(function*() {
        const task = Task.make(why, { payload, ...options })
        const isRunning = yield* Deferred.make<void>()
        const reason = yield* Deferred.make<string | undefined>()
        let runs = 0
        const hang = Step.run("hangs", Effect.andThen(Deferred.succeed(isRunning, undefined), Effect.never))
        const noted = Effect.onInterrupt(hang, () =>
          Effect.flatMap(Job.interruption, (why) => Deferred.succeed(reason, Option.getOrUndefined(why))))
        const handler = task.toLayer(() =>
          Effect.suspend(() => ++runs === 1 ? noted : Effect.void)
        )
        const worker = yield* Workers.start(handler, { queues: [why], concurrency: 2, lease: "5 seconds" })
        const enqueue = task.enqueue(undefined, { queue: why })
        const id = yield* enqueue
        yield* Deferred.await(isRunning)
        if (done === "cancel") yield* Workers.cancel(id)
        if (done === "stop") yield* worker.stop
        if (done === "enqueue another") yield* enqueue
        if (done === "take over") yield* takeOver(id)
        assert.strictEqual(yield* Effect.timeout(Deferred.await(reason), "25 seconds"), why)
      }))
  }

  it.effect("finalizers that die change no outcome: not in the attempt's scope, nor behind an ending, wherever they are", () =>
    Effect.gen(function*() {
      const hows = ["succeeds", "fails", "times out", "step times out", "snoozes", "skips", "releases"] as const
      const task = Task.make("untidy", {
        payload: Schema.Struct({ how: Schema.Literals(hows), isInside: Schema.Boolean }),
        success: Schema.Void,
        error: Broken,
        maxAttempts: 1
      })
      let releases = 0
      const ending = (how: typeof hows[number]): Effect.Effect<void, Broken | AttemptRefusal, AttemptServices> => {
        switch (how) {
          case "succeeds":
            return Effect.void
          case "fails":
            return new Broken({ part: "door" })
          case "times out":
            return Effect.never
          case "step times out":
            return Step.run("hangs", Effect.never, { timeout: "150 millis" })
          case "snoozes":
            return Job.snooze("1 hour")
          case "skips":
            return Job.skip("no need")
          case "releases":
            return Effect.suspend(() => releases++ < 2 ? Job.release : Effect.void)
        }
      }
      const handler = task.toLayer(({ how, isInside }) =>
        isInside
          ? Effect.ensuring(ending(how), dies)
          : Effect.andThen(Effect.addFinalizer(() => dies), ending(how))
      )
      yield* Workers.start(handler, { queues: ["u1"] })
      const states = {
        succeeds: "completed",
        fails: "archived",
        "times out": "archived",
        "step times out": "archived",
        snoozes: "scheduled",
        skips: "archived",
        releases: "completed"
      } as const
      for (const how of hows) {
        for (const isInside of [false, true]) {
          // A handler that answers, and whose own finalizer dies behind that, has not answered: that is a defect of its own.
          if (isInside && (how === "succeeds" || how === "releases")) continue
          const timeout = how === "times out" ? { timeout: "2 seconds" } as const : {}
          const id = yield* task.enqueue({ how, isInside }, { queue: "u1", ...timeout })
          yield* Workers.settled(id, states[how])
          const { attempt, crashAttempt, reason } = yield* Workers.job(id)
          const where = `${how}, ${isInside ? "inside" : "in its scope"}`
          assert.strictEqual(crashAttempt, 0, where)
          const isCharged = how === "fails" || how.endsWith("out")
          assert.deepStrictEqual([attempt, reason ?? "none"], [
            isCharged ? 1 : 0,
            isCharged ? "exhausted" : how === "skips" ? "skipped" : "none"
          ], where)
        }
      }
    }))

  it.effect("finalizers that hang are waited for a bounded time, and change no outcome", () =>
    Effect.gen(function*() {
      const hows = ["fails", "times out", "snoozes", "is cancelled"] as const
      const task = Task.make("hangs", { payload: Schema.Literals(hows), error: Broken, maxAttempts: 1 })
      const gate = yield* Deferred.make<void>()
      const handler = task.toLayer((how) => {
        const ended = how === "fails"
          ? new Broken({ part: "lock" })
          : how === "snoozes"
          ? Job.snooze("1 hour")
          : Effect.never
        return how === "fails"
          ? Effect.andThen(Effect.addFinalizer(() => Deferred.await(gate)), ended)
          : Effect.ensuring(ended, Deferred.await(gate))
      })
      const worker = yield* Workers.start(handler, { queues: ["h1"], lease: "1 second", handlerGrace: "200 millis" })
      const states = {
        fails: "archived",
        "times out": "archived",
        snoozes: "scheduled",
        "is cancelled": "cancelled"
      } as const
      for (const how of hows) {
        const timeout = how === "times out" ? { timeout: "2 seconds" } as const : {}
        const id = yield* task.enqueue(how, { queue: "h1", ...timeout })
        if (how === "is cancelled") {
          yield* Workers.begins(id)
          yield* Workers.cancel(id)
        }
        yield* Workers.settled(id, states[how])
        yield* Workers.untilTrue(() => worker.told("JobStuck", id).length === 1, `${how} to be told`)
        assert.deepStrictEqual(yield* Workers.counters(id), {
          attempt: how === "fails" || how === "times out" ? 1 : 0,
          crashAttempt: 0
        }, how)
      }
      assert.strictEqual((yield* worker.health).zombies, 4)
      yield* Deferred.succeed(gate, undefined)
      yield* Workers.eventually(worker.health, ({ zombies }) => zombies === 0)
    }))

  it.effect("a finalizer that dies or hangs behind a cancel or a lost lease leaves the job to whom it belongs", () =>
    Effect.gen(function*() {
      const task = Task.make("not-its-own", { payload: Schema.Literals(["dies", "hangs"]), retry })
      const gate = yield* Deferred.make<void>()
      const handler = task.toLayer((how) => Effect.ensuring(Effect.never, how === "dies" ? dies : Deferred.await(gate)))
      const worker = yield* Workers.start(handler, { queues: ["c1"], lease: "5 seconds", handlerGrace: "200 millis" })
      for (const how of ["dies", "hangs"] as const) {
        const id = yield* task.enqueue(how, { queue: "c1" })
        yield* Workers.begins(id)
        yield* takeOver(id)
        yield* Workers.untilTrue(() => worker.told("LeaseLost", id).length === 1, "the loss to be told")
        assert.deepStrictEqual([yield* Workers.stateOf(id), yield* Workers.counters(id)], [
          "running",
          { attempt: 0, crashAttempt: 0 }
        ], how)
        yield* Workers.cancel(id)
      }
      yield* Deferred.succeed(gate, undefined)
    }))
})
