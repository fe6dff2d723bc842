/** What the store says of a job or of its durable progress, in the words of an assertion. */
import { JobId } from "@headgate/core/Ids"
import { Inspect } from "@headgate/core/Inspect"
import { Effect } from "effect"
import type { CheckpointAssertion, JobAssertion } from "./Scenario.ts"
import { textOf, type World } from "./World.ts"

export type Facts = Readonly<Record<string, unknown>>

/** Payload and result are read only where they are asserted. */
export const ofJob = Effect.fnUntraced(function*({ startMs }: World, asserted: JobAssertion) {
  const inspect = yield* Inspect
  const id = JobId.make(asserted.job)
  const job = yield* Effect.catchTag(inspect.job(id), "NotFound", () => Effect.undefined)
  if (job === undefined) return { state: "deleted" } satisfies Facts
  const payload = asserted.payload === undefined ? undefined : yield* inspect.payload(id)
  const result = asserted.result === undefined ? undefined : yield* inspect.result(id)
  return {
    state: job.state,
    reason: job.reason ?? null,
    attempt: job.attempt,
    crash_attempt: job.crashAttempt,
    fence: job.fence,
    orphaned: job.orphaned,
    kind: job.kind,
    queue: job.queue,
    priority: job.priority,
    payload: payload && textOf(payload.bytes),
    result: result === undefined ? null : textOf(result.bytes),
    scheduled_at_ms: job.scheduledAtMs - startMs,
    worker: job.worker ?? null,
    lease_expires_at_ms: job.leaseExpiresAtMs === undefined ? null : job.leaseExpiresAtMs - startMs
  } satisfies Facts
})

export const ofCheckpoint = Effect.fnUntraced(function*({ checkpoint }: CheckpointAssertion) {
  const found = yield* Inspect.use((inspect) => inspect.checkpoint(JobId.make(checkpoint)))
  return {
    completed_steps: found?.records.map(({ step }) => step) ?? [],
    in_progress_step: found?.inProgress ?? null,
    cursor_step: found?.cursor?.step ?? null,
    cursor: found?.cursor === undefined ? null : textOf(found.cursor.bytes),
    crashes_by_step: found?.crashesByStep ?? {}
  } satisfies Facts
})
