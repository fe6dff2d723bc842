/** Tenants spread over two stores: a router sends each job to the store of its shop, and each store has a worker. */
import { PgClient } from "@effect/sql-pg"
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Context, Effect, Layer, Redacted, Schema } from "effect"
import { Invalid, PostgresStore, Producer, type Store, Task, Worker } from "headgate"

const ImportOrders = Task.make("orders:import", {
  payload: Schema.Struct({ shop: Schema.String }),
  partitionKey: ({ shop }) => shop
})

/** The application's client of one database, and the store in it. */
type Shard = Context.Context<PgClient.PgClient | Store>

/** Here two schemas of one database stand for two databases, each of which would have a `url` of its own. */
const openShard = Effect.fn(function*(schema: string) {
  const { url } = yield* EmbeddedPostgres.EmbeddedPostgres
  const client = Layer.fresh(PgClient.layer({ url: Redacted.make(url) }))
  return yield* Layer.build(PostgresStore.layerWith({ schema }).pipe(Layer.provideMerge(client)))
})

/** A new shard must not move the shops of the others, so each shop is written down; here in a map. */
const placeOf = new Map([["apple", 0], ["pear", 1], ["plum", 1]])

class Router extends Context.Service<Router, {
  readonly shards: ReadonlyArray<Shard>
  readonly shardOf: (shop: string) => Shard
}>()("example/Router") {
  static readonly layer = Layer.effect(
    this,
    Effect.gen(function*() {
      const a = yield* openShard("shard_a")
      const b = yield* openShard("shard_b")
      return Router.of({ shards: [a, b], shardOf: (shop) => placeOf.get(shop) === 1 ? b : a })
    })
  )
}

/** Takes the place of a store's own `Producer`. A batch is stored whole or not at all, so it must be of one shard. */
const RoutedProducer = Layer.effect(
  Producer,
  Effect.gen(function*() {
    const { shardOf, shards } = yield* Router
    return Producer.of({
      enqueue: (batch) => {
        const [shard = shards[0]!, ...others] = new Set(batch.map(({ partitionKey }) => shardOf(partitionKey)))
        return others.length === 0
          ? Context.get(shard, Producer).enqueue(batch)
          : Effect.fail(new Invalid({ field: "partitionKey", message: "the batch belongs to several databases" }))
      }
    })
  })
)

const workerOf = (shard: Shard, name: string) => {
  const handler = ImportOrders.toLayer(({ shop }) => Console.log(`${name} imports ${shop}`))
  return Layer.build(Worker.layer({ name }).pipe(Layer.provide(handler), Layer.provide(Layer.succeedContext(shard))))
}

const program = Effect.gen(function*() {
  const { shardOf, shards } = yield* Router
  const apple = yield* ImportOrders.enqueue({ shop: "apple" })
  const plum = yield* ImportOrders.enqueue({ shop: "plum" })

  const both = yield* Effect.flip(ImportOrders.enqueueAll([{ shop: "apple" }, { shop: "pear" }]))
  yield* Console.log(`a batch of both: ${both._tag}`)
  const apples = Context.get(shardOf("apple"), PgClient.PgClient)
  const pear = yield* apples.withTransaction(Effect.flip(ImportOrders.enqueue({ shop: "pear" })))
  yield* Console.log(`a pear in a transaction of the apples: ${pear._tag}`)

  yield* workerOf(shards[0]!, "the first worker")
  yield* Effect.provide(ImportOrders.await(apple), shardOf("apple"))
  yield* workerOf(shards[1]!, "the second worker")
  yield* Effect.provide(ImportOrders.await(plum), shardOf("plum"))
})

const Main = RoutedProducer.pipe(Layer.provideMerge(Router.layer), Layer.provide(EmbeddedPostgres.layer()))
await Effect.runPromise(Effect.scoped(program).pipe(Effect.provide(Main)))
