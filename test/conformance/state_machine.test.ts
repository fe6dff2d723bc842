import { assert, it } from "@effect/vitest"
import { moves, unspoken } from "./Cells.ts"
import * as PostgresStage from "./PostgresStage.ts"
import { cells } from "./StateTable.ts"
import { stateMachine } from "./Suite.ts"

stateMachine(PostgresStage.layer)

it("every cell is tried but those that need a retention of their own, which the corpus cannot speak of yet", () => {
  const ownRetention = /^evicted, (archived|quarantined|undecodable): leads to deleted/
  assert.deepStrictEqual(unspoken.filter((title) => !ownRetention.test(title)), [])
  assert.strictEqual(moves.length + unspoken.length, cells.length)
})
