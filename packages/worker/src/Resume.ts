/**
 * Whether this build can go on from what an earlier attempt recorded. Names decide: the step set that the checkpoint was
 * written under must be the one declared now, or a `StepMapping` must lead from it to this one, over several if need be.
 * A mapped checkpoint is rewritten in the store before the handler runs. Anything else is stale: never a silent restart,
 * and never one step's record for another.
 *
 * A set that was not declared counts as an empty one.
 */
import type { Checkpoint } from "@headgate/core/Checkpoint"
import type { Remap } from "@headgate/core/Checkpoints"
import * as Outcome from "@headgate/core/Outcome"
import { stepName } from "@headgate/core/Step"
import type { StepMapping } from "@headgate/core/Task"
import type { TaskDefinition } from "@headgate/core/TaskDefinition"
import * as Effect from "effect/Effect"
import type { Attempt } from "./Attempt.ts"
import { whileOwned } from "./Ownership.ts"
import type { StepStores } from "./StepStores.ts"

/** The checkpoint to run from, in this build's names. A stale one ends the attempt. */
export const prepareResume = (attempt: Attempt, stores: StepStores): Effect.Effect<Checkpoint | undefined> => {
  const { claim: { checkpoint, lease }, definition } = attempt
  if (checkpoint === undefined) return Effect.undefined
  const plan = planResume(checkpoint, definition)
  switch (plan._tag) {
    case "Kept":
      return Effect.succeed(checkpoint)
    case "Stale":
      return attempt.end({ _tag: "Chosen", outcome: Outcome.checkpointStale(plan.reason) })
    case "Mapped": {
      const remap = { lease, stepSet: definition.stepSet ?? [], version: definition.version, steps: plan.steps }
      return Effect.as(whileOwned(attempt, stores.checkpoints.remap(remap)), plan.checkpoint)
    }
  }
}

type ResumePlan =
  | { readonly _tag: "Kept" }
  | { readonly _tag: "Stale"; readonly reason: string }
  /** `steps` names every stored step; `checkpoint` is what the store then holds. */
  | { readonly _tag: "Mapped"; readonly steps: Remap["steps"]; readonly checkpoint: Checkpoint }

export const planResume = (checkpoint: Checkpoint, definition: TaskDefinition): ResumePlan => {
  if (checkpoint.version > definition.version) return stale(tooNew(checkpoint, definition))
  const stored = checkpoint.stepSet ?? []
  const declared = definition.stepSet ?? []
  const names = storedNames(checkpoint)
  if (isSameSet(stored, declared) || names.length === 0) return { _tag: "Kept" }
  const isDeclared = (name: string) => definition.stepSet === undefined || declared.includes(name)
  const route = findRoute(stored, isDeclared, definition.stepMappings)
  if (route === undefined) return stale(unmapped(stored, declared, definition))
  const rename = (name: string) => route.reduce<ReadonlyArray<string>>(renameAll, [name])
  for (const name of names) {
    const lost = rename(name).find((to) => !isDeclared(to))
    if (lost !== undefined) return stale(undeclared(name, lost, declared, definition))
  }
  const merged = findMerge(names, [...new Set([...stored, ...names])], rename)
  if (merged !== undefined) return stale(ambiguous(merged, definition))
  return {
    _tag: "Mapped",
    steps: names.map((from) => ({ from, to: rename(from) })),
    checkpoint: renamed(checkpoint, definition, rename)
  }
}

const stale = (reason: string): ResumePlan => ({ _tag: "Stale", reason })

/** Names of all steps the store holds anything about. */
const storedNames = ({ cursor, inProgress, records }: Checkpoint): ReadonlyArray<string> => {
  const names = new Set(records.map(({ step }) => stepName(step)))
  if (inProgress !== undefined) names.add(stepName(inProgress))
  if (cursor !== undefined) names.add(stepName(cursor.step))
  return [...names]
}

/**
 * The mappings to apply one after another: a single one whose `from` is the stored set and whose names are all declared
 * now, else a chain. A mapping follows another when its `from` holds every name that the other leads to.
 */
