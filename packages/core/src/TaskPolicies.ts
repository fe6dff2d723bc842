/** What a task's policies and functions of the payload say about one job, and the rules a task's policies must keep. */
import * as Result from "effect/Result"
import type { ConcurrencyLimit } from "./ConcurrencyLimit.ts"
import { MAX_LIMITS, MAX_RATES } from "./EnqueueGuard.ts"
import type { LimitSlot, Rate } from "./Envelope.ts"
import { storedError } from "./ErrorText.ts"
import { refuseInteger } from "./Millis.ts"
import type { PolicyDefinition } from "./Policies.ts"
import type { Queue } from "./Queue.ts"
import type { RateClass } from "./RateClass.ts"
import { Invalid } from "./Refusals.ts"
import { validateWeight } from "./Weight.ts"

export interface TaskPolicies<P> {
  readonly queue?: string | Queue | undefined
  readonly rates?: ReadonlyArray<RateClass<P>> | undefined
  readonly limits?: ReadonlyArray<ConcurrencyLimit<P>> | undefined
}

export const queueName = (queue: string | Queue): string => typeof queue === "string" ? queue : queue.name

/** The definitions that a worker applies. */
export const policiesOf = <P>({ limits = [], queue, rates = [] }: TaskPolicies<P>): ReadonlyArray<PolicyDefinition> => [
  ...rates,
  ...limits,
  ...(typeof queue === "object" ? [queue] : [])
]

/** What would otherwise refuse each job. */
export const refusePolicies = <P>({ limits = [], rates = [] }: TaskPolicies<P>): ReadonlyArray<Invalid | undefined> => [
  refuseInteger("rates", rates.length, 0, MAX_RATES, " rates"),
  refuseInteger("limits", limits.filter(isKeyed).length, 0, MAX_LIMITS, " limits"),
  // With keys of their own they may be different buckets.
  refuseAgain("rates", rates.filter(({ key }) => key === undefined)),
  refuseAgain("limits", limits)
]

export const ratesOf = <P>(
  rates: ReadonlyArray<RateClass<P>>,
  payload: P
): Result.Result<ReadonlyArray<Rate>, Invalid> =>
  each(rates, ({ key, name, weight }, index) => {
    const bucket = keyOf(`rates[${index}].key`, key, payload)
    if (Result.isFailure(bucket)) return Result.fail(bucket.failure)
    const field = `rates[${index}].weight`
    const said = weight === undefined ? Result.succeed(1) : called(field, weight, payload)
    const cost = Result.flatMap(said, (weight) => validateWeight(weight, field))
    return Result.map(cost, (weight) => ({ class: name, key: bucket.success, weight }))
  })

/** Limits of other scopes find their jobs by themselves. */
export const limitsOf = <P>(
  limits: ReadonlyArray<ConcurrencyLimit<P>>,
  payload: P
): Result.Result<ReadonlyArray<LimitSlot>, Invalid> =>
  each(
    limits.filter(isKeyed),
    ({ key, name }, index) => Result.map(keyOf(`limits[${index}].key`, key, payload), (key) => ({ limit: name, key }))
  )

/** The answer of a task's function; what it throws is an `Invalid` for `field`. */
export const called = <P, A>(field: string, of: (payload: P) => A, payload: P): Result.Result<A, Invalid> => {
  try {
    return Result.succeed(of(payload))
  } catch (error) {
    return Result.fail(new Invalid({ field, message: `the task's function failed: ${storedError(error).message}` }))
  }
}

const keyOf = <P>(
  field: string,
  of: ((payload: P) => string) | undefined,
  payload: P
): Result.Result<string, Invalid> => {
  if (of === undefined) return Result.succeed("")
  const key = called(field, of, payload)
  return Result.isFailure(key) || typeof key.success === "string"
    ? key
    : Result.fail(new Invalid({ field, message: `${field} must be text` }))
}

const each = <A, B>(
  items: ReadonlyArray<A>,
  of: (item: A, index: number) => Result.Result<B, Invalid>
): Result.Result<ReadonlyArray<B>, Invalid> => {
  const all: Array<B> = []
  for (const [index, item] of items.entries()) {
    const one = of(item, index)
    if (Result.isFailure(one)) return Result.fail(one.failure)
    all.push(one.success)
  }
  return Result.succeed(all)
}

const isKeyed = ({ scope }: { readonly scope: string }): boolean => scope === "key"

const refuseAgain = (field: string, named: ReadonlyArray<{ readonly name: string }>): Invalid | undefined => {
  const again = named.find(({ name }, index) => named.findIndex((other) => other.name === name) !== index)
  return again === undefined ? undefined : new Invalid({ field, message: `${field} name ${again.name} twice` })
}
