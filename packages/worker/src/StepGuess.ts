/**
 * Which step follows which, and which comes first, as this process saw it last: a task's steps are nearly always called
 * in the same order. Kept per task definition and bounded, since keyed steps may have any number of identities.
 */
import type { TaskDefinition } from "@headgate/core/TaskDefinition"

export const MAX_SUCCESSORS = 1000

/** Stands before the first step of a job; no step has this identity. */
export const START = ""

export class StepGuess {
  private readonly next = new Map<string, string>()

  learn(step: string, next: string): void {
    if (this.next.get(step) === next) return
    this.next.delete(step)
    this.next.set(step, next)
    if (this.next.size <= MAX_SUCCESSORS) return
    for (const oldest of this.next.keys()) {
      this.next.delete(oldest)
      return
    }
  }

  after(step: string): string | undefined {
    return this.next.get(step)
  }

  get size(): number {
    return this.next.size
  }
}

const guesses = new WeakMap<TaskDefinition, StepGuess>()

/** One per definition, shared by all attempts of this process. */
export const guessFor = (definition: TaskDefinition): StepGuess => {
  const known = guesses.get(definition)
  if (known !== undefined) return known
  const guess = new StepGuess()
  guesses.set(definition, guess)
  return guess
}
