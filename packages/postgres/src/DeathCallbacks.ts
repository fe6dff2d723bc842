/** Deaths and their callbacks, by the functions of `0013_death_callbacks.sql`; operators' reads and writes stand here. */
import {
  type CallEnd,
  DeathCallbacks,
  type DeathChoice,
  type DeathReason,
  type DeathState,
  type DeathSummary,
  type RecordedDeath
} from "@headgate/core/DeathCallbacks"
import type { JobId } from "@headgate/core/Ids"
import { refuseInteger } from "@headgate/core/Millis"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"
import { readHeaders } from "./Gate.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const declare = statement("DeathCallbacks.declare", "select headgate.declare_callbacks($1)::text")
  const claim = statement<ClaimRow>(
    "DeathCallbacks.claim",
    "select * from headgate.claim_callbacks($1, $2, $3, $4, $5, $6) c order by c.archived_at_ms, c.key"
  )
  const settle = statement<{ key: string }>(
    "DeathCallbacks.settle",
    "select * from headgate.settle_callbacks($1, $2, $3, $4, $5, $6)"
  )
  const listAll = statement<SummaryRow>("DeathCallbacks.list", listSql("(c.kind, c.key) > ($2, $3)"))
  const listKind = statement<SummaryRow>("DeathCallbacks.list", listSql("c.kind = $2 and c.key > $3"))
  const counts = statement<CountRow>("DeathCallbacks.counts", countsSql)
  const retryOne = statement<{ key: string }>(
    "DeathCallbacks.retry",
    `${retrySql} where c.key = $1 and (c.state = 'failed' or c.state = 'waiting' and ${isIdle}) returning c.key`
  )
  const retryKind = statement<{ key: string }>(
    "DeathCallbacks.retry",
    `${retrySql} where c.key = any(array(select o.key from headgate.callback o
      where o.state = 'failed' and o.kind = $1 order by o.key limit ${BATCH} for no key update skip locked)) returning c.key`
  )
  const removeOne = statement<{ key: string }>(
    "DeathCallbacks.remove",
    `delete from headgate.callback c where c.key = $1 and ${isIdle} returning c.key`
  )
  const removeKind = statement<{ key: string }>(
    "DeathCallbacks.remove",
    `delete from headgate.callback c where c.key = any(array(select c.key from headgate.callback c
      where c.state in ('waiting', 'delivered', 'failed') and c.kind = $1 and ${isIdle}
      limit ${BATCH} for update skip locked)) returning c.key`
  )

  /** One, or all of a kind in parts. */
  const chosen = (choice: DeathChoice, one: typeof retryOne, ofKind: typeof retryOne) =>
    Effect.gen(function*() {
      if ("key" in choice) return (yield* one([Bind.id(choice.key)])).length
      for (let count = 0;;) {
        const { length } = yield* ofKind([Bind.id(choice.kind)])
        count += length
        if (length < BATCH) return count
      }
    })

  return DeathCallbacks.of({
    declare: (kinds) => Effect.asVoid(declare([Bind.texts([...new Set(kinds)])])),
    claim: Effect.fn("DeathCallbacks.claim")(function*(worker, requests) {
      const rows = yield* claim([
        Bind.text(worker),
        Bind.texts(requests.map(({ kind }) => kind)),
        Bind.ints(requests.map(({ version }) => version)),
        Bind.ints(requests.map(({ most }) => most)),
        Bind.bigints(requests.map(({ leaseMs }) => leaseMs)),
        Bind.ints(requests.map(({ maxCalls }) => maxCalls))
      ])
      return {
        claims: rows.flatMap((row) =>
          row.state === "waiting" ? [{ death: toDeath(row), fence: Number(row.fence) }] : []
        ),
        givenUp: rows.flatMap(({ job_id, key, kind, state }) =>
          state === "failed" ? [{ key, jobId: job_id, kind }] : []
        )
      }
    }),
    settle: Effect.fn("DeathCallbacks.settle")(function*(batch) {
      const faults = batch.map(({ end }) => "fault" in end ? end.fault : undefined)
      const rows = yield* settle([
        Bind.texts(batch.map(({ key }) => key)),
        Bind.bigints(batch.map(({ fence }) => fence)),
        Bind.texts(batch.map(({ end }) => end._tag)),
        Bind.bigints(batch.map(({ end }) => delayOf(end))),
        Bind.texts(faults.map((fault) => fault?.tag ?? null)),
        Bind.texts(faults.map((fault) => fault?.message ?? null))
      ])
      const settled = new Set(rows.map(({ key }) => key))
      return batch.map(({ key }) => settled.has(key))
    }),
    list: Effect.fn("DeathCallbacks.list")(
      function*({ after = "", kind, limit = DEFAULT_PAGE, state = "failed" } = {}) {
        const refusal = refuseInteger("limit", limit, 1, MAX_PAGE)
        if (refusal !== undefined) return yield* refusal
        // No kind holds a space.
        const cut = after.indexOf(" ")
        const [afterKind, afterKey] = [after.slice(0, Math.max(cut, 0)), after.slice(cut + 1)]
        const list = kind === undefined ? listAll : listKind
        // One more tells whether there is a next page.
        const rows = yield* list([Bind.id(state), Bind.id(kind ?? afterKind), Bind.id(afterKey), Bind.int(limit + 1)])
        const items = rows.slice(0, limit).map(toSummary)
        const last = rows.length > limit ? items.at(-1) : undefined
        return { items, next: last && `${last.kind} ${last.key}` }
      }
    ),
    counts: Effect.map(counts([]), (rows) => ({
      counts: rows.map(({ count, kind, state }) => ({ kind, state, count })),
      approximate: rows.some(({ is_cut }) => is_cut)
    })).pipe(Effect.withSpan("DeathCallbacks.counts")),
    retry: (choice) => chosen(choice, retryOne, retryKind).pipe(Effect.withSpan("DeathCallbacks.retry")),
    remove: (choice) => chosen(choice, removeOne, removeKind).pipe(Effect.withSpan("DeathCallbacks.remove"))
  })
})

