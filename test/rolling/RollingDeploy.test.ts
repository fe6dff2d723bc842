import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Fiber } from "effect"
import * as Child from "../faults/fixtures/Child.ts"
import * as Site from "../faults/fixtures/Site.ts"
import * as Watch from "../faults/fixtures/Watch.ts"
import * as First from "./fixtures/First.ts"
import * as Second from "./fixtures/Second.ts"

const entries = {
  first: new URL("./fixtures/first-worker.ts", import.meta.url),
  second: new URL("./fixtures/second-worker.ts", import.meta.url)
}
type Build = keyof typeof entries

/** One job of each task and producer, round after round. */
const producer = Effect.fnUntraced(function*(site: Site.Site, build: Build) {
  const ids: Array<string> = []
  const id = (task: string, n: number) => ({ id: `${build} ${task} ${n}` })
  const round = (n: number) =>
    build === "first"
      ? Effect.all([
        First.Invoice.enqueue({ to: "ada" }, id("invoice", n)),
        First.Import.enqueue(undefined, id("import", n)),
        First.Sync.enqueue(undefined, id("orders", n))
      ])
      : Effect.all([
        Second.Invoice.enqueue({ to: ["ada", "bob"] }, id("invoice", n)),
        Second.Import.enqueue(undefined, id("import", n)),
        Second.Orders.enqueue(undefined, id("orders", n))
      ])
  let n = 0
  // A round under way is finished: what was stored is known.
  const next = Effect.uninterruptible(
    Effect.suspend(() => Effect.map(site.use(round(n++)), (made) => void ids.push(...made)))
  )
  const fiber = yield* Effect.forkScoped(Effect.forever(Effect.delay(next, 60)))
  return { ids, stop: Fiber.interrupt(fiber) }
})

const start = Effect.fnUntraced(function*(url: string, build: Build) {
  const child = yield* Child.start(entries[build], { DATABASE_URL: url })
  yield* Watch.untilTrue(() => child.told("up").length > 0, `a process of the ${build} build`)
  return { build, child }
})
type Process = Effect.Success<ReturnType<typeof start>>

/** As a deployment ends a process, while it has imports between two steps. */
const end = Effect.fnUntraced(function*({ child }: Process) {
  const already = child.lines.length
  yield* Watch.untilTrue(
    () => child.lines.slice(already).some(({ step }) => step === "download" || step === "fetch"),
    "an import to be under way"
  )
  process.kill(child.pid, "SIGTERM")
  yield* Watch.untilTrue(() => !child.isAlive(), "the process to end")
})

layer(TestDatabase.layer, { excludeTestServices: true })("A rolling deploy, with a rollback on its way", (it) => {
  it.effect(
    "loses nothing, reads everything, and gives nothing newer to the old build",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const site = yield* Site.open(url)
        const [one, two] = yield* Effect.all([start(url, "first"), start(url, "first")], { concurrency: 2 })
        const old = yield* producer(site, "first")
        yield* Watch.untilTrue(() => one.child.told("ran").length > 10, "the old build to be at work")
        const third = yield* start(url, "second")
        const fresh = yield* producer(site, "second")
        yield* Watch.untilTrue(() => third.child.told("ran").length > 10, "the new build to be at work")
        yield* end(one)
        yield* end(third)
        const fourth = yield* start(url, "second")
        yield* end(two)
        yield* Effect.all([old.stop, fresh.stop])

        const ids = [...old.ids, ...fresh.ids]
        const processes = [one, two, third, fourth]
        const explain = processes.reduce(
          (effect, { child }) => Child.explaining(child)(effect),
          verdict(ids, processes)
        )
        yield* explain
      }).pipe(Effect.scoped),
    240_000
  )
})

const verdict = Effect.fnUntraced(function*(ids: ReadonlyArray<string>, processes: ReadonlyArray<Process>) {
  const sql = yield* PgClient.PgClient
  const open = sql<{ yes: boolean }>`SELECT NOT EXISTS (SELECT FROM headgate.job WHERE id = ANY(${ids})
    AND state IN ('available', 'scheduled', 'retryable', 'running')) AS yes`
  yield* Watch.untilRow(open, "all jobs to end")
  const harmed =
    yield* sql`SELECT i.id, j.state, j.reason, j.attempt, j.crash_attempt FROM unnest(${ids}::text[]) AS i(id)
    LEFT JOIN headgate.job j ON j.id = i.id
    WHERE (j.state, j.attempt, j.crash_attempt) IS DISTINCT FROM ('completed', 0, 0)`
  assert.deepStrictEqual(harmed, [])

  const told = processes.flatMap(({ build, child }) =>
    child.lines.map(({ at, id, payload, step, task, what }) => ({ at, id, payload, step, task, what, build }))
  )
    .sort((a, b) => a.at - b.at)
  const ran = told.filter(({ what }) => what === "ran")
  // The old build knows neither the new versions nor the new name.
  assert.deepStrictEqual(ran.filter(({ build, id }) => build === "first" && !String(id).startsWith("first")), [])
  assert.isAbove(ran.filter(({ build, id }) => build === "second" && String(id).startsWith("first invoice")).length, 0)
  for (const { build, id, payload } of ran.filter(({ task }) => task === "invoice")) {
    const isOld = String(id).startsWith("first")
    assert.deepStrictEqual(payload, build === "first" ? "ada" : isOld ? ["ada"] : ["ada", "bob"])
  }

  // Each import was fetched and stored once, by whichever build; what the new one has begun stays with it.
  const imports = ids.filter((id) => id.includes("import")).map((id) =>
    told.filter((line) => line.what === "body" && line.id === id)
  )
  for (const bodies of imports) {
    const steps = bodies.map(({ step }) => step === "download" ? "fetch" : step)
    assert.deepStrictEqual(steps.filter((step) => step !== "check"), ["fetch", "store"])
    const builds = bodies.map(({ build }) => build)
    assert.deepStrictEqual(builds, builds.toSorted())
  }
  const shared = imports.filter((bodies) => new Set(bodies.map(({ build }) => build)).size === 2)
  assert.isAbove(shared.length, 0, "imports that one build began and the other ended")
})
