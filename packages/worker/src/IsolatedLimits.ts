/**
 * What an isolated task cannot have. Steps, outputs and completions write to the store under the attempt's lease, which
 * stays with the worker: a task that declares steps is refused where its layer is built, and what a handler asks for in
 * the child, past the compiler, is refused for good instead of being tried again.
 */
import { Output } from "@headgate/core/Job"
import { Invalid } from "@headgate/core/Refusals"
import { Cursor, Once, Step } from "@headgate/core/Step"
import type { TaskDefinition } from "@headgate/core/TaskDefinition"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"

const message = "a handler in a child process has no steps, outputs or completeWith"

export const refuseSteps = ({ stepSet, stepTimeoutMs }: TaskDefinition): Invalid | undefined => {
  const field = stepSet !== undefined ? "steps" : stepTimeoutMs !== undefined ? "stepTimeout" : undefined
  return field === undefined ? undefined : new Invalid({ field, message: `${message}: its task declares ${field}` })
}

export const notInChild = new Invalid({ field: "handler", message })

const refuse = () => Effect.fail(notInChild)

/** Stands in for the services that write to the store. */
export const refusing: Context.Context<Step | Cursor | Once | Output> = Context.make(Step, {
  run: refuse,
  sleep: refuse
})
  .pipe(
    Context.add(Cursor, { run: refuse }),
    Context.add(Once, { run: refuse }),
    Context.add(Output, { put: refuse })
  )