const findRoute = (
  stored: ReadonlyArray<string>,
  isDeclared: (name: string) => boolean,
  mappings: ReadonlyArray<StepMapping>
): ReadonlyArray<StepMapping> | undefined => {
  const first = mappings.filter(({ from }) => isSameSet(from, stored))
  // Breadth first, each mapping and set of names once: the shortest chain, in time that does not explode.
  const seen = new Set<string>()
  let routes = first.map((mapping) => ({ chain: [mapping], names: renameAll(stored, mapping) }))
  while (routes.length > 0) {
    const found = routes.find(({ names }) => names.every(isDeclared))
    if (found !== undefined) return found.chain
    routes = routes.flatMap(({ chain, names }) =>
      mappings.flatMap((mapping, index) => {
        const key = `${index} ${[...names].sort().join()}`
        const follows = !seen.has(key) && !chain.includes(mapping) && names.every((name) => mapping.from.includes(name))
        if (!follows) return []
        seen.add(key)
        return [{ chain: [...chain, mapping], names: renameAll(names, mapping) }]
      })
    )
  }
  // A name that is left out and gone is no matter when nothing is stored under it.
  return first[0] === undefined ? undefined : [first[0]]
}

const renameAll = (names: ReadonlyArray<string>, { to }: StepMapping): ReadonlyArray<string> => [
  ...new Set(names.flatMap((name) => {
    const target = Object.hasOwn(to, name) ? to[name] : name
    return target === null || target === undefined ? [] : target
  }))
]

/** Two names that lead to one, of which at least one is stored: its record would stand for the other's work too. */
const findMerge = (
  stored: ReadonlyArray<string>,
  all: ReadonlyArray<string>,
  rename: (name: string) => ReadonlyArray<string>
): { readonly from: readonly [string, string]; readonly to: string } | undefined => {
  const owners = new Map<string, string>()
  for (const name of [...stored, ...all.filter((name) => !stored.includes(name))]) {
    for (const to of rename(name)) {
      const owner = owners.get(to)
      if (owner !== undefined && stored.includes(owner)) return { from: [owner, name], to }
      owners.set(to, name)
    }
  }
  return undefined
}

const renamed = (
  checkpoint: Checkpoint,
  { stepSet, version }: TaskDefinition,
  rename: (name: string) => ReadonlyArray<string>
): Checkpoint => {
  const identities = (identity: string) => {
    const name = stepName(identity)
    return rename(name).map((to) => to + identity.slice(name.length))
  }
  const { cursor, inProgress, records } = checkpoint
  const cursorStep = cursor === undefined ? undefined : identities(cursor.step)[0]
  return {
    ...checkpoint,
    stepSet,
    version,
    records: records.flatMap((record) => identities(record.step).map((step) => ({ ...record, step }))),
    inProgress: inProgress === undefined ? undefined : identities(inProgress)[0],
    cursor: cursor === undefined || cursorStep === undefined ? undefined : { ...cursor, step: cursorStep }
  }
}

const isSameSet = (a: ReadonlyArray<string>, b: ReadonlyArray<string>): boolean =>
  a.every((name) => b.includes(name)) && b.every((name) => a.includes(name))

const tooNew = (checkpoint: Checkpoint, { kind, version }: TaskDefinition): string =>
  `the checkpoint was written by version ${checkpoint.version} of ${kind}, this worker has version ${version}`

const unmapped = (
  stored: ReadonlyArray<string>,
  declared: ReadonlyArray<string>,
  { kind }: TaskDefinition
): string =>
  `the checkpoint was written for the steps ${list(stored)}, ${kind} now declares ${list(declared)} (${
    difference(stored, declared)
  }), and there is no step mapping from ${list(stored)}`

const difference = (stored: ReadonlyArray<string>, declared: ReadonlyArray<string>): string => {
  const gone = stored.filter((name) => !declared.includes(name))
  const added = declared.filter((name) => !stored.includes(name))
  const parts = gone.length === 0 ? [] : [`gone: ${gone.join(", ")}`]
  if (added.length > 0) parts.push(`new: ${added.join(", ")}`)
  return parts.join("; ")
}

const undeclared = (
  name: string,
  to: string,
  declared: ReadonlyArray<string>,
  { kind }: TaskDefinition
): string =>
  name === to
    ? `the checkpoint holds step ${name}, which the step mapping leaves out and ${kind} no longer declares: ${
      list(declared)
    }`
    : `the step mapping leads from ${name} to ${to}, which ${kind} does not declare: ${list(declared)}`

const ambiguous = (
  { from: [a, b], to }: { readonly from: readonly [string, string]; readonly to: string },
  { kind }: TaskDefinition
): string => `the step mapping of ${kind} leads from both ${a} and ${b} to ${to}: one record cannot stand for two steps`

const list = (names: ReadonlyArray<string>): string => names.length === 0 ? "(none)" : `[${names.join(", ")}]`
