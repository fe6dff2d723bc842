/** Redrives stored, read and steered, by the functions of `0014_redrive.sql`; a duty carries them out. */
import { IdGen } from "@headgate/core/IdGen"
import type { JobId } from "@headgate/core/Ids"
import { refuseInteger } from "@headgate/core/Millis"
import {
  Redrive,
  type RedriveFilter,
  type RedrivePage,
  type RedrivePreview,
  type RedriveSelection
} from "@headgate/core/Redrive"
import { refuseSelection, refuseSignature, validateRedrive } from "@headgate/core/RedriveGuard"
import { NotFound, WrongState } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"
import * as Rows from "./RedriveRows.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const idGen = yield* IdGen
  const start = statement("Redrive.start", startSql)
  const find = statement<Rows.RedriveRow>("Redrive.get", `${Rows.selectSql} where r.id = $1`)
  const list = statement<Rows.RedriveRow>("Redrive.list", listSql("true"))
  const listState = statement<Rows.RedriveRow>("Redrive.list", listSql("r.state = $3"))
  const events = statement<Rows.EventRow>("Redrive.get", eventsSql)
  const jobs = statement<Rows.JobRow>("Redrive.jobs", jobsSql)
  const steer = statement<{ before: string | null }>(
    "Redrive.steer",
    "select headgate.steer_redrive($1, $2, $3, $4) as before"
  )
  const page = statement<PageRow>("Redrive.preview", pageSql)
  const named = statement<{ id: JobId }>("Redrive.preview", namedSql)

  const one = Effect.fnUntraced(function*(id: string) {
    const [row] = yield* find([Bind.id(id)])
    return row ?? (yield* notFound(id))
  })

  /** Page by page, so that each statement is short however many jobs are archived. */
  const search = Effect.fnUntraced(function*(filter: RedriveFilter) {
    const found: Array<JobId> = []
    let matching = 0
    let at: Position = { ms: filter.archivedFromMs ?? 0, id: "" }
    for (let looked = 0; looked < MAX_LOOKED && matching <= MAX_COUNTED; looked += LOOK) {
      const [row] = yield* page([...conditions(filter), Bind.bigint(at.ms), Bind.text(at.id), before(filter)])
      if (row === undefined || row.last_ms === null) return preview(found, matching, false)
      matching += row.matching
      found.push(...row.sample.slice(0, SAMPLE - found.length))
      if (row.looked < LOOK) return preview(found, matching, false)
      at = { ms: Number(row.last_ms), id: row.last_id ?? "" }
    }
    return preview(found, matching, true)
  })

  return Redrive.of({
    preview: Effect.fn("Redrive.preview")(function*(selection) {
      const refusal = refuseSelection(selection)
      if (refusal !== undefined) return yield* refusal
      if (selection.filter !== undefined) return yield* search(selection.filter)
      const found = yield* named([Bind.texts([...new Set(selection.ids)])])
      return preview(found.map(({ id }) => id), found.length, false)
    }),
    start: Effect.fn("Redrive.start")(function*(request) {
      const settings = yield* Effect.fromResult(validateRedrive(request))
      const id = request.id ?? idGen.next()
      const signature = [Bind.text(id), Bind.text(request.actor), Bind.text(request.note)]
      yield* start([...signature, ...selected(request), ...Rows.settingsOf(settings)])
      const [row] = yield* find([Bind.text(id)])
      // What was just stored is kept for 90 days.
      return row === undefined ? yield* Effect.die(new Error(`the redrive ${id} is gone`)) : Rows.toRedriving(row)
    }),
    get: Effect.fn("Redrive.get")(function*(id) {
      const row = yield* one(id)
      return { ...Rows.toRedriving(row), events: (yield* events([Bind.id(id)])).map(Rows.toEvent) }
    }),
    list: Effect.fn("Redrive.list")(function*({ state, ...page } = {}) {
      const { after, limit } = yield* paged(page, Number.MAX_SAFE_INTEGER)
      const params = [Bind.bigint(after), Bind.int(limit + 1)]
      const rows = yield* state === undefined ? list(params) : listState([...params, Bind.id(state)])
      const items = rows.slice(0, limit)
      return { items: items.map(Rows.toRedriving), next: rows.length > limit ? Number(items.at(-1)?.nth) : undefined }
    }),
    jobs: Effect.fn("Redrive.jobs")(function*(id, page = {}) {
      const { after, limit } = yield* paged(page, 0)
      const rows = yield* jobs([Bind.id(id), Bind.bigint(after), Bind.int(limit + 1)])
      if (rows.length === 0) yield* one(id)
      const items = rows.slice(0, limit)
      return { items: items.map(Rows.toJob), next: rows.length > limit ? Number(items.at(-1)?.nth) : undefined }
    }),
    cancel: Effect.fn("Redrive.cancel")(function*(id, by) {
      const refusal = refuseSignature(by)
      if (refusal !== undefined) return yield* refusal
      const [row] = yield* steer([Bind.id(id), "cancelled", Bind.text(by.actor), Bind.text(by.note)])
      if (row?.before === "done") {
        return yield* new WrongState({ id, operation: "cancel", state: "done", what: "redrive" })
      }
      return Rows.toRedriving(yield* one(id))
    }),
    resume: Effect.fn("Redrive.resume")(function*(id, by) {
      const refusal = refuseSignature(by)
      if (refusal !== undefined) return yield* refusal
      const [row] = yield* steer([Bind.id(id), "running", Bind.text(by.actor), Bind.text(by.note)])
      const before = row?.before ?? undefined
      if (before !== undefined && before !== "paused") {
        return yield* new WrongState({ id, operation: "resume", state: before, what: "redrive" })
      }
      return Rows.toRedriving(yield* one(id))
    })
  })
})

