/** Define a task, start a worker, enqueue a job. */
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, Schema } from "effect"
import { PostgresStore, Task, Worker } from "headgate"

const Greet = Task.make("greet", { payload: Schema.Struct({ name: Schema.String }) })

const GreetHandler = Greet.toLayer(({ name }) => Console.log(`Hello, ${name}!`))

const Main = Worker.layer().pipe(
  Layer.provide(GreetHandler),
  Layer.provideMerge(PostgresStore.layer),
  Layer.provide(EmbeddedPostgres.layerClient())
)

const program = Effect.gen(function*() {
  const id = yield* Greet.enqueue({ name: "world" })
  yield* Greet.await(id)
  yield* Console.log("The job is done.")
})

await Effect.runPromise(program.pipe(Effect.provide(Main)))
