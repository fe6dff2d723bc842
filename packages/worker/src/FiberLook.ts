/**
 * What a fiber shows of itself from outside. Much of it stands in fields that its public type does not name: what is not
 * found there is left out.
 */
import type { FiberEvidence } from "@headgate/core/Stuck"
import type * as Fiber from "effect/Fiber"
import type { StackFrame } from "effect/References"

type AnyFiber = Fiber.Fiber<unknown, unknown>

export const isInterruptible = (fiber: AnyFiber): boolean =>
  !("interruptible" in fiber) || fiber.interruptible !== false

/** The fiber, then its children, theirs, and so on. */
export const lookAt = (fiber: AnyFiber | undefined): ReadonlyArray<FiberEvidence> => {
  const found = fiber === undefined ? [] : [fiber]
  for (let at = 0; at < found.length && found.length < MAX_FIBERS; at++) found.push(...childrenOf(found[at]!))
  return found.slice(0, MAX_FIBERS).filter((fiber) => fiber.pollUnsafe() === undefined).map(evidenceOf)
}

const evidenceOf = (fiber: AnyFiber): FiberEvidence => ({
  id: fiber.id,
  status: "_running" in fiber && fiber._running === true ? "running" : "suspended",
  isInterruptible: isInterruptible(fiber),
  span: fiber.cache.span?._tag === "Span" ? fiber.cache.span.name : undefined,
  stack: framesOf(fiber.cache.stackFrame)
})

const childrenOf = (fiber: AnyFiber): ReadonlyArray<AnyFiber> => {
  const children = "_children" in fiber && fiber._children instanceof Set ? fiber._children : []
  // SAFETY: a fiber keeps nothing but fibers there.
  return [...children] as ReadonlyArray<AnyFiber>
}

/** Each call stands there twice: where it was made, and where the function is defined. */
const framesOf = (innermost: StackFrame | undefined): ReadonlyArray<string> => {
  const frames: Array<string> = []
  for (let frame = innermost; frame !== undefined && frames.length < MAX_FRAMES; frame = frame.parent) {
    if (frame.name.endsWith(" (definition)")) continue
    const place = frame.stack()?.trim().split("\n")[0]
    frames.push(place === undefined ? frame.name : `${frame.name} ${place}`)
  }
  return frames
}

export const MAX_FIBERS = 10
const MAX_FRAMES = 10
