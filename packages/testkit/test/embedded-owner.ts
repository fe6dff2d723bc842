/** A program that owns an embedded server, for the tests that end it: prints what it has, then does as told. */
import { NodeRuntime } from "@effect/platform-node"
import { PgClient } from "@effect/sql-pg"
import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import { Effect, Redacted } from "effect"

const ending = process.argv[2]

const main = Effect.gen(function*() {
  const server = yield* EmbeddedPostgres.start()
  const query = PgClient.PgClient.use((sql) => sql`SELECT 1`).pipe(
    Effect.provide(PgClient.layer({ url: Redacted.make(server.url) }))
  )
  yield* query
  process.stdout.write(`${JSON.stringify({ dataDirectory: server.dataDirectory, uid: process.getuid?.() })}\n`)
  if (ending === "exit") process.exit(0)
  if (ending === "close") return
  if (ending === "throw") {
    setTimeout(() => {
      throw new Error("on purpose")
    })
  }
  if (ending === "finalize") {
    yield* Effect.addFinalizer(() => Effect.andThen(Effect.orDie(query), Effect.sync(() => console.log("finalized"))))
  }
  yield* Effect.never
})

const program = Effect.scoped(main)
if (ending === "finalize") NodeRuntime.runMain(program)
else await Effect.runPromise(program)
