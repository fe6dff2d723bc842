/** Each operation of the corpus as a call of the store's contracts: accepted with what it answers, or refused. */
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import { Envelope } from "@headgate/core/Envelope"
import { Gate } from "@headgate/core/Gate"
import { JobId, LeaseId, WorkerId } from "@headgate/core/Ids"
import { Leases } from "@headgate/core/Leases"
import { Producer } from "@headgate/core/Producer"
import { LeaseRejected } from "@headgate/core/Refusals"
import {
  UNIQUE_REPLACE_MAX_ATTEMPTS,
  UNIQUE_REPLACE_PAYLOAD,
  UNIQUE_REPLACE_PRIORITY,
  UNIQUE_REPLACE_SCHEDULED_AT
} from "@headgate/core/UniqueKey"
import { Effect } from "effect"
import { outcomeOf } from "./Outcomes.ts"
import { type Answers, type Arguments, listOf, type NewJob, type OperationName } from "./Scenario.ts"
import { Stage, type StoreUnderTest } from "./Stage.ts"
import * as World from "./World.ts"

/** A refusal as a store gives it. Any error with another name than the step expects makes the scenario fail. */
export interface Refusal {
  readonly _tag: string
}

type Operation<Name extends OperationName> = (
  world: World.World,
  given: Arguments[Name]
) => Effect.Effect<Answers, Refusal, StoreUnderTest>

const advance: Operation<"advance_ms"> = (_, ms) => nothing(Stage.use((stage) => stage.advance(ms)))

const enqueue: Operation<"enqueue"> = Effect.fnUntraced(function*(world, given) {
  const jobs = yield* Producer.use((producer) => producer.enqueue(listOf(given).map((job) => envelopeOf(world, job))))
  const [only] = jobs
  return only !== undefined && jobs.length === 1 ? { status: only.status } : {}
})

const admit: Operation<"admit"> = Effect.fnUntraced(function*(world, given) {
  const { capacity = 1, kinds = World.kindsOf(world), lease_ms = LEASE_MS, queues = ["default"], worker } = given
  const gate = yield* Gate
  const request = {
    worker: WorkerId.make(worker),
    queues,
    kinds: Object.entries(kinds).map(([kind, version]) => ({ kind, version })),
    leaseMs: lease_ms,
    quantum: undefined
  }
  world.admitted = []
  for (let more = true; more && world.admitted.length < capacity;) {
    const leaseId = LeaseId.make(crypto.randomUUID())
    const admission = yield* gate.admit({ ...request, leaseId, capacity: capacity - world.admitted.length })
    const claimed = admission.claims.map((claim) => ({ claim, version: kinds[claim.kind] ?? claim.schemaVersion }))
    world.admitted = [...world.admitted, ...claimed]
    more = admission.more
  }
  return { jobs: world.admitted.map(({ claim }) => claim.lease.jobId) }
})

const settle: Operation<"settle"> = Effect.fnUntraced(function*(world, given) {
  const batch = listOf(given).map((item) => ({
    lease: World.held(world, item.claim).claim.lease,
    outcome: outcomeOf(item)
  }))
  const settled = yield* Leases.use((leases) => leases.settle(batch))
  const [only] = settled
  if (only === undefined || Array.isArray(given)) {
    return { rejected: settled.filter(({ _tag }) => _tag === "Rejected").map(({ jobId }) => jobId) }
  }
  const { jobId, state } = only
  return only._tag === "Applied" ? { state } : yield* new LeaseRejected({ jobId, state })
})

const renew: Operation<"renew"> = Effect.fnUntraced(function*(world, { claims, lease_ms = LEASE_MS }) {
  const refs = claims.map((name) => World.held(world, name).claim.lease)
  const { lost } = yield* Leases.use((leases) => leases.renew(refs, lease_ms))
  return { lost: lost.map(({ jobId }) => jobId) }
})

const checkpoint: Operation<"checkpoint"> = Effect.fnUntraced(function*(world, given) {
  const holder = World.held(world, given.claim)
  const { claim: { lease }, hasWritten, version } = holder
  const [isAccepted] = yield* Checkpoints.use((checkpoints) =>
    checkpoints.write([{
      lease,
      leaseMs: given.lease_ms ?? LEASE_MS,
      record: given.record && {
        step: given.record.step,
        kind: "step",
        position: holder.position,
        result: given.record.result === undefined ? undefined : World.bytesOf(given.record.result),
        wakeAtMs: undefined
      },
      mark: given.mark,
      cursor: given.cursor && { step: given.cursor.step, bytes: World.bytesOf(given.cursor.bytes) },
      open: hasWritten ? undefined : { stepSet: undefined, version }
    }])
  )
  if (isAccepted !== true) return yield* new LeaseRejected({ jobId: lease.jobId, state: "unknown" })
  holder.hasWritten = true
  if (given.record !== undefined) holder.position++
  return {}
})

