/**
 * The kind of a job: its task's name on the wire. One format rule serves handlers at registration, every enqueue and
 * the API; queue and rate class names follow the same rule.
 */
import * as Result from "effect/Result"
import { Invalid } from "./Refusals.ts"
import { utf8Length } from "./Text.ts"

export const MAX_KIND_BYTES = 128

const NAME = /^[A-Za-z0-9_][-A-Za-z0-9_[\]<>/.:+]{0,127}$/

/** 1 to 128 bytes, the first of `A-Z a-z 0-9 _`, the rest also of `- [ ] < > / . : +`. */
export const validateKind = (kind: string): Result.Result<string, Invalid> => {
  const refusal = refuseName("kind", kind)
  return refusal === undefined ? Result.succeed(kind) : Result.fail(refusal)
}

/** The refusal of a name that breaks the format of kinds, if it does. */
export const refuseName = (field: string, name: string): Invalid | undefined =>
  typeof name === "string" && NAME.test(name) ? undefined : nameRefusal(field, name)

export interface KindNames {
  readonly kind: string
  /** Former kinds under which jobs may still be stored. */
  readonly aliases?: ReadonlyArray<string> | undefined
}

/** Every kind and alias of a registry must be valid and belong to one task. Answers the first fault found. */
export const checkKindCollisions = (tasks: Iterable<KindNames>): Result.Result<void, Invalid> => {
  const owners = new Map<string, string>()
  for (const { aliases = [], kind } of tasks) {
    for (const [index, name] of [kind, ...aliases].entries()) {
      const field = index === 0 ? "kind" : "aliases"
      const refusal = refuseName(field, name)
      if (refusal !== undefined) return Result.fail(refusal)
      const owner = owners.get(name)
      if (owner !== undefined) {
        const message = owner === kind
          ? `the name ${name} occurs twice in the task ${kind}`
          : `the name ${name} of the task ${kind} already belongs to the task ${owner}`
        return Result.fail(new Invalid({ field, message }))
      }
      owners.set(name, kind)
    }
  }
  return Result.void
}

const nameRefusal = (field: string, name: string): Invalid => {
  if (typeof name !== "string") return new Invalid({ field, message: `${field} must be text` })
  if (name === "") return new Invalid({ field, message: `${field} is empty`, limit: 1, actual: 0 })
  const bytes = utf8Length(name)
  if (bytes > MAX_KIND_BYTES) {
    const message = `${field} is ${bytes} bytes long, the limit is ${MAX_KIND_BYTES}`
    return new Invalid({ field, message, limit: MAX_KIND_BYTES, actual: bytes })
  }
  const message = /^[A-Za-z0-9_]/.test(name)
    ? `${field} may hold only letters, digits and _ - [ ] < > / . : +`
    : `${field} must begin with a letter, a digit or _`
  return new Invalid({ field, message })
}
