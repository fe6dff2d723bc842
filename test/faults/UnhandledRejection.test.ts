import { assert, it } from "@effect/vitest"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import { Careless } from "./fixtures/careless.ts"
import * as Child from "./fixtures/Child.ts"
import * as Watch from "./fixtures/Watch.ts"

const entry = new URL("./fixtures/careless-worker.ts", import.meta.url)

it.live(
  "a rejection that a handler left unhandled is told, and ends neither its process nor the jobs beside it",
  () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const child = yield* Child.start(entry, { DATABASE_URL: url })
      yield* Effect.gen(function*() {
        yield* Careless.enqueue({ leaves: "nothing", millis: 1500 }, { id: "beside" })
        const isStarted = (id: string) => child.told("started").some((line) => line["id"] === id)
        yield* Watch.untilTrue(() => isStarted("beside"), "the first job to start", 20_000)
        yield* Careless.enqueue({ leaves: "a rejection", millis: 50 }, { id: "at-once" })
        yield* Careless.enqueue({ leaves: "a late rejection", millis: 50 }, { id: "late" })
        for (const id of ["at-once", "late"]) {
          yield* Watch.untilTrue(() => child.complaints().includes(`left behind by ${id}`), `${id} to be told`)
        }
        yield* Watch.reaches("beside", "completed")
        yield* Careless.enqueue({ leaves: "nothing", millis: 1 }, { id: "after" })
        for (const id of ["at-once", "late", "beside", "after"]) {
          yield* Watch.reaches(id, "completed")
          const { attempt, crashAttempt, fence } = yield* Watch.job(id)
          assert.deepStrictEqual([attempt, crashAttempt, Number(fence)], [0, 0, 1], id)
        }
        assert.isTrue(child.isAlive())
      }).pipe(Child.explaining(child))
    }).pipe(Effect.provide(PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))), Effect.scoped),
  240_000
)
