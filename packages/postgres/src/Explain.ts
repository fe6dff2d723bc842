/**
 * "Why is it not running?", asked of the functions of `0009_explain.sql` and `0012_holds.sql`, which ask the gate's own.
 */
import * as Core from "@headgate/core/Explain"
import { explainText } from "@headgate/core/ExplainText"
import { NotFound } from "@headgate/core/Refusals"
import type { State } from "@headgate/core/State"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

const mostOfEachSort = 100

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const job = statement<ExplainRow>("Explain.job", "select * from headgate.explain($1)")
  const fleet = statement<HeldRow>("Explain.fleet", "select * from headgate.held_now($1)")
  const holds = statement<HoldRow>("Explain.holds", holdsSql)

  return Core.Explain.of({
    job: Effect.fn("Explain.job")(function*(id) {
      const [row] = yield* job([Bind.id(id)])
      if (row === undefined) return yield* new NotFound({ id })
      return yield* toExplain(row)
    }),
    fleet: Effect.map(fleet([Bind.int(mostOfEachSort)]), (rows) => rows.map(toHeld)).pipe(
      Effect.withSpan("Explain.fleet")
    ),
    holds: Effect.fn("Explain.holds")(function*(id) {
      const rows = yield* holds([Bind.id(id)])
      if (rows.length === 0) return yield* new NotFound({ id })
      return rows.flatMap(toInterval)
    })
  })
})

export const layer: Layer.Layer<Core.Explain, never, ControlSql> = Layer.effect(Core.Explain, make)

/** At least one row for a job that exists. Intervals of an earlier job of that id are older than this one. */
const holdsSql = `select h.from_ms, h.until_ms, h.blocked_by, h.detail
  from headgate.job j left join headgate.hold h on h.job_id = j.id and h.from_ms >= j.enqueued_at_ms
  where j.id = $1 order by h.from_ms`

/** The store builds every detail itself: one of another shape is a bug. */
const decodeCause = Schema.decodeUnknownEffect(Core.Cause)

const toExplain = Effect.fnUntraced(function*(row: ExplainRow) {
  const detail = row.detail === null ? null : inCamelCase(row.detail)
  const cause = yield* Effect.orDie(decodeCause({ blockedBy: row.blocked_by, detail }))
  const { admissible, state } = row
  const estimatedAdmissionMs = row.estimate_ms === null ? null : Number(row.estimate_ms)
  const text = explainText({ state, admissible, cause, estimatedAdmissionMs })
  return { ...cause, state, admissible, estimatedAdmissionMs, text }
})

const inCamelCase = (detail: Detail): Detail =>
  Object.fromEntries(
    Object.entries(detail).map(([name, value]) => [name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()), value])
  )

const toHeld = (row: HeldRow): Core.HeldByPolicy => ({
  blockedBy: row.blocked_by,
  name: row.name,
  key: row.key,
  waiting: Number(row.waiting),
  isAtLeast: row.is_at_least,
  switch: row.switch ?? undefined
})

const toInterval = (row: HoldRow): ReadonlyArray<Core.HoldInterval> =>
  row.blocked_by === null ? [] : [{
    fromMs: Number(row.from_ms),
    untilMs: row.until_ms === null ? undefined : Number(row.until_ms),
    blockedBy: row.blocked_by,
    policy: row.detail ?? ""
  }]

type Detail = Readonly<Record<string, unknown>>

interface ExplainRow {
  readonly state: State
  readonly admissible: boolean
  readonly blocked_by: string | null
  readonly detail: Detail | null
  readonly estimate_ms: bigint | null
}

interface HeldRow {
  readonly blocked_by: Core.HeldByPolicy["blockedBy"]
  readonly name: string
  readonly key: string
  readonly waiting: bigint
  readonly is_at_least: boolean
  readonly switch: string | null
}

/** All null for a job that was never seen held. */
interface HoldRow {
  readonly from_ms: bigint | null
  readonly until_ms: bigint | null
  readonly blocked_by: Core.BlockedBy | null
  readonly detail: string | null
}
