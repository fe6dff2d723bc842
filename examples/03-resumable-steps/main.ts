/** An attempt fails halfway; the next one goes on where it failed instead of starting over. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, Schema } from "effect"
import { Inspect, Job, PostgresStore, Retry, Task, Worker } from "headgate"

class NetworkDown extends Schema.TaggedError<NetworkDown>()("NetworkDown", {}) {}

const ImportOrders = Task.make("orders:import", {
  payload: Schema.Struct({ shop: Schema.String }),
  error: NetworkDown,
  steps: ["login", "download", "publish"],
  retry: Retry.fixed("100 millis")
})

const ImportOrdersHandler = ImportOrders.toLayer(Effect.fn(function*({ shop }) {
  yield* Console.log(`attempt ${(yield* Job.facts).attempt + 1}`)
  // The token is stored with the step: a later attempt gets it back without logging in again.
  const token = yield* ImportOrders.step("login", login(shop), { result: Schema.String })
  // A loop with a durable position: a later attempt starts at the last page that was not saved.
  yield* ImportOrders.cursor("download", { schema: Schema.Int, initial: 1 }, (first, save) =>
    Effect.gen(function*() {
      for (let page = first; page <= 3; page++) {
        yield* download(token, page)
        yield* save(page + 1)
      }
    }))
  // These rows are committed together with the record that the step has run: exactly once, whatever happens.
  yield* ImportOrders.once("publish", publish(shop))
}))

const login = (shop: string) => Effect.as(Console.log(`  log in to ${shop}`), "token")

const download = Effect.fn(function*(token: string, page: number) {
  const { attempt } = yield* Job.facts
  if (page === 3 && attempt === 0) {
    yield* Console.log("  the network is down")
    return yield* new NetworkDown()
  }
  yield* Console.log(`  page ${page}, by ${token}`)
})

const publish = Effect.fn(function*(shop: string) {
  const sql = yield* PgClient.PgClient
  yield* Console.log("  publish")
  yield* sql`INSERT INTO published (shop) VALUES (${shop})`
})

const program = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  yield* sql`CREATE TABLE published (shop text NOT NULL)`
  const id = yield* ImportOrders.enqueue({ shop: "the bookshop" })
  yield* ImportOrders.await(id).pipe(Effect.provide(Workers))
  const job = yield* Inspect.use((inspect) => inspect.job(id))
  const published = yield* sql`SELECT shop FROM published`
  yield* Console.log(`${job.state} after ${job.attempt} failure, published ${published.length} time`)
})

const Workers = Worker.layer().pipe(Layer.provide(ImportOrdersHandler))

const Store = PostgresStore.layer.pipe(Layer.provideMerge(EmbeddedPostgres.layerClient()))

await Effect.runPromise(program.pipe(Effect.provide(Store)))
