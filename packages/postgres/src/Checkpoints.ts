/**
 * Fence-verified step boundaries. A batch of one, the case of a lone workflow, is a plain single-row statement; more
 * share one statement over arrays. A repeat after a lost answer is harmless: a record that is there stays as it is.
 */
import type { StepWrite } from "@headgate/core/Checkpoint"
import { Checkpoints, type SleepWrite } from "@headgate/core/Checkpoints"
import { LeaseRejected } from "@headgate/core/Refusals"
import type { State } from "@headgate/core/State"
import { isStorableText, utf8Length } from "@headgate/core/Text"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"
import { makeRemap } from "./Remap.ts"

/** A step's identity is part of an index key. The worker refuses a longer one before it gets here. */
const MAX_STEP_BYTES = 1024

/** A newer version than any before moves the job to the lane of the workers that know it. */
const opened = (stepSet: string, version: string): string => `
    step_set = case when ${version} is null then j.step_set else ${stepSet} end,
    checkpoint_version = greatest(j.checkpoint_version, ${version}),
    lane_id = case when ${version} > greatest(j.schema_version, j.checkpoint_version)
      then headgate.lane_for(j.lane_id, ${version}, j.crash_attempt > 0) else j.lane_id end`

const written = (
  w: { readonly [K in "leaseMs" | "step" | "mark" | "cursorStep" | "cursor" | "stepSet" | "version"]: string }
) => `
    lease_expires_at_ms = greatest(j.lease_expires_at_ms, (select headgate.now_ms()) + ${w.leaseMs}),
    has_steps = j.has_steps or ${w.step} is not null,
    in_progress_step = case when ${w.mark} is not null then ${w.mark}
      when j.in_progress_step = ${w.step} then null else j.in_progress_step end,
    cursor_step = case when ${w.cursorStep} is not null then ${w.cursorStep}
      when j.cursor_step = ${w.step} then null else j.cursor_step end,
    cursor = case when ${w.cursorStep} is not null then ${w.cursor}
      when j.cursor_step = ${w.step} then null else j.cursor end,${opened(w.stepSet, w.version)}`

const oneSql = `with held as (
    update headgate.job j set ${
  written({
    leaseMs: "$4",
    step: "$5::text",
    mark: "$9::text",
    cursorStep: "$10::text",
    cursor: "$11::bytea",
    stepSet: "$12::text[]",
    version: "$13::int"
  })
}
    where j.id = $1 and j.lease_id = $2 and j.fence = $3
    returning j.id, j.fence
  ), recorded as (
    insert into headgate.step (job_id, fence, step, kind, position, result, wake_at_ms, recorded_at_ms)
    select h.id, h.fence, $5, $6, $7, $8, $14, headgate.now_ms() from held h where $5 is not null
    on conflict do nothing
  )
  select 1 as one from held`

const manySql = `with item as (
    select i.*, i.step_names::text[] as step_set
    from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) as i(job_id, lease_id, fence, lease_ms,
      step, kind, position, result, mark, cursor_step, cursor, step_names, version, wake_at_ms) order by i.job_id
  ), held as (
    update headgate.job j set ${
  written({
    leaseMs: "i.lease_ms",
    step: "i.step",
    mark: "i.mark",
    cursorStep: "i.cursor_step",
    cursor: "i.cursor",
    stepSet: "i.step_set",
    version: "i.version"
  })
}
    from item i where j.id = i.job_id and j.lease_id = i.lease_id and j.fence = i.fence
    returning j.id, j.fence, i.step, i.kind, i.position, i.result, i.wake_at_ms
  ), recorded as (
    insert into headgate.step (job_id, fence, step, kind, position, result, wake_at_ms, recorded_at_ms)
    select h.id, h.fence, h.step, h.kind, h.position, h.result, h.wake_at_ms, headgate.now_ms()
    from held h where h.step is not null
    on conflict do nothing
  )
  select h.id as job_id from held h`

/**
 * A resumed sleep keeps the wake time of its record, also when the caller does not know it. The record names the fence
 * that slept last: see `sleptSql`.
 */
