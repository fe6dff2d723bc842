/** A worker process whose job dies, and which is killed before it calls the death handler, or while it does. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { type Death, Job, Task } from "@headgate/core"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { Effect, Layer, Redacted, Schema } from "effect"
import { Worker } from "../src/Worker.ts"

export const Mortal = Task.make("mortal", { payload: Schema.Struct({ name: Schema.String }) })

export const handler = Mortal.toLayer(() => Job.skip("mortal"))

/** In the database, since the one who says it may be gone. */
export const say = (death: Death<unknown, unknown>) =>
  Effect.flatMap(
    PgClient.PgClient,
    (sql) => sql`INSERT INTO called VALUES (${death.key}, ${death.call}, ${death.reason}, ${process.pid})`
  )

const main = (url: string, killed: string) =>
  Worker.layer({ duties: false, pollInterval: killed === "before" ? "1 hour" : "50 millis" }).pipe(
    Layer.provide(handler),
    Layer.provide(Mortal.onDeath((death) => Effect.andThen(say(death), Effect.never))),
    Layer.provide(PostgresStore.layerWith({ migrate: false })),
    Layer.provide(PgClient.layer({ url: Redacted.make(url) })),
    Layer.launch,
    Effect.runPromise
  )

if (import.meta.main) await main(process.argv[2]!, process.argv[3]!)
