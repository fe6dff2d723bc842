/** Draws faults at random, a few at a time, and keeps account of them. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Dice from "../crash/fixtures/Dice.ts"
import { again } from "./Audit.ts"
import { type Fault, faults, type Touched } from "./Faults.ts"
import { CALM_MS, FAULTS_AT_ONCE } from "./Pace.ts"
import type { Site } from "./Site.ts"

const deck = faults.flatMap((fault) => Array.from({ length: fault.share }, () => fault))

/** Until it is interrupted; then what goes on is ended, and the site is whole again. */
export const drive = Effect.fnUntraced(function*(site: Site, seed: number, millis: number) {
  const dice = Dice.make(seed)
  const end = performance.now() + millis
  yield* Effect.forEach(Array.from({ length: FAULTS_AT_ONCE }), () =>
    Effect.gen(function*() {
      while (performance.now() < end) {
        yield* Effect.sleep(dice.between(...CALM_MS))
        yield* inject(site, dice.oneOf(deck)!, dice)
      }
    }), { concurrency: "unbounded", discard: true })
})

const inject = Effect.fnUntraced(function*(site: Site, fault: Fault, dice: Dice.Dice) {
  const beganMs = Date.now()
  const touched = yield* Effect.catch(fault.inject(site, dice), (error) => failed(fault, error))
  if (touched !== "none") yield* record(fault.kind, touched, beganMs)
})

/** Beside a fault that takes the server away another one may find nothing to act on. */
const failed = ({ kind }: Fault, error: unknown): Effect.Effect<Touched> =>
  kind.startsWith("server") ? Effect.die(error) : Effect.succeed("none")

const record = Effect.fnUntraced(function*(kind: string, touched: Touched, beganMs: number) {
  const sql = yield* PgClient.PgClient
  const endedMs = Date.now()
  const pids = touched === "all" ? "" : `{${touched === "none" ? "" : touched.join()}}`
  yield* again(sql`INSERT INTO audit.fault (kind, pids, began_ms, ended_ms)
    VALUES (${kind}, nullif(${pids}, '')::text::int[], ${BigInt(beganMs)}, ${BigInt(endedMs)})`)
})
