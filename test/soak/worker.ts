/** A worker process of the soak. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { launch, PostgresStore, Worker } from "headgate"
import { sayUp, toldToGo } from "../crash/fixtures/Up.ts"
import { Audit } from "./Audit.ts"
import { handlers } from "./Handlers.ts"
import { CONCURRENCY, LEASE_MS } from "./Pace.ts"
import * as Stalls from "./Stalls.ts"

await toldToGo()

launch(
  Layer.effectDiscard(Effect.forkScoped(Stalls.watchProcess("this process"))).pipe(
    Layer.provideMerge(sayUp),
    Layer.provideMerge(
      Worker.layer({
        name: "soak",
        concurrency: CONCURRENCY,
        lease: LEASE_MS,
        maxBlocked: 0,
        pollInterval: "500 millis",
        shutdownGrace: "500 millis"
      })
    ),
    Layer.provide(handlers),
    Layer.provide(Audit.layer),
    Layer.provide(PostgresStore.layerWith({ migrate: false })),
    Layer.provide(PgClient.layerConfig({
      url: Config.Redacted("DATABASE_URL"),
      applicationName: Config.succeed("soak worker"),
      maxConnections: Config.succeed(4)
    }))
  )
)
