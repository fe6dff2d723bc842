/** Define a task, start a worker, enqueue a job. */
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, Schema } from "effect"
import { Inspect, isTerminal, PostgresStore, Task, Worker } from "headgate"

const Greet = Task.make("greet", { payload: Schema.Struct({ name: Schema.String }) })

const GreetHandler = Greet.toLayer(({ name }) => Console.log(`Hello, ${name}!`))

const Main = Worker.layer({ queues: ["default"] }).pipe(
  Layer.provide(GreetHandler),
  Layer.provideMerge(PostgresStore.layer),
  Layer.provide(EmbeddedPostgres.layerClient())
)

const program = Effect.gen(function*() {
  const id = yield* Greet.enqueue({ name: "world" })
  const job = yield* Inspect.use((inspect) => inspect.job(id)).pipe(
    Effect.delay("20 millis"),
    Effect.repeat({ until: ({ state }) => isTerminal(state) })
  )
  yield* Console.log(`The job is ${job.state}.`)
})

await Effect.runPromise(program.pipe(Effect.provide(Main)))
