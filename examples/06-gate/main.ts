/** The gate: tenants take turns, a ceiling per account holds, a budget is shared, and a held job says why. */
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, Schema } from "effect"
import { ConcurrencyLimit, Explain, Pauses, Policies, PostgresStore, Queue, RateClass, Task, Worker } from "headgate"

const Imports = Queue.make("imports", { quantum: 2 })
const ShopApi = RateClass.make("shop-api", { limit: 600, window: "1 minute", burst: 7 })
const OneAnAccount = ConcurrencyLimit.make("one-an-account", { scope: "key", max: 1 })

interface Import {
  readonly shop: string
  readonly account: string
}

const ImportOrders = Task.make("orders:import", {
  payload: Schema.Struct({ shop: Schema.String, account: Schema.String }),
  queue: Imports,
  // Shops take turns: a flood of one does not keep the others waiting.
  partitionKey: ({ shop }) => shop,
  rates: [ShopApi],
  limits: [OneAnAccount.by(({ account }: Import) => account)]
})

const started: Array<string> = []
const running = new Map<string, number>()
let mostOfAnAccount = 0
const ImportOrdersHandler = ImportOrders.toLayer(Effect.fn(function*({ account, shop }) {
  started.push(shop)
  const count = (running.get(account) ?? 0) + 1
  running.set(account, count)
  mostOfAnAccount = Math.max(mostOfAnAccount, count)
  yield* Effect.sleep("50 millis")
  running.set(account, count - 1)
}))

const jobsOf = (shop: string, count: number) =>
  Array.from({ length: count }, (_, n) => ({ shop, account: `${shop}-${n}` }))

const program = Effect.gen(function*() {
  // The policies first, as a worker would at its start: this program enqueues before it has one.
  yield* Policies.use((policies) => policies.apply([Imports, ShopApi, OneAnAccount]))
  const flood = yield* ImportOrders.enqueueAll(jobsOf("big", 40))
  const quiet = yield* ImportOrders.enqueueAll([...jobsOf("small", 2), ...jobsOf("tiny", 1)])
  const same = yield* ImportOrders.enqueueAll(Array.from({ length: 3 }, () => ({ shop: "tiny", account: "tiny-0" })))

  const explain = yield* Explain
  const before = yield* explain.job(flood[0]!)
  yield* Console.log(`without a worker: ${before.blockedBy}`)

  const worker = yield* Layer.build(Worker.layer({ concurrency: 20 }).pipe(Layer.provide(ImportOrdersHandler)))
  for (const id of quiet) yield* Effect.provide(ImportOrders.await(id), worker)
  const ofFlood = started.filter((shop) => shop === "big").length
  yield* Console.log(`the small shops were done ${ofFlood < 20 ? "long before the big one" : "late"}`)

  // Seven tokens were saved, ten a second come in: most of the flood still waits when an operator stops the budget.
  const pauses = yield* Pauses
  yield* pauses.pause({ rateClass: ShopApi.name })
  const { blockedBy, text } = yield* explain.job(flood[39]!)
  yield* Console.log(`the last of the flood: ${blockedBy}. ${text}`)
  yield* pauses.resume({ rateClass: ShopApi.name })

  yield* Effect.forEach([...flood, ...same], (id) => ImportOrders.await(id))
  yield* Console.log(`${started.length} imports, at most ${mostOfAnAccount} of an account at once`)
})

const Main = PostgresStore.layer.pipe(Layer.provideMerge(EmbeddedPostgres.layerClient()))

await Effect.runPromise(Effect.scoped(program).pipe(Effect.provide(Main)))
