/**
 * Content that crashes. Crashes are counted for a fingerprint, over all jobs and workers; at the limit it is closed: its
 * jobs leave the queue for `quarantined`, and none starts any more. Only an operator opens it again.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { JobId } from "./Ids.ts"
import type { Invalid, StoreUnavailable } from "./Refusals.ts"

export interface QuarantineEntry {
  readonly fingerprint: string
  /** Of the job that crashed last. */
  readonly kind: string
  readonly lastJobId: JobId
  readonly lastAtMs: number
  readonly strikes: number
  /** Since when no job of it starts; undefined while its crashes are only counted. */
  readonly closedAtMs: number | undefined
  /** Crashes by the step that was under way. */
  readonly byStep: Readonly<Record<string, number>>
  /** Jobs that a release would bring back; at most 1000 are counted. */
  readonly quarantined: number
}

export interface QuarantineQuery {
  /** Default: both. */
  readonly only?: "closed" | "counting" | undefined
  /** The fingerprint after which the page begins. */
  readonly after?: string | undefined
  /** 1 to 200. Default 50. */
  readonly limit?: number | undefined
}

export interface QuarantineList {
  /** In the order of their fingerprints. */
  readonly items: ReadonlyArray<QuarantineEntry>
  /** `after` of the next page; undefined on the last one. */
  readonly next: string | undefined
}

export interface Release {
  /** Jobs that are available again, behind what waits already. */
  readonly released: number
  /** Jobs that stay, since another job holds their unique key. */
  readonly keyTaken: number
}

export class Quarantine extends Context.Service<Quarantine, {
  readonly list: (query?: QuarantineQuery) => Effect.Effect<QuarantineList, Invalid | StoreUnavailable>
  /**
   * Opens the fingerprint, one strike short of its limit: the next crash closes it again. Of the jobs that were
   * quarantined by it or by their own crashes up to `limit` (default: all) come back with a clean crash count, in the
   * order of their ids. Without any such job an open fingerprint stays as it is.
   */
  readonly release: (
    fingerprint: string,
    options?: { readonly limit?: number | undefined }
  ) => Effect.Effect<Release, Invalid | StoreUnavailable>
}>()("@headgate/core/Quarantine") {}
