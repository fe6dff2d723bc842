/** A handler in child processes: what would end the worker ends one child, and the jobs beside it finish. */
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, References, Schema } from "effect"
import { Inspect, Isolated, PostgresStore, Task, Worker } from "headgate"

class NoSuchPage extends Schema.TaggedError<NoSuchPage>()("NoSuchPage", { page: Schema.String }) {}

const Render = Task.make("page:render", {
  payload: Schema.Struct({ page: Schema.String }),
  success: Schema.Struct({ bytes: Schema.Int }),
  error: NoSuchPage,
  timeout: "5 seconds",
  maxAttempts: 1,
  crashLimit: 1
})

/** Runs in the child, where a library of native code may do what it wants. */
const render = Effect.fn(function*({ page }: { readonly page: string }) {
  switch (page) {
    case "missing":
      return yield* new NoSuchPage({ page })
    case "broken":
      console.error("assertion failed: page != nullptr")
      return process.abort()
    case "endless":
      for (;;);
  }
  return { bytes: page.length }
})

const RenderIsolated = Isolated.toLayer(Render, {
  command: process.execPath,
  args: [...process.execArgv, import.meta.filename, "child"],
  pool: 2
})

const program = Effect.gen(function*() {
  const inspect = yield* Inspect
  const pages = ["broken", "endless", "home", "missing", "about us"]
  const ids = yield* Render.enqueueAll(pages.map((page) => ({ page })))
  for (const [n, id] of ids.entries()) {
    yield* Render.await(id).pipe(
      Effect.flatMap(({ bytes }) => Console.log(`${pages[n]}: ${bytes} bytes`)),
      Effect.catchTag("NoSuchPage", ({ page }) => Console.log(`${page}: no such page`)),
      Effect.catchTag(
        "JobEnded",
        Effect.fnUntraced(function*({ state }) {
          const failure = yield* inspect.failure(id)
          yield* Console.log(`${pages[n]}: ${state}, ${failure?.tag}: ${failure?.message}`)
        })
      )
    )
  }
})

// Two jobs at a time, so two children.
const Main = Worker.layer({ concurrency: 2 }).pipe(
  Layer.provide(RenderIsolated),
  Layer.provideMerge(PostgresStore.layer),
  Layer.provide(EmbeddedPostgres.layerClient()),
  Layer.provide(Layer.succeed(References.MinimumLogLevel, "Error"))
)

if (process.argv[2] === "child") Isolated.serve(Render, render)
else await Effect.runPromise(program.pipe(Effect.provide(Main)))