const promoteDue: Operation<"promote_due"> = (_, { limit }) => nothing(Duties.use((duties) => duties.promoteDue(limit)))

const reclaim: Operation<"reclaim"> = (_, { limit }) =>
  Effect.map(Duties.use((duties) => duties.reclaimExpired(limit)), (jobs) => ({ jobs: jobs.map(({ jobId }) => jobId) }))

const expire: Operation<"expire"> = (_, { limit }) =>
  Effect.map(Duties.use((duties) => duties.expireDue(limit)), (jobs) => ({ jobs }))

const evict: Operation<"evict"> = (_, { limit }) => nothing(Duties.use((duties) => duties.evictRetained(limit)))

const promote: Operation<"promote"> = (_, { job }) =>
  nothing(Control.use((control) => control.promote(JobId.make(job))))

const cancel: Operation<"cancel"> = (_, { job }) =>
  Effect.map(Control.use((control) => control.cancel(JobId.make(job))), (answer) => ({ cancel: answer }))

const retry: Operation<"retry"> = ({ startMs }, { deadline_at_ms: at, job }) =>
  nothing(
    Control.use((control) =>
      control.retry(JobId.make(job), { deadlineAtMs: at === undefined || at === null ? at : startMs + at })
    )
  )

const release: Operation<"release"> = (_, { job }) =>
  nothing(Control.use((control) => control.release(JobId.make(job))))

const remove: Operation<"delete"> = (_, { job }) => nothing(Control.use((control) => control.remove(JobId.make(job))))

const reschedule: Operation<"reschedule"> = ({ startMs }, { at_ms: at, job }) =>
  nothing(
    Control.use((control) =>
      control.reschedule(JobId.make(job), at === undefined ? { behind: true } : { atMs: startMs + at })
    )
  )

const edit: Operation<"edit"> = ({ jobs }, { job, payload }) => {
  const schemaVersion = jobs.find(({ id }) => id === job)?.version ?? 1
  const bytes = World.bytesOf(payload)
  return nothing(Control.use((control) => control.edit(JobId.make(job), { bytes, schemaVersion })))
}

export const operations: { readonly [Name in OperationName]: Operation<Name> } = {
  advance_ms: advance,
  enqueue,
  admit,
  settle,
  renew,
  checkpoint,
  promote_due: promoteDue,
  reclaim,
  expire,
  evict,
  promote,
  cancel,
  retry,
  release,
  delete: remove,
  reschedule,
  edit
}

const LEASE_MS = 30_000

const REPLACE = {
  payload: UNIQUE_REPLACE_PAYLOAD,
  scheduled_at: UNIQUE_REPLACE_SCHEDULED_AT,
  priority: UNIQUE_REPLACE_PRIORITY,
  max_attempts: UNIQUE_REPLACE_MAX_ATTEMPTS
} as const

const nothing = <E, R>(effect: Effect.Effect<unknown, E, R>): Effect.Effect<Answers, E, R> => Effect.as(effect, {})

const envelopeOf = ({ startMs }: World.World, job: NewJob): Envelope => {
  const at = (ms: number | undefined) => ms === undefined ? undefined : startMs + ms
  return Envelope.make({
    id: job.id,
    kind: job.kind,
    schemaVersion: job.version,
    payload: World.bytesOf(job.payload ?? ""),
    queue: job.queue,
    partitionKey: job.partition,
    priority: job.priority,
    pending: job.pending,
    scheduledAtMs: at(job.scheduled_at_ms),
    deadlineAtMs: at(job.deadline_at_ms),
    queueTimeoutMs: job.queue_timeout_ms,
    maxAttempts: job.max_attempts ?? 3,
    crashLimit: job.crash_limit ?? 3,
    retentionMs: job.retention_ms ?? 3_600_000,
    uniqueKey: job.unique && World.bytesOf(job.unique.key),
    uniqueReplace: job.unique?.replace?.reduce((bits, field) => bits | REPLACE[field], 0),
    uniqueDebounceMs: job.unique?.debounce_ms,
    uniqueExcludeKind: job.unique?.exclude_kind
  })
}