const sleepSql = `with wake as (
    select coalesce(
        (select s.wake_at_ms from headgate.step s where s.job_id = $1 and s.step = $4), $6, clock.now + $7) as wake_at,
      clock.now
    from (select headgate.now_ms() as now) clock
  ), held as (
    update headgate.job j set
      state = case when j.deadline_at_ms <= greatest(w.wake_at, w.now) then 'archived' else 'scheduled' end,
      reason = case when j.deadline_at_ms <= greatest(w.wake_at, w.now) then 'deadline' end,
      finished_at_ms = case when j.deadline_at_ms <= greatest(w.wake_at, w.now) then w.now end,
      scheduled_at_ms = w.wake_at, has_steps = true, streak = 0,
      in_progress_step = case when j.in_progress_step = $4 then null else j.in_progress_step end,
      last_lease_id = j.lease_id, last_worker = j.worker, lease_id = null, lease_expires_at_ms = null, worker = null,${
  opened("$8::text[]", "$9::int")
}
    from wake w where j.id = $1 and j.lease_id = $2 and j.fence = $3
    returning j.id, j.fence, j.state, w.wake_at, w.now
  ), recorded as (
    insert into headgate.step (job_id, fence, step, kind, position, wake_at_ms, recorded_at_ms)
    select h.id, h.fence, $4, 'sleep', $5, h.wake_at, h.now from held h
    on conflict (job_id, step) do update set fence = excluded.fence, recorded_at_ms = excluded.recorded_at_ms
  )
  select h.state, case when h.state = 'archived'
    then headgate.record_callback(h.id, 'deadline', null, null, h.now, null, null, null) end as recorded
  from held h`

/**
 * Whether an earlier try, whose answer was lost, has put the job to sleep, and in which state that left it. By now the
 * job may be further on: promoted, claimed by the next attempt, at its end. The record stands under any name, since the
 * next attempt may have renamed it. Under this very fence the job also tells whose lease it was.
 */
const sleptSql = `select j.state, case when s.fence is not null and (j.fence > $3 or j.last_lease_id = $2)
      then case when j.deadline_at_ms <= greatest(s.wake_at_ms, s.recorded_at_ms) then 'archived' else 'scheduled' end
    end as slept
  from headgate.job j
  left join lateral (
    select r.fence, r.wake_at_ms, r.recorded_at_ms from headgate.step r
    where r.job_id = j.id and r.kind = 'sleep' and r.fence = $3 limit 1
  ) s on true
  where j.id = $1`

const make = Effect.gen(function*() {
  const control = yield* ControlSql
  const { statement } = control
  const one = statement("Checkpoints.write", oneSql)
  const many = statement<{ job_id: string }>("Checkpoints.write", manySql)
  const sleep = statement<{ state: State }>("Checkpoints.sleep", sleepSql)
  const lookUp = statement<{ state: State; slept: "scheduled" | "archived" | null }>("Checkpoints.sleep", sleptSql)

  const writeMany = Effect.fnUntraced(function*(batch: ReadonlyArray<StepWrite>) {
    const rows = yield* Effect.uninterruptible(many(manyParams(batch)))
    const held = new Set(rows.map((row) => row.job_id))
    return batch.map(({ lease }) => held.has(lease.jobId))
  })

  return Checkpoints.of({
    write: Effect.fn("Checkpoints.write")(function*(batch) {
      batch.forEach(checkNames)
      const [first] = batch
      if (first === undefined) return []
      if (batch.length === 1) {
        const rows = yield* Effect.uninterruptible(one(oneParams(first)))
        return [rows.length > 0]
      }
      const answers = new Map<StepWrite, boolean>()
      for (const round of rounds(batch)) {
        const held = yield* writeMany(round)
        round.forEach((write, index) => answers.set(write, held[index] === true))
      }
      return batch.map((write) => answers.get(write) === true)
    }),
    sleep: Effect.fn("Checkpoints.sleep")(function*(write) {
      checkStep(write.step)
      const [slept] = yield* Effect.uninterruptible(sleep(sleepParams(write)))
      if (slept !== undefined) return slept.state
      const { fence, jobId, leaseId } = write.lease
      const [job] = yield* lookUp([Bind.text(jobId), Bind.uuid(leaseId), Bind.bigint(fence)])
      return job?.slept ?? (yield* new LeaseRejected({ jobId, state: job?.state ?? "missing" }))
    }),
    remap: makeRemap(control)
  })
})

