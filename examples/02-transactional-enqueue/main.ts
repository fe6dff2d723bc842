/** A job enqueued inside a transaction of the application's own: it exists if, and only if, that transaction commits. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, Schema } from "effect"
import { Inspect, PostgresStore, Task, Worker } from "headgate"

class CardDeclined extends Schema.TaggedError<CardDeclined>()("CardDeclined", {}) {}

const SendReceipt = Task.make("receipts:send", { payload: Schema.Struct({ order: Schema.String }) })

const SendReceiptHandler = SendReceipt.toLayer(Effect.fn(function*({ order }) {
  yield* Console.log(`a receipt for the ${order} is sent`)
}))

/** The order and its receipt job are stored together, or not at all. */
const placeOrder = Effect.fn(function*(order: string, charge: Effect.Effect<void, CardDeclined>) {
  const sql = yield* PgClient.PgClient
  return yield* sql.withTransaction(Effect.gen(function*() {
    yield* sql`INSERT INTO orders (item) VALUES (${order})`
    const id = yield* SendReceipt.enqueue({ order })
    yield* charge
    return id
  }))
})

const program = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  yield* sql`CREATE TABLE orders (item text NOT NULL)`

  yield* placeOrder("teapot", new CardDeclined()).pipe(
    Effect.catchTag("CardDeclined", () => Console.log("the card for the teapot was declined"))
  )
  yield* report
  const id = yield* placeOrder("kettle", Effect.void)
  yield* report

  yield* SendReceipt.await(id).pipe(Effect.provide(Workers))
})

const report = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const orders = yield* sql`SELECT item FROM orders`
  const { counts } = yield* Inspect.use((inspect) => inspect.counts())
  yield* Console.log(`orders: ${orders.length}, jobs: ${counts.available}`)
})

const Workers = Worker.layer().pipe(Layer.provide(SendReceiptHandler))

const Store = PostgresStore.layer.pipe(Layer.provideMerge(EmbeddedPostgres.layerClient()))

await Effect.runPromise(program.pipe(Effect.provide(Store)))
