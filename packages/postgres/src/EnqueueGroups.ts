/**
 * Calls of one job each, outside any transaction, that share a statement and its commit. A call that comes when none is
 * under way goes at once; those that come meanwhile leave together when it has ended. What a shared statement passed
 * over is looked at by each of its callers alone, as if there had been no group: a refusal is theirs only.
 */
import type { Envelope } from "@headgate/core/Envelope"
import type { Enqueued } from "@headgate/core/Producer"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import { keyText, uniqueKey } from "./EnqueueRows.ts"

/** What became of a group. Calls whose job is not in `stored` go on alone. */
export interface Sent {
  readonly stored: ReadonlyMap<string, Enqueued>
  /** When it was first sent, by `performance.now`, if that answer was lost: jobs stored since may be the caller's own. */
  readonly lostSince: number | undefined
  /** It gave up waiting for what an open transaction holds. */
  readonly isHeld: boolean
}

/** One call as it is without a group. */
export type Alone<E> = (lostSince?: number) => Effect.Effect<ReadonlyArray<Enqueued>, E>

export type Groups<E> = (job: Envelope, alone: Alone<E>) => Effect.Effect<ReadonlyArray<Enqueued>, E>

/** Jobs of one group at most, and bytes of their payloads beyond the first. */
const MAX_JOBS = 1000
const MAX_BYTES = 8_388_608

/** A statement that takes longer, its connection being dead perhaps, does not hold back the calls behind it. */
const LONGEST_WAIT_MS = 1000

/** For so long after a group met what an open transaction holds, every call goes alone: only those concerned wait. */
const REST_MS = 1000

interface Call<E> {
  readonly job: Envelope
  readonly alone: Alone<E>
  readonly context: Context.Context<never>
  readonly resume: (answer: Effect.Effect<ReadonlyArray<Enqueued>, E>) => void
  group: Group<E> | undefined
  isGone: boolean
}

interface Group<E> {
  readonly calls: Array<Call<E>>
  /** Calls with the id or the unique key of an earlier one: they come after it, alone. */
  readonly twins: Array<Call<E>>
  /** How many callers of `calls` still wait. */
  present: number
  fiber: Fiber.Fiber<Sent, E> | undefined
}

/** `send` stores what it can of the jobs, which have different ids and unique keys, by one statement. */
export const make = <E>(send: (jobs: ReadonlyArray<Envelope>) => Effect.Effect<Sent, E>): Groups<E> => {
  const waiting: Array<Call<E>> = []
  let isUnderWay = false
  let restsUntil = 0

  const run = (group: Group<E>) => {
    const [first] = group.calls
    if (first === undefined) {
      isUnderWay = false
      return
    }
    let isReleased = false
    const release = () => {
      if (isReleased) return
      isReleased = true
      clearTimeout(patience)
      // Those just answered may come again at once, and then leave with the rest.
      setImmediate(next)
    }
    const patience = setTimeout(release, LONGEST_WAIT_MS)
    // In the first caller's context: the statement of a lone call is a part of its trace.
    group.fiber = Effect.runForkWith(first.context)(send(group.calls.map(({ job }) => job)))
    group.fiber.addObserver((exit) => {
      if (exit._tag === "Success" && exit.value.isHeld) restsUntil = performance.now() + REST_MS
      answer(group, exit)
      release()
    })
  }

  const next = () => {
    if (performance.now() >= restsUntil) return run(take(waiting))
    isUnderWay = false
    for (const call of waiting.splice(0)) goAlone(call)
  }

  return (job, alone) =>
    Effect.withFiber(({ context }) => {
      if (performance.now() < restsUntil) return alone()
      return Effect.callback((resume) => {
        const call: Call<E> = { job, alone, context, resume, group: undefined, isGone: false }
        waiting.push(call)
        if (!isUnderWay) {
          isUnderWay = true
          run(take(waiting))
        }
        return leave(call)
      })
    })
}

/** Takes the next group off those that wait. */
const take = <E>(waiting: Array<Call<E>>): Group<E> => {
  const group: Group<E> = { calls: [], twins: [], present: 0, fiber: undefined }
  const ids = new Set<string>()
  const keys = new Set<string>()
  let bytes = 0
  let count = 0
  for (const call of waiting) {
    bytes += call.job.payload.length
    if (group.calls.length === MAX_JOBS || (bytes > MAX_BYTES && group.calls.length > 0)) break
    count++
    if (call.isGone) continue
    const key = uniqueKey(call.job)
    const keyName = key === undefined ? undefined : keyText(key)
    // Of equal keys the statement takes any.
    if (ids.has(call.job.id) || (keyName !== undefined && keys.has(keyName))) {
      group.twins.push(call)
      continue
    }
    ids.add(call.job.id)
    if (keyName !== undefined) keys.add(keyName)
    group.calls.push(call)
    call.group = group
  }
  waiting.splice(0, count)
  group.present = group.calls.length
  return group
}

const answer = <E>({ calls, twins }: Group<E>, exit: Exit.Exit<Sent, E>): void => {
  for (const call of calls) {
    if (exit._tag === "Failure") {
      call.resume(Effect.failCause(exit.cause))
      continue
    }
    const own = exit.value.stored.get(call.job.id)
    if (own === undefined) goAlone(call, exit.value.lostSince)
    else call.resume(Effect.succeed([own]))
  }
  for (const call of twins) goAlone(call)
}

const goAlone = <E>(call: Call<E>, lostSince?: number): void => call.resume(Effect.suspend(() => call.alone(lostSince)))

/** A caller that is interrupted leaves its job to the others; the last one takes the statement with it. */
const leave = <E>(call: Call<E>): Effect.Effect<void> =>
  Effect.suspend(() => {
    call.isGone = true
    const { group } = call
    if (group?.fiber === undefined || --group.present > 0) return Effect.void
    return Fiber.interrupt(group.fiber)
  })