export const layer: Layer.Layer<Checkpoints, never, ControlSql> = Layer.effect(Checkpoints, make)

/** One job may stand in a batch more than once: the statement takes each job once, so the rest follow. */
const rounds = (batch: ReadonlyArray<StepWrite>): ReadonlyArray<ReadonlyArray<StepWrite>> => {
  const seen = new Set<string>()
  const later: Array<StepWrite> = []
  const first = batch.filter((write) => {
    if (seen.has(write.lease.jobId)) later.push(write)
    else return seen.add(write.lease.jobId)
    return false
  })
  return later.length === 0 ? [first] : [first, ...rounds(later)]
}

const oneParams = ({ cursor, lease, leaseMs, mark, open, record }: StepWrite): ReadonlyArray<unknown> => [
  Bind.text(lease.jobId),
  Bind.uuid(lease.leaseId),
  Bind.bigint(lease.fence),
  Bind.bigint(leaseMs),
  Bind.text(record?.step ?? null),
  Bind.text(record?.kind ?? null),
  Bind.int(record?.position ?? null),
  Bind.bytea(record?.result ?? null),
  Bind.text(mark ?? null),
  Bind.text(cursor?.step ?? null),
  Bind.bytea(cursor?.bytes ?? null),
  open?.stepSet === undefined ? Bind.noTexts : Bind.texts(open.stepSet),
  Bind.int(open?.version ?? null),
  Bind.bigint(record?.wakeAtMs ?? null)
]

const manyParams = (batch: ReadonlyArray<StepWrite>): ReadonlyArray<unknown> => [
  Bind.texts(batch.map(({ lease }) => lease.jobId)),
  Bind.uuids(batch.map(({ lease }) => lease.leaseId)),
  Bind.bigints(batch.map(({ lease }) => lease.fence)),
  Bind.bigints(batch.map(({ leaseMs }) => leaseMs)),
  Bind.texts(batch.map(({ record }) => record?.step ?? null)),
  Bind.texts(batch.map(({ record }) => record?.kind ?? null)),
  Bind.ints(batch.map(({ record }) => record?.position ?? null)),
  Bind.bytes(batch.map(({ record }) => record?.result ?? null)),
  Bind.texts(batch.map(({ mark }) => mark ?? null)),
  Bind.texts(batch.map(({ cursor }) => cursor?.step ?? null)),
  Bind.bytes(batch.map(({ cursor }) => cursor?.bytes ?? null)),
  Bind.texts(batch.map(({ open }) => open?.stepSet === undefined ? null : Bind.textArrayLiteral(open.stepSet))),
  Bind.ints(batch.map(({ open }) => open?.version ?? null)),
  Bind.bigints(batch.map(({ record }) => record?.wakeAtMs ?? null))
]

const sleepParams = ({ lease, open, position, step, until }: SleepWrite): ReadonlyArray<unknown> => [
  Bind.text(lease.jobId),
  Bind.uuid(lease.leaseId),
  Bind.bigint(lease.fence),
  Bind.text(step),
  Bind.int(position),
  Bind.bigint("wakeAtMs" in until ? until.wakeAtMs : null),
  Bind.bigint("delayMs" in until ? until.delayMs : null),
  open?.stepSet === undefined ? Bind.noTexts : Bind.texts(open.stepSet),
  Bind.int(open?.version ?? null)
]

const checkNames = ({ cursor, mark, record }: StepWrite): void => {
  for (const step of [record?.step, mark, cursor?.step]) if (step !== undefined) checkStep(step)
}

/** Before anything is sent, so that one name the database refuses does not sink the writes of other jobs half-way. */
export const checkStep = (step: string): void => checkText("a step's identity", step, MAX_STEP_BYTES)

export const checkText = (what: string, text: string, maxBytes: number): void => {
  if (text === "" || !isStorableText(text) || utf8Length(text) > maxBytes) {
    throw new Error(`${what} must be 1 to ${maxBytes} bytes of text without NUL or half pairs`)
  }
}