export const layer: Layer.Layer<DeathCallbacks, never, ControlSql> = Layer.effect(DeathCallbacks, make)

const BATCH = 1000
const DEFAULT_PAGE = 50
const MAX_PAGE = 200
const MOST_COUNTED = 10_000

/** Nobody calls it at this moment. */
const isIdle = "(c.worker is null or c.due_at_ms <= headgate.now_ms())"

const retrySql =
  `update headgate.callback c set state = 'waiting', calls = 0, lost = 0, ended_at_ms = null, worker = null,
  due_at_ms = headgate.now_ms()`

const listSql = (place: string) =>
  `select c.key, c.job_id, c.kind, c.queue, c.partition_key, c.reason, c.state, c.calls, c.archived_at_ms, c.due_at_ms,
    c.ended_at_ms, c.worker, c.error_tag, c.error_message, c.fault_tag, c.fault_message
  from headgate.callback c where c.state = $1 and ${place} order by c.kind, c.key limit $4`

const countsSql =
  `select s.state, n.kind, n.count::int as count, sum(n.count) over (partition by s.state) >= ${MOST_COUNTED} as is_cut
  from unnest(array['waiting', 'delivered', 'failed']) s(state) cross join lateral (
    select k.kind, count(*) as count from (
      select c.kind from headgate.callback c where c.state = s.state order by c.kind limit ${MOST_COUNTED}
    ) k group by k.kind
  ) n order by s.state, n.kind`

interface SummaryRow {
  readonly key: string
  readonly job_id: JobId
  readonly kind: string
  readonly queue: string
  readonly partition_key: string
  readonly reason: DeathReason
  readonly state: DeathState
  readonly calls: number
  readonly archived_at_ms: bigint
  readonly due_at_ms: bigint
  readonly ended_at_ms: bigint | null
  readonly worker: string | null
  readonly error_tag: string | null
  readonly error_message: string | null
  readonly fault_tag: string | null
  readonly fault_message: string | null
}

interface ClaimRow extends SummaryRow {
  readonly fence: bigint
  readonly schema_version: number
  readonly attempt: number
  readonly crash_attempt: number
  readonly error: Uint8Array | null
  readonly tags: ReadonlyArray<string> | null
  readonly headers: Uint8Array | null
  readonly payload: Uint8Array | null
}

interface CountRow {
  readonly state: DeathState
  readonly kind: string
  readonly count: number
  readonly is_cut: boolean
}

const delayOf = (end: CallEnd): number => end._tag === "retry" ? end.delayMs : 0

const faultOf = (tag: string | null, message: string | null) =>
  tag === null ? undefined : { tag, message: message ?? "" }

const subject = (row: SummaryRow) => ({
  key: row.key,
  jobId: row.job_id,
  kind: row.kind,
  queue: row.queue,
  partitionKey: row.partition_key,
  reason: row.reason
})

const toDeath = (row: ClaimRow): RecordedDeath => ({
  ...subject(row),
  error: faultOf(row.error_tag, row.error_message),
  encodedError: row.error ?? undefined,
  payload: row.payload ?? nothing,
  schemaVersion: row.schema_version,
  attempt: row.attempt,
  crashAttempt: row.crash_attempt,
  archivedAtMs: Number(row.archived_at_ms),
  tags: row.tags ?? [],
  headers: row.headers === null ? {} : readHeaders(row.headers),
  call: row.calls
})

const nothing = new Uint8Array(0)

const toSummary = (row: SummaryRow): DeathSummary => ({
  ...subject(row),
  state: row.state,
  calls: row.calls,
  archivedAtMs: Number(row.archived_at_ms),
  dueAtMs: Number(row.due_at_ms),
  endedAtMs: row.ended_at_ms === null ? undefined : Number(row.ended_at_ms),
  worker: row.worker ?? undefined,
  error: faultOf(row.error_tag, row.error_message),
  fault: faultOf(row.fault_tag, row.fault_message)
})
