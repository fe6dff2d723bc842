/**
 * The identities that cross every boundary: jobs, leases, workers and fences. Branded, so that one cannot be passed
 * for another; each is a plain string or number at run time.
 */
import * as Schema from "effect/Schema"

/** A job's id: caller-supplied (1 to 128 bytes of visible text) or a ULID made by `IdGen`. */
export const JobId = Schema.String.pipe(Schema.brand("JobId"))
export type JobId = typeof JobId.Type

/** One random UUID per `admit` call, written on every job that call claimed. */
export const LeaseId = Schema.String.pipe(Schema.brand("LeaseId"))
export type LeaseId = typeof LeaseId.Type

/** The per-job counter that rises by exactly one on each entry into `running`. */
export const Fence = Schema.Int.pipe(Schema.brand("Fence"))
export type Fence = typeof Fence.Type

/** A worker's name in the registry: unique per worker and life, 1 to 128 bytes. */
export const WorkerId = Schema.String.pipe(Schema.brand("WorkerId"))
export type WorkerId = typeof WorkerId.Type

/**
 * Names one running attempt of one job. The job id selects the row, lease id and fence together prove ownership: two
 * jobs first claimed by one call share both lease id and fence.
 */
export interface LeaseRef {
  readonly jobId: JobId
  readonly leaseId: LeaseId
  readonly fence: Fence
}
