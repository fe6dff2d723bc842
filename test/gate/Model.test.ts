import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as fc from "fast-check"
import { sequence } from "./Draws.ts"
import { play } from "./Sequence.ts"

const SEQUENCES = 1000
/** `HEADGATE_MODEL_SEED` draws other sequences. */
const seed = Number(process.env["HEADGATE_MODEL_SEED"] ?? 20_261)

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("The gate", (it) => {
  it.effect(
    "does what a model of it allows, in each of 1,000 random sequences of work, policy changes and crashes",
    () =>
      Effect.gen(function*() {
        const run = Effect.runPromiseWith(yield* Effect.context<Effect.Services<ReturnType<typeof play>>>())
        const property = fc.asyncProperty(sequence, async (drawn) => {
          assert.deepStrictEqual(await run(play(drawn)), [])
        })
        yield* Effect.promise(() => fc.assert(property, { numRuns: SEQUENCES, seed, endOnFailure: false }))
      }),
    900_000
  )
})
