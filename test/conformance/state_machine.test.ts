import { assert, it, layer } from "@effect/vitest"
import { moves, standstills, unspoken } from "./Cells.ts"
import * as PostgresStage from "./PostgresStage.ts"
import * as Runner from "./Runner.ts"
import { cells } from "./StateTable.ts"

layer(PostgresStage.layer, { excludeTestServices: true })("the store moves a job as the table says:", (it) => {
  for (const file of moves) it.effect(file.scenario.promise, () => Runner.run(file))
})

layer(PostgresStage.layer, { excludeTestServices: true })("and not otherwise:", (it) => {
  for (const file of standstills) it.effect(file.scenario.promise, () => Runner.run(file))
})

it("every cell is tried but those that need policies, which the corpus cannot speak of yet", () => {
  const policies = /^(superseded|discarded|cancelled_incoming|fingerprint_quarantined)\b|fingerprint_closed/
  const ownRetention = /^evicted, (archived|quarantined|undecodable): leads to deleted/
  assert.deepStrictEqual(unspoken.filter((title) => !policies.test(title) && !ownRetention.test(title)), [])
  assert.strictEqual(moves.length + unspoken.length, cells.length)
})
