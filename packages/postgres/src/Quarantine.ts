/** Fingerprints that crash, by the functions of `0010_quarantine.sql`. */
import type { JobId } from "@headgate/core/Ids"
import { refuseInteger } from "@headgate/core/Millis"
import { Quarantine, type QuarantineEntry } from "@headgate/core/Quarantine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

/** The literal condition lets its index serve: by fingerprint, from `$1` on. */
const listSql = (condition: string) =>
  `select s.fingerprint, s.kind, s.last_job_id, s.last_at_ms, s.strikes, s.closed_at_ms, s.by_step,
    (select count(*)::int from (select from headgate.job j where j.fingerprint = s.fingerprint
      and j.state = 'quarantined' and j.reason in ('fingerprint', 'crash_limit') limit ${MAX_COUNTED}) q) as quarantined
  from headgate.strike s where s.fingerprint > $1 and ${condition} order by s.fingerprint limit $2`

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const { announce } = yield* Announcer
  const lists = {
    both: statement<StrikeRow>("Quarantine.list", listSql("true")),
    closed: statement<StrikeRow>("Quarantine.list", listSql("s.closed_at_ms is not null")),
    counting: statement<StrikeRow>("Quarantine.list", listSql("s.closed_at_ms is null"))
  }
  const release = statement<ReleasedRow>("Quarantine.release", "select * from headgate.release_fingerprint($1, $2, $3)")

  return Quarantine.of({
    list: Effect.fn("Quarantine.list")(function*({ after = "", limit = DEFAULT_PAGE, only } = {}) {
      const refusal = refuseInteger("limit", limit, 1, MAX_PAGE)
      if (refusal !== undefined) return yield* refusal
      // One more tells whether there is a next page.
      const rows = yield* lists[only ?? "both"]([Bind.id(after), Bind.int(limit + 1)])
      const items = rows.slice(0, limit).map(toEntry)
      return { items, next: rows.length > limit ? items.at(-1)?.fingerprint : undefined }
    }),
    release: Effect.fn("Quarantine.release")(function*(fingerprint, options) {
      const limit = options?.limit
      const refusal = limit === undefined ? undefined : refuseInteger("limit", limit, 1, Number.MAX_SAFE_INTEGER)
      if (refusal !== undefined) return yield* refusal
      let released = 0
      let keyTaken = 0
      for (let after = "", left = limit ?? Number.POSITIVE_INFINITY; left > 0;) {
        const size = Math.min(left, BATCH)
        const [row] = yield* release([Bind.id(fingerprint), Bind.int(size), Bind.text(after)])
        if (row === undefined) break
        yield* announce(row.queues)
        released += row.released
        keyTaken += row.looked - row.released
        left -= row.released
        if (row.looked < size || row.last_id === null) break
        after = row.last_id
      }
      return { released, keyTaken }
    })
  })
})

export const layer: Layer.Layer<Quarantine, never, ControlSql | Announcer> = Layer.effect(Quarantine, make)

interface StrikeRow {
  readonly fingerprint: string
  readonly kind: string
  readonly last_job_id: JobId
  readonly last_at_ms: bigint
  readonly strikes: number
  readonly closed_at_ms: bigint | null
  readonly by_step: Readonly<Record<string, number>> | null
  readonly quarantined: number
}

interface ReleasedRow {
  readonly released: number
  readonly looked: number
  readonly last_id: string | null
  readonly queues: ReadonlyArray<string>
}

const toEntry = (row: StrikeRow): QuarantineEntry => ({
  fingerprint: row.fingerprint,
  kind: row.kind,
  lastJobId: row.last_job_id,
  lastAtMs: Number(row.last_at_ms),
  strikes: row.strikes,
  closedAtMs: row.closed_at_ms === null ? undefined : Number(row.closed_at_ms),
  byStep: row.by_step ?? {},
  quarantined: row.quarantined
})

const MAX_COUNTED = 1000
const DEFAULT_PAGE = 50
const MAX_PAGE = 200
const BATCH = 200