export const layer: Layer.Layer<Redrive, never, ControlSql> = Layer.effect(Redrive, make)

const SAMPLE = 20
const MAX_COUNTED = 10_000
const MAX_LOOKED = 100_000
const LOOK = 10_000
const DEFAULT_PAGE = 50
const MAX_PAGE = 200

const startSql = `select headgate.start_redrive($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
  $14::text::float8, $15, $16, $17, $18, $19)`

const listSql = (condition: string) =>
  `${Rows.selectSql} where r.nth < $1 and ${condition} order by r.nth desc limit $2`

const eventsSql = `select e.at_ms, e.event, e.actor, e.note from (
    select * from headgate.redrive_event n where n.redrive_id = $1 order by n.nth desc limit 200
  ) e order by e.nth`

const jobsSql = `select s.nth, s.job_id, s.result from headgate.redrive_job s
  where s.redrive_id = $1 and s.nth > $2 order by s.nth limit $3`

/** Whatever is archived by now would be older than a redrive that began now. */
const pageSql = `with page as materialized (
    select p.*, row_number() over () as place
    from headgate.archived_page($1, $2, $3, $4, $5, $6, $7, $8, least($9 - 1, headgate.now_ms()), ${LOOK}) p
  )
  select count(*)::int as looked, count(*) filter (where p.is_match)::int as matching,
    array(select m.id from page m where m.is_match order by m.place limit ${SAMPLE}) as sample,
    (select l.at_ms from page l order by l.place desc limit 1) as last_ms,
    (select l.id from page l order by l.place desc limit 1) as last_id
  from page p`

const namedSql = `select j.id from unnest($1::text[]) with ordinality u(id, place) join headgate.job j on j.id = u.id
  where j.id = any($1) and j.state = 'archived' order by u.place`

interface PageRow {
  readonly looked: number
  readonly matching: number
  readonly sample: ReadonlyArray<JobId>
  readonly last_ms: bigint | null
  readonly last_id: string | null
}

interface Position {
  readonly ms: number
  readonly id: string
}

const notFound = (id: string) => new NotFound({ id, what: "redrive" })

const preview = (found: ReadonlyArray<JobId>, matching: number, isCut: boolean): RedrivePreview => ({
  matching: Math.min(matching, MAX_COUNTED),
  approximate: isCut || matching > MAX_COUNTED,
  sample: found.slice(0, SAMPLE)
})

const conditions = ({ errorTag, kind, partitionKey, queue, reason, tag }: RedriveFilter) =>
  [kind, queue, partitionKey, reason, errorTag, tag].map((text) => Bind.text(text ?? null))

const before = ({ archivedBeforeMs }: RedriveFilter) => Bind.bigint(archivedBeforeMs ?? null)

const selected = ({ filter = {}, ids }: RedriveSelection) => [
  ids === undefined ? Bind.noTexts : Bind.texts([...new Set(ids)]),
  ...conditions(filter),
  Bind.bigint(filter.archivedFromMs ?? null),
  before(filter)
]

const paged = Effect.fnUntraced(function*({ after, limit = DEFAULT_PAGE }: RedrivePage, first: number) {
  const refusal = refuseInteger("limit", limit, 1, MAX_PAGE) ??
    (after === undefined ? undefined : refuseInteger("after", after, 0, Number.MAX_SAFE_INTEGER))
  return refusal === undefined ? { after: after ?? first, limit } : yield* refusal
})
