/** One worker process of the application. All it needs to know is where the database is. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Config, Layer } from "effect"
import { launch, PostgresStore, Worker } from "headgate"
import { handlers } from "./app.ts"

const Database = PgClient.layerConfig({ url: Config.Redacted("DATABASE_URL") })

// A short lease, so that the audience need not wait: half a minute is usual.
const Main = Worker.layer({ concurrency: 4, lease: "2 seconds" }).pipe(
  Layer.provide(handlers),
  Layer.provide(PostgresStore.layer),
  Layer.provide(Database)
)

// Ends with the process that started it, however that one ends.
process.stdin.resume().on("close", () => process.exit(0))

launch(Main)
