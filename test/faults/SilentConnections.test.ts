import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Exit, Fiber, Option, Scope } from "effect"
import * as Figure from "./fixtures/Figure.ts"
import { deaf, enqueueTen, listener, startedWithin, warmUp } from "./fixtures/Pings.ts"
import * as SilentProxy from "./fixtures/SilentProxy.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

layer(TestDatabase.layer, { excludeTestServices: true })("Connections that go silent for good", (it) => {
  it.effect(
    "keep a worker from new jobs for no longer than 15 seconds, and its program from its end for no longer either",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const proxy = yield* SilentProxy.make(url)
        const producer = yield* Site.open(url)
        const scope = yield* Scope.make()
        const end = yield* Effect.cached(Effect.forkDetach(Scope.close(scope, Exit.void)))
        yield* Effect.gen(function*() {
          const site = yield* Scope.provide(Site.open(proxy.url), scope)
          const { handler, starts } = listener()
          const worker = yield* Scope.provide(site.work(handler, deaf), scope)
          yield* warmUp(producer, starts)
          yield* proxy.silence
          const silentAt = performance.now()
          const during = yield* enqueueTen(producer, "silent")
          yield* startedWithin(15_000, starts, during, silentAt)
          const after = yield* enqueueTen(producer, "known")
          yield* startedWithin(2000, starts, after)
          yield* Watch.until(
            Effect.map(worker.health, ({ status }) => status === "working" ? Option.some(status) : Option.none()),
            "the worker to be well"
          )
          yield* proxy.silence
          const from = performance.now()
          const ended = yield* Effect.timeoutOption(Effect.flatMap(end, Fiber.await), "1 minute")
          assert.isTrue(Option.isSome(ended), "the program ends")
          Figure.within("a program ended over silent connections", performance.now() - from, 15_000)
        }).pipe(Effect.ensuring(end))
      }).pipe(Effect.scoped),
    240_000
  )
})
