/**
 * The capability of a store that shares a database with the application: the application's writes and the job's own
 * record commit together or not at all. Absent from stores that cannot do it, so asking for it fails to compile.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { LeaseRef } from "./Ids.ts"
import type { Charge } from "./Leases.ts"
import type { ForeignTransaction, LeaseRejected, StoreUnavailable } from "./Refusals.ts"

/** The longest effect key, in bytes of UTF-8: it is an index key. */
export const MAX_EFFECT_KEY_BYTES = 1024

export interface OnceWrite {
  readonly lease: LeaseRef
  readonly leaseMs: number
  readonly step: string
  readonly position: number
  /** Claimed in the same transaction; outlives the job. */
  readonly effectKey: string
  readonly mark: string | undefined
}

/** `Committed`: this call ran the body. `Already`: the key was claimed before; its recorded result, and no body ran. */
export type OnceResult<A> =
  | { readonly _tag: "Committed"; readonly value: A }
  | { readonly _tag: "Already"; readonly result: Uint8Array | undefined }

/** What the body failed with, or the encoding of its answer: never taken for an answer of the store's own. */
export class BodyFailure<E> {
  readonly _tag = "BodyFailure"
  readonly error: E
  constructor(error: E) {
    this.error = error
  }
}

export class Transactional extends Context.Service<Transactional, {
  /**
   * Runs `body` in a transaction of the application's client, together with the effect key and the step record. The
   * lease is verified last, right before the commit: a body whose lease was lost leaves nothing behind.
   */
  readonly once: <A, E, R>(
    write: OnceWrite,
    body: Effect.Effect<A, E, R>,
    encode: (value: A) => Effect.Effect<Uint8Array | undefined, E>
  ) => Effect.Effect<OnceResult<A>, BodyFailure<E> | LeaseRejected | ForeignTransaction | StoreUnavailable, R>
  /** Commits `body`, its encoded result, what it `charges`, and the job's success as one transaction. */
  readonly complete: <A, E, R>(
    lease: LeaseRef,
    body: Effect.Effect<A, E, R>,
    encode: (value: A) => Effect.Effect<{ readonly version: number; readonly bytes: Uint8Array } | undefined, E>,
    charges?: () => ReadonlyArray<Charge> | undefined
  ) => Effect.Effect<A, BodyFailure<E> | LeaseRejected | ForeignTransaction | StoreUnavailable, R>
}>()("@headgate/core/Transactional") {}
