/**
 * What a refused newcomer writes over the waiting holder of its unique key: one call of the SQL function `replace_job`,
 * which locks the holder and leaves it alone when it runs or has ended.
 */
import type { Envelope } from "@headgate/core/Envelope"
import type { State } from "@headgate/core/State"
import { UNIQUE_REPLACE_PAYLOAD, UNIQUE_REPLACE_SCHEDULED_AT } from "@headgate/core/UniqueKey"
import * as Bind from "./Bind.ts"

export const replaceSql = `select r.from_state, r.to_state, r.queue from headgate.replace_job($1, $2, $3, $4,
  coalesce($5, headgate.content_fingerprint($6, $3)), coalesce($7, headgate.now_ms() + $8), $9::smallint, $10) r`

/** No row: the holder is gone. `to_state` is null when the holder did not wait. */
export interface ReplacedRow {
  readonly from_state: State
  readonly to_state: State | null
  readonly queue: string
}

/** Undefined for a newcomer that replaces nothing. */
export const replaceParams = (
  holder: { readonly id: string; readonly kind: string },
  job: Envelope
): ReadonlyArray<unknown> | undefined => {
  const isDebounced = job.uniqueDebounceMs !== undefined
  const fields = job.uniqueReplace | (isDebounced ? UNIQUE_REPLACE_SCHEDULED_AT : 0)
  if (fields === 0) return undefined
  // A key that leaves the kind out may be held by a job whose handler could not read this payload.
  if (holder.kind !== job.kind && (fields & UNIQUE_REPLACE_PAYLOAD) !== 0) return undefined
  return [
    Bind.text(holder.id),
    Bind.int(fields),
    Bind.bytea(job.payload),
    Bind.int(job.schemaVersion),
    Bind.text(job.fingerprint ?? null),
    Bind.text(holder.kind),
    Bind.bigint(isDebounced ? null : job.scheduledAtMs ?? null),
    Bind.bigint(job.uniqueDebounceMs ?? job.delayMs ?? 0),
    Bind.int(job.priority),
    Bind.int(job.maxAttempts)
  ]
}
