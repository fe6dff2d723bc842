/**
 * Calls of one job each, outside any transaction, that share a statement and its commit. A call that comes when none is
 * under way goes at once; those that come meanwhile leave together when it has ended. What a shared statement passed
 * over is looked at by each of its callers alone, as if there had been no group: a refusal is theirs only.
 */
import type { Envelope } from "@headgate/core/Envelope"
import type { Enqueued } from "@headgate/core/Producer"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import { uniqueKeyText } from "./EnqueueRows.ts"

/** What became of a group. Calls whose job is not in `stored` go on alone. */
export interface Sent {
  readonly stored: ReadonlyMap<string, Enqueued>
  /** When it was first sent, by `performance.now`, if the answer was lost: jobs stored since then may be the caller's own. */
  readonly lostSince: number | undefined
  /** It gave up waiting for what an open transaction holds. */
  readonly isHeld: boolean
}

/** One call as it would be without a group. */
export type Alone<E> = (lostSince: number | undefined) => Effect.Effect<ReadonlyArray<Enqueued>, E>

/** Jobs of one group at most, and bytes of their payloads unless it is a single job. */
const MAX_JOBS = 1000
const MAX_BYTES = 8_388_608

/** A statement that takes longer, its connection being dead perhaps, does not hold back the calls behind it. */
const LONGEST_WAIT_MS = 1000

/** For so long after a group met what an open transaction holds, every call goes alone: only those concerned wait. */
const REST_MS = 250

interface Call<E> {
  readonly job: Envelope
  readonly alone: Alone<E>
  readonly send: Effect.Effect<unknown, E>
  readonly resume: (answer: Effect.Effect<ReadonlyArray<Enqueued>, E>) => void
  group: Group<E> | undefined
  isGone: boolean
}

interface Group<E> {
  readonly calls: Array<Call<E>>
  /** Calls with the id or the unique key of an earlier one: they come after it, alone. */
  readonly twins: Array<Call<E>>
  /** How many callers are still there. */
  present: number
  fiber: Fiber.Fiber<Sent, E> | undefined
}
