/** What the gate gives a worker: jobs it now owns, each with its lease, and the request that asked for them. */
import type { Checkpoint } from "./Checkpoint.ts"
import type { LeaseId, LeaseRef, WorkerId } from "./Ids.ts"

export interface Claim {
  readonly lease: LeaseRef
  readonly kind: string
  readonly schemaVersion: number
  readonly queue: string
  readonly partitionKey: string
  readonly payload: Uint8Array
  readonly priority: number
  /** Failures consumed by earlier attempts. */
  readonly attempt: number
  readonly maxAttempts: number
  readonly crashAttempt: number
  /** Consecutive attempts that ended as not a failure or rate limited; drives their backoff. */
  readonly streak: number
  readonly enqueuedAtMs: number
  readonly scheduledAtMs: number
  /** Store time of this claim; with `deadlineAtMs` it gives the local time budget. */
  readonly claimedAtMs: number
  readonly timeoutMs: number | undefined
  readonly deadlineAtMs: number | undefined
  readonly retentionMs: number
  readonly headers: Readonly<Record<string, string>>
  /** Present once an attempt of this job has written one. */
  readonly checkpoint: Checkpoint | undefined
}

/** What this worker can take now. */
export interface AdmitRequest {
  readonly worker: WorkerId
  /** Fresh for every call: it names this call's claims. */
  readonly leaseId: LeaseId
  readonly queues: ReadonlyArray<string>
  /** Every kind and alias this worker knows, with the highest version it can decode. */
  readonly kinds: ReadonlyArray<{ readonly kind: string; readonly version: number }>
  /** At most this many claims. */
  readonly capacity: number
  readonly leaseMs: number
  /** Jobs of one partition in a round; a partition's own setting stands before it, the queue's behind it. */
  readonly quantum: number | undefined
}

/** One or more claims of one kind, admitted as one decision and handed to one handler call. Size counts claims. */
export interface AdmissionUnit {
  readonly kind: string
  readonly claims: ReadonlyArray<Claim>
}

/**
 * Forms units of up to `size(kind)` claims of one kind, in the order the gate gave them. It runs after every claim was
 * charged, so it shapes dispatch and never policy.
 */
export const groupAdmissionClaims = (
  claims: ReadonlyArray<Claim>,
  size: (kind: string) => number
): ReadonlyArray<AdmissionUnit> => {
  const units: Array<{ readonly kind: string; readonly claims: Array<Claim> }> = []
  const open = new Map<string, Array<Claim>>()
  for (const claim of claims) {
    const group = open.get(claim.kind)
    // A job that crashed before runs alone: its neighbours must not be blamed for it.
    const isAlone = claim.crashAttempt > 0
    if (group !== undefined && !isAlone && group.length < size(claim.kind)) {
      group.push(claim)
      continue
    }
    const fresh = [claim]
    units.push({ kind: claim.kind, claims: fresh })
    if (!isAlone) open.set(claim.kind, fresh)
  }
  return units
}
