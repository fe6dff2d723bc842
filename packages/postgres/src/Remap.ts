/** Rewrites the stored steps of a job to the names of a new step set, in one transaction of the control path. */
import type { Checkpoints, Remap } from "@headgate/core/Checkpoints"
import { LeaseRejected } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import { type ControlSql, rollbackFaults, toUnavailable } from "./ControlSql.ts"

/**
 * A record follows the entry for its whole identity, else that for its name (`name` of `name[key]`, the key is kept).
 * Without an entry it stays when its name is in the new set, and goes otherwise.
 */
export const makeRemap = ({ client, statement }: ControlSql["Service"]): Checkpoints["Service"]["remap"] => {
  const open = statement<MarkRow>(
    "Checkpoints.remap",
    `update headgate.job j set step_set = $4, checkpoint_version = greatest(j.checkpoint_version, $5),
      lane_id = case when $5 > greatest(j.schema_version, j.checkpoint_version)
        then headgate.lane_for(j.lane_id, $5, j.crash_attempt > 0) else j.lane_id end
    from (select o.id, o.step_set from headgate.job o where o.id = $1 for no key update) before
    where j.id = before.id and j.lease_id = $2 and j.fence = $3
    returning j.in_progress_step, j.cursor_step, coalesce(before.step_set = $4, false) as is_done`
  )
  const state = statement<{ state: string }>("Checkpoints.remap", "select j.state from headgate.job j where j.id = $1")
  const take = statement<StepRow>(
    "Checkpoints.remap",
    `delete from headgate.step s where s.job_id = $1
    returning s.fence, s.step, s.kind, s.position, s.result, s.wake_at_ms, s.recorded_at_ms`
  )
  const put = statement(
    "Checkpoints.remap",
    `insert into headgate.step (job_id, fence, step, kind, position, result, wake_at_ms, recorded_at_ms)
    select $1, i.fence, i.step, i.kind, i.position, i.result, i.wake_at_ms, i.recorded_at_ms
    from unnest($2, $3, $4, $5, $6, $7, $8)
      as i(fence, step, kind, position, result, wake_at_ms, recorded_at_ms) order by i.position
    on conflict do nothing`
  )
  const point = statement(
    "Checkpoints.remap",
    `update headgate.job j set in_progress_step = $2, cursor_step = $3,
      cursor = case when $3 is null then null else j.cursor end
    where j.id = $1`
  )

  const rewrite = Effect.fnUntraced(function*(remap: Remap) {
    const { fence, jobId, leaseId } = remap.lease
    const id = Bind.text(jobId)
    const marks = yield* open([
      id,
      Bind.uuid(leaseId),
      Bind.bigint(fence),
      Bind.texts(remap.stepSet),
      Bind.int(remap.version)
    ])
    const [mark] = marks
    if (mark === undefined) {
      const [job] = yield* state([id])
      return yield* new LeaseRejected({ jobId, state: job?.state ?? "missing" })
    }
    // The answer to an earlier call was lost: renamed again, a record could take the name of another.
    if (mark.is_done) return
    const rename = renamer(remap)
    const steps = (yield* take([id])).flatMap((row) => rename(row.step).map((step) => ({ ...row, step })))
    yield* put([id, ...stepParams(steps)])
    const first = (step: string | null) => Bind.text(step === null ? null : rename(step)[0] ?? null)
    yield* point([id, first(mark.in_progress_step), first(mark.cursor_step)])
  })

  return Effect.fn("Checkpoints.remap")((remap: Remap) =>
    Effect.catchTag(
      rollbackFaults(client.withTransaction(rewrite(remap))),
      "SqlError",
      toUnavailable("Checkpoints.remap")
    )
  )
}

const renamer = ({ stepSet, steps }: Remap): (identity: string) => ReadonlyArray<string> => {
  const entries = new Map(steps.map(({ from, to }) => [from, to]))
  const kept = new Set(stepSet)
  return (identity) => {
    const whole = entries.get(identity)
    if (whole !== undefined) return whole
    const bracket = identity.indexOf("[")
    const name = bracket === -1 ? identity : identity.slice(0, bracket)
    const named = entries.get(name)
    if (named !== undefined) return named.map((to) => to + identity.slice(name.length))
    return kept.has(name) ? [identity] : []
  }
}

const stepParams = (steps: ReadonlyArray<StepRow>): ReadonlyArray<unknown> => [
  Bind.bigints(steps.map((row) => Number(row.fence))),
  Bind.texts(steps.map((row) => row.step)),
  Bind.texts(steps.map((row) => row.kind)),
  Bind.ints(steps.map((row) => row.position)),
  Bind.bytes(steps.map((row) => row.result)),
  Bind.bigints(steps.map((row) => row.wake_at_ms === null ? null : Number(row.wake_at_ms))),
  Bind.bigints(steps.map((row) => Number(row.recorded_at_ms)))
]

interface MarkRow {
  readonly in_progress_step: string | null
  readonly cursor_step: string | null
  readonly is_done: boolean
}

interface StepRow {
  readonly fence: bigint
  readonly step: string
  readonly kind: string
  readonly position: number
  readonly result: Uint8Array | null
  readonly wake_at_ms: bigint | null
  readonly recorded_at_ms: bigint
}
