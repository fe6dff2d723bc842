import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Inspect, Once, Step, Task } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Deferred, Effect, Fiber, Layer, Option, Schema } from "effect"
import { spawn } from "node:child_process"
import { join } from "node:path"
import * as Attempts from "./Attempts.ts"
import { KilledTask } from "./killed-worker.ts"
import * as Workers from "./Workers.ts"

const payload = Schema.Void

/** The application's own tables. */
const tables = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) =>
    Effect.andThen(
      sql`CREATE TABLE ledger (job text NOT NULL)`,
      sql`CREATE TABLE bodies (step text NOT NULL, pid int NOT NULL)`
    ))
)

layer(Layer.provideMerge(tables, Attempts.layer), { excludeTestServices: true })("AttemptSteps", (it) => {
  const borders = [
    "before reserve",
    "in reserve",
    "after reserve",
    "in email",
    "after email",
    "in ship",
    "after ship"
  ] as const
  /** How the first owner can learn that it lost the job, and how far the second one is by then. */
  const ways = [
    "told by the store, when the second has finished",
    "told by the store, while the second is at work",
    "told by its own clock"
  ] as const

  for (const [at, border] of borders.entries()) {
    for (const [way, title] of ways.entries()) {
      it.effect(`an owner that stalls ${border} starts no further body once another owns the job: ${title}`, () =>
        Effect.gen(function*() {
          const task = Task.make(`stalled-${at}-${way}`, {
            payload,
            steps: ["reserve", "email", "ship"],
            crashLimit: 10
          })
          const id = yield* task.enqueue(undefined)
          const { entries, say } = Attempts.log()
          const handler = (name: string, pause: (border: string) => Effect.Effect<void>) =>
            Effect.gen(function*() {
              const sql = yield* PgClient.PgClient
              yield* pause("before reserve")
              const reserve = Effect.andThen(sql`INSERT INTO ledger VALUES (${id})`, say(`${name} reserve`))
              yield* Once.run("reserve", Effect.andThen(reserve, pause("in reserve")))
              yield* pause("after reserve")
              yield* Step.run("email", Effect.andThen(say(`${name} email`), pause("in email")))
              yield* pause("after email")
              yield* Step.run("ship", Effect.andThen(say(`${name} ship`), pause("in ship")))
              yield* pause("after ship")
            })
          const [a, stall] = [yield* Attempts.worker({ guessMs: way === 2 ? 60_000 : 0 }), yield* barrier]
          const heldByA = yield* a.claim(task)
          const fiberA = yield* a.start(heldByA, handler("A", (now) => now === border ? stall.wait : Effect.void))
          yield* stall.reached
          yield* Attempts.crash()
          if (way === 2) heldByA.lease.until = 0
          const before = entries.length
          const [b, midway] = [yield* Attempts.worker(), yield* barrier]
          const heldByB = yield* b.claim(task)
          const pauseB = (now: string) => way === 1 && now === "in email" ? midway.wait : Effect.void
          const fiberB = yield* b.start(heldByB, handler("B", pauseB))
          // Within the transaction of a stalled once, the second owner waits for the first one's effect key.
          if (border !== "in reserve") yield* Effect.race(Fiber.await(fiberB), midway.reached)
          yield* stall.open
          const ranA = yield* a.settle(heldByA, yield* Fiber.await(fiberA))
          yield* midway.open
          const ranB = yield* b.settle(heldByB, yield* Fiber.await(fiberB))
          const after = entries.slice(before)
          assert.isEmpty(after.filter((entry) => entry.startsWith("A")))
          // What the first had recorded is not done again, the rest is, once.
          const done = { "before reserve": 0, "in reserve": 0, "after reserve": 1, "in email": 1 }[border as string] ??
            { "after email": 2, "in ship": 2, "after ship": 3 }[border as string]
          assert.deepStrictEqual(after, ["B reserve", "B email", "B ship"].slice(done))
          const sql = yield* PgClient.PgClient
          const rows = yield* sql`SELECT 1 AS one FROM ledger WHERE job = ${id}`
          const job = yield* (yield* Inspect).job(id)
          assert.deepStrictEqual([rows.length, job.state, ranB.outcome?._tag, job.crashAttempt], [
            1,
            "completed",
            "Success",
            1
          ])
          if (border !== "after ship") assert.strictEqual(Attempts.ending(ranA), "lease_lost")
        }))
    }
  }

  it.effect(
    "whatever step the process dies at, identities are stable: 200 runs of loops, parallel branches and a race",
    () =>
      Effect.gen(function*() {
        for (let seed = 1; seed <= 200; seed++) yield* survive(seed)
      }),
    240_000
  )

  for (
    const [title, stopAt, recorded, crashes] of [
      ["in a body", "body s2", ["s0", "s1"], { s2: 1 }],
      ["between steps", "after s1", ["s0", "s1"], { s2: 1 }],
      ["behind the last step", "after s4", ["s0", "s1", "s2", "s3", "s4"], {}]
    ] as const
  ) {
    it.effect(`a process killed ${title} loses nothing that was recorded`, () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const sql = yield* PgClient.PgClient
        const id = yield* KilledTask.enqueue({ stopAt })
        const script = join(import.meta.dirname, "killed-worker.ts")
        const child = yield* Effect.acquireRelease(
          Effect.sync(() => spawn(process.execPath, [...process.execArgv, script, url], { stdio: "inherit" })),
          (child) => Effect.sync(() => child.kill("SIGKILL"))
        )
        const stopped = Effect.map(
          sql`SELECT 1 AS one FROM bodies WHERE step = ${`stopped ${stopAt}`}`,
          (rows) => rows.length > 0 ? Option.some(true) : Option.none()
        )
        yield* Workers.until(stopped, "the child to come to its stop", 20_000)
        child.kill("SIGKILL")
        yield* Attempts.crash()
        const checkpoint = yield* (yield* Inspect).checkpoint(id)
        assert.deepStrictEqual(checkpoint?.records.map(({ step }) => step), [...recorded])
        assert.deepStrictEqual(checkpoint?.crashesByStep, crashes)
        const worker = yield* Attempts.worker()
        const { entries, say } = Attempts.log()
        const { exit } = yield* worker.run(KilledTask, KilledTask.handle((step) => say(step), () => Effect.void))
        assert.deepStrictEqual(entries, ["s0", "s1", "s2", "s3", "s4"].slice(recorded.length))
        assert.deepStrictEqual(exit._tag === "Success" && exit.value, [0, 1, 2, 3, 4])
      }))
  }
})

