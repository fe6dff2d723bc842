/** Redrives stored, read and steered, by the functions of `0014_redrive.sql`; a duty carries them out. */
import type { DeathReason } from "@headgate/core/DeathCallbacks"
import { IdGen } from "@headgate/core/IdGen"
import type { JobId } from "@headgate/core/Ids"
import { refuseInteger } from "@headgate/core/Millis"
import {
  Redrive,
  type RedriveFilter,
  type RedriveGroup,
  type RedrivePage,
  type RedrivePreview,
  type RedriveSelection
} from "@headgate/core/Redrive"
import { archivedWithinMs, refuseSelection, refuseSignature, validateRedrive } from "@headgate/core/RedriveGuard"
import { IdConflict, NotFound, WrongState } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"
import * as Rows from "./RedriveRows.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const idGen = yield* IdGen
  const start = statement<{ is_same: boolean }>("Redrive.start", startSql)
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
  const groups = statement<GroupRow>("Redrive.preview", "select * from headgate.death_groups($1)")
  const clock = statement<{ now: bigint }>("Redrive.preview", "select headgate.now_ms() as now")

  const one = Effect.fnUntraced(function*(id: string) {
    const [row] = yield* find([Bind.id(id)])
    return row ?? (yield* notFound(id))
  })

  /** Page by page, so that each statement is short however many jobs are archived. */
  const search = Effect.fnUntraced(function*(filter: RedriveFilter) {
    const found: Array<JobId> = []
    const counted = new Groups()
    let matching = 0
    let at: Position = { ms: yield* since(filter), id: "" }
    for (let looked = 0; looked < MAX_LOOKED && matching <= MAX_COUNTED; looked += LOOK) {
      const [row] = yield* page([...conditions(filter), Bind.bigint(at.ms), Bind.text(at.id), before(filter)])
      if (row === undefined || row.last_ms === null) return preview(found, matching, false, counted)
      matching += row.ids.length
      found.push(...row.ids.slice(0, SAMPLE - found.length))
      if (row.ids.length > 0) counted.add(yield* groups([Bind.texts(row.ids)]))
      if (row.looked < LOOK) return preview(found, matching, false, counted)
      at = { ms: Number(row.last_ms), id: row.last_id ?? "" }
    }
    return preview(found, matching, true, counted)
  })

  const since = Effect.fnUntraced(function*(filter: RedriveFilter) {
    const within = archivedWithinMs(filter)
    if (within === undefined) return filter.archivedFromMs ?? 0
    const [row] = yield* clock([])
    return Math.max(Number(row?.now ?? 0) - within, 0)
  })

  return Redrive.of({
    preview: Effect.fn("Redrive.preview")(function*(selection) {
      const refusal = refuseSelection(selection)
      if (refusal !== undefined) return yield* refusal
      if (selection.filter !== undefined) return yield* search(selection.filter)
      const found = (yield* named([Bind.texts([...new Set(selection.ids)])])).map(({ id }) => id)
      const counted = new Groups()
      counted.add(yield* groups([Bind.texts(found)]))
      return preview(found, found.length, false, counted)
    }),
    start: Effect.fn("Redrive.start")(function*(request) {
      const settings = yield* Effect.fromResult(validateRedrive(request))
      const id = request.id ?? idGen.next()
      const signature = [Bind.text(id), Bind.text(request.actor), Bind.text(request.note)]
      const [stored] = yield* start([...signature, ...selected(request), ...Rows.settingsOf(settings)])
      if (stored?.is_same !== true) return yield* new IdConflict({ id, what: "redrive" })
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
const MOST_GROUPS = 100
const MAX_COUNTED = 10_000
const MAX_LOOKED = 100_000
const LOOK = 10_000
const DEFAULT_PAGE = 50
const MAX_PAGE = 200

const startSql = `select headgate.start_redrive($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
  $14, $15::text::float8, $16, $17, $18, $19, $20) as is_same`

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
  select count(*)::int as looked, array(select m.id from page m where m.is_match order by m.place) as ids,
    (select l.at_ms from page l order by l.place desc limit 1) as last_ms,
    (select l.id from page l order by l.place desc limit 1) as last_id
  from page p`

const namedSql = `select j.id from unnest($1::text[]) with ordinality u(id, place) join headgate.job j on j.id = u.id
  where j.id = any($1) and j.state = 'archived' order by u.place`

interface PageRow {
  readonly looked: number
  readonly ids: ReadonlyArray<JobId>
  readonly last_ms: bigint | null
  readonly last_id: string | null
}

interface Position {
  readonly ms: number
  readonly id: string
}

const notFound = (id: string) => new NotFound({ id, what: "redrive" })

interface GroupRow {
  readonly kind: string
  readonly reason: DeathReason
  readonly error_tag: string | null
  readonly jobs: bigint
}

/** Of several pages. */
class Groups {
  private readonly found = new Map<string, RedriveGroup>()

  add(rows: ReadonlyArray<GroupRow>): void {
    for (const { error_tag, jobs, kind, reason } of rows) {
      const name = JSON.stringify([kind, reason, error_tag])
      const before = this.found.get(name)?.jobs ?? 0
      this.found.set(name, { kind, reason, errorTag: error_tag ?? undefined, jobs: before + Number(jobs) })
    }
  }

  get largest(): ReadonlyArray<RedriveGroup> {
    return [...this.found.values()].sort((one, other) => other.jobs - one.jobs).slice(0, MOST_GROUPS)
  }
}

const preview = (
  found: ReadonlyArray<JobId>,
  matching: number,
  isCut: boolean,
  groups: Groups
): RedrivePreview => ({
  matching: Math.min(matching, MAX_COUNTED),
  approximate: isCut || matching > MAX_COUNTED,
  sample: found.slice(0, SAMPLE),
  groups: groups.largest
})

const conditions = ({ errorTag, kind, partitionKey, queue, reason, tag }: RedriveFilter) =>
  [kind, queue, partitionKey, reason, errorTag, tag].map((text) => Bind.text(text ?? null))

const before = ({ archivedBeforeMs }: RedriveFilter) => Bind.bigint(archivedBeforeMs ?? null)

const selected = ({ filter = {}, ids }: RedriveSelection) => [
  ids === undefined ? Bind.noTexts : Bind.texts([...new Set(ids)]),
  ...conditions(filter),
  Bind.bigint(filter.archivedFromMs ?? null),
  before(filter),
  Bind.bigint(archivedWithinMs(filter) ?? null)
]

const paged = Effect.fnUntraced(function*({ after, limit = DEFAULT_PAGE }: RedrivePage, first: number) {
  const refusal = refuseInteger("limit", limit, 1, MAX_PAGE) ??
    (after === undefined ? undefined : refuseInteger("after", after, 0, Number.MAX_SAFE_INTEGER))
  return refusal === undefined ? { after: after ?? first, limit } : yield* refusal
})
