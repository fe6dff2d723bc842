/** The limits of what a redrive may be asked. The first fault is answered; defaults are filled in. */
import * as Result from "effect/Result"
import { DeathReason } from "./DeathCallbacks.ts"
import { MAX_ID_BYTES, MAX_PARTITION_KEY_BYTES, refuseText } from "./EnqueueGuard.ts"
import { MAX_ERROR_TAG_BYTES } from "./ErrorText.ts"
import { refuseName } from "./Kind.ts"
import { MAX_TIME_MS, refuseInteger, refuseMillis, wholeMillis } from "./Millis.ts"
import type {
  RedriveDeadline,
  RedriveFilter,
  RedriveRequest,
  RedriveSelection,
  RedriveSettings,
  Signature
} from "./Redrive.ts"
import { Invalid } from "./Refusals.ts"
import { refuseTags } from "./Tags.ts"
import { MAX_ACTOR_BYTES } from "./WorkerControl.ts"

export const MAX_REDRIVE_IDS = 10_000
export const MAX_NOTE_BYTES = 2000
export const MAX_REDRIVE_BATCH = 1000
export const MAX_REDRIVE_RATE = 10_000

export const validateRedrive = (request: RedriveRequest): Result.Result<RedriveSettings, Invalid> => {
  const settings: RedriveSettings = {
    staged: request.staged ?? true,
    maxFailureRatio: request.maxFailureRatio ?? 0.5,
    stageWaitMs: request.stageWaitMs ?? 300_000,
    batch: request.batch ?? 100,
    perSecond: request.perSecond ?? 1000,
    deadline: request.deadline ?? "keep"
  }
  const refusal = refuseSelection(request) ?? refuseSignature(request) ?? refuseSettings(settings) ??
    (request.id === undefined ? undefined : refuseText("id", request.id, 1, MAX_ID_BYTES))
  return refusal === undefined ? Result.succeed(settings) : Result.fail(refusal)
}

export const refuseSelection = ({ filter, ids }: RedriveSelection): Invalid | undefined => {
  if (filter !== undefined && ids !== undefined) {
    return new Invalid({ field: "ids", message: "give a filter or ids, not both" })
  }
  if (ids !== undefined) return refuseIds(ids)
  return filter === undefined
    ? new Invalid({ field: "filter", message: "give a filter or ids" })
    : refuseFilter(filter)
}

export const refuseSignature = ({ actor, note }: Signature): Invalid | undefined =>
  refuseText("actor", actor, 1, MAX_ACTOR_BYTES) ?? refuseText("note", note, 1, MAX_NOTE_BYTES)

const refuseIds = (ids: ReadonlyArray<string>): Invalid | undefined => {
  const refusal = refuseInteger("ids", ids.length, 1, MAX_REDRIVE_IDS, " jobs")
  if (refusal !== undefined) return refusal
  for (const id of ids) {
    const refusal = refuseText("ids", id, 1, MAX_ID_BYTES)
    if (refusal !== undefined) return refusal
  }
  return undefined
}

const refuseFilter = (filter: RedriveFilter): Invalid | undefined => {
  const { archivedBeforeMs, archivedFromMs, archivedWithin, errorTag, kind, partitionKey, queue, reason, tag } = filter
  const conditions = [
    archivedBeforeMs,
    archivedFromMs,
    archivedWithin,
    errorTag,
    kind,
    partitionKey,
    queue,
    reason,
    tag
  ]
  if (conditions.every((condition) => condition === undefined)) {
    const message = "the filter is empty: archivedBeforeMs alone selects all that was archived until then"
    return new Invalid({ field: "filter", message, limit: 1, actual: 0 })
  }
  if (archivedWithin !== undefined && archivedFromMs !== undefined) {
    return new Invalid({ field: "archivedWithin", message: "give archivedWithin or archivedFromMs, not both" })
  }
  return given(kind, (kind) => refuseName("kind", kind)) ??
    given(queue, (queue) => refuseName("queue", queue)) ??
    given(partitionKey, (key) => refuseText("partitionKey", key, 0, MAX_PARTITION_KEY_BYTES)) ??
    given(reason, refuseReason) ??
    given(errorTag, (tag) => refuseText("errorTag", tag, 1, MAX_ERROR_TAG_BYTES)) ??
    given(tag, (tag) => refuseTags([tag])) ??
    given(archivedFromMs, (ms) => refuseInteger("archivedFromMs", ms, 0, MAX_TIME_MS, " ms")) ??
    given(archivedBeforeMs, (ms) => refuseInteger("archivedBeforeMs", ms, 0, MAX_TIME_MS, " ms")) ??
    given(archivedWithin, (within) => {
      const ms = wholeMillis("archivedWithin", within)
      return Result.isFailure(ms) ? ms.failure : undefined
    })
}

/** `archivedWithin` of a filter that was not refused, in milliseconds. */
export const archivedWithinMs = ({ archivedWithin }: RedriveFilter): number | undefined =>
  archivedWithin === undefined ? undefined : Result.getOrThrow(wholeMillis("archivedWithin", archivedWithin))

const given = <A>(value: A | undefined, refuse: (value: A) => Invalid | undefined): Invalid | undefined =>
  value === undefined ? undefined : refuse(value)

const refuseReason = (reason: string): Invalid | undefined =>
  reasons.has(reason) ? undefined : new Invalid({ field: "reason", message: `no job is archived for ${reason}` })

const reasons: ReadonlySet<string> = new Set(DeathReason.literals)

const refuseSettings = (
  { batch, deadline, maxFailureRatio, perSecond, stageWaitMs }: RedriveSettings
): Invalid | undefined =>
  refuseRatio(maxFailureRatio) ??
    refuseInteger("stageWaitMs", stageWaitMs, 1000, MAX_STAGE_WAIT_MS, " ms") ??
    refuseInteger("batch", batch, 1, MAX_REDRIVE_BATCH, " jobs") ??
    refuseInteger("perSecond", perSecond, 1, MAX_REDRIVE_RATE, " jobs") ??
    refuseDeadline(deadline)

const MAX_STAGE_WAIT_MS = 604_800_000

const refuseRatio = (ratio: number): Invalid | undefined =>
  ratio >= 0 && ratio <= 1
    ? undefined
    : new Invalid({
      field: "maxFailureRatio",
      message: "maxFailureRatio must be a number from 0 to 1",
      ...(Number.isFinite(ratio) ? { limit: ratio < 0 ? 0 : 1, actual: ratio } : {})
    })

const refuseDeadline = (deadline: RedriveDeadline): Invalid | undefined => {
  if (deadline === "keep" || deadline === "clear") return undefined
  return typeof deadline === "object" && deadline !== null
    ? refuseMillis("deadline", deadline.afterMs, 1)
    : new Invalid({ field: "deadline", message: "deadline must be keep, clear or { afterMs }" })
}