/** A place to be held at: `reached` tells the test, `open` lets go. */
const barrier = Effect.gen(function*() {
  const reached = yield* Deferred.make<void>()
  const open = yield* Deferred.make<void>()
  return {
    wait: Effect.andThen(Deferred.succeed(reached, undefined), Deferred.await(open)),
    reached: Deferred.await(reached),
    open: Deferred.succeed(open, undefined)
  }
})

/** Runs one job to its end, its process dying after some record in each of a few attempts. */
const survive = Effect.fnUntraced(function*(seed: number) {
  const random = mulberry32(seed)
  const task = Task.make(`seed-${seed}`, { payload, crashLimit: 100 })
  yield* task.enqueue(undefined)
  const recorded = new Set<string>()
  const bodies: Array<string> = []
  const body = <A>(name: string, answer: A, delayMs: number) =>
    Effect.suspend(() => {
      assert.isFalse(recorded.has(name), `seed ${seed}: ${name} ran again after it was recorded`)
      bodies.push(name)
      return Effect.delay(Effect.succeed(answer), delayMs)
    })
  const step = (name: string, key: string | undefined, delayMs: number) => {
    const identity = key === undefined ? name : `${name}[${key}]`
    return Step.run(name, body(identity, identity, delayMs), { key, result: Schema.String })
  }
  let isSettledRace = false
  const handler = Effect.gen(function*() {
    const loop: Array<string> = []
    for (const key of ["1", "2", "3"]) loop.push(yield* step("p", key, 0))
    const branches = yield* Effect.all(["a", "b", "c", "d", "e"].map((key) => step("q", key, random() * 3)), {
      concurrency: 5
    })
    const before = bodies.filter((name) => name === "C").length
    const winner = yield* Effect.race(step("A", undefined, 1), step("C", undefined, 50))
    if (isSettledRace) assert.strictEqual(bodies.filter((name) => name === "C").length, before)
    isSettledRace = true
    return [...loop, ...branches, winner, yield* step("B", undefined, 0)]
  })
  for (;;) {
    const isLast = random() < 0.3
    let left = isLast ? Number.POSITIVE_INFINITY : 1 + Math.floor(random() * 8)
    const dead = yield* Deferred.make<void>()
    const worker = yield* Attempts.worker({
      way: (batch, send) =>
        Effect.gen(function*() {
          const steps = batch.flatMap(({ record }) => record === undefined ? [] : [record.step])
          if (left <= 0) return yield* Effect.never
          left -= steps.length
          // The process dies before the write reaches the store, or before its answer comes back.
          if (left <= 0 && random() < 0.5) return yield* Effect.andThen(Deferred.succeed(dead, undefined), Effect.never)
          const answer = yield* send(batch)
          for (const name of steps) recorded.add(name)
          if (left <= 0) return yield* Effect.andThen(Deferred.succeed(dead, undefined), Effect.never)
          return answer
        })
    })
    const held = yield* worker.claim(task)
    const fiber = yield* worker.start(held, handler)
    const exit = yield* Effect.race(Effect.asSome(Fiber.await(fiber)), Effect.as(Deferred.await(dead), Option.none()))
    if (Option.isSome(exit)) {
      const ran = yield* worker.settle(held, exit.value)
      const q = ["a", "b", "c", "d", "e"].map((key) => `q[${key}]`)
      assert.deepStrictEqual(ran.exit._tag === "Success" && ran.exit.value, ["p[1]", "p[2]", "p[3]", ...q, "A", "B"])
      return
    }
    fiber.interruptUnsafe()
    yield* Attempts.crash()
  }
})

/** Small, and the same on every machine. */
const mulberry32 = (seed: number) => () => {
  seed = seed + 0x6d2b79f5 | 0
  let t = Math.imul(seed ^ seed >>> 15, 1 | seed)
  t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t
  return ((t ^ t >>> 14) >>> 0) / 4_294_967_296
}
