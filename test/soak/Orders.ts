/** What producers ask for: jobs of every kind, with a little that goes wrong by the handler's own doing. */
import type * as Dice from "../crash/fixtures/Dice.ts"
import { CRASH_LIMIT, type Kind, MAX_ATTEMPTS, type Plan, POISON_CRASH_LIMIT, tasks } from "./Tasks.ts"

export interface Order {
  readonly id: string
  readonly kind: Kind
  readonly plan: Plan
  /** Others are deleted by their success. */
  readonly isKept: boolean
  readonly uniqueKey?: string
  readonly partition?: string
  /** Of jobs before a ceiling: rivals that count before and after a more urgent one came see different heads. */
  readonly priority?: number
  /** It exists if, and only if, the transaction of that name was committed. */
  readonly family?: string
}

const shares: Readonly<Record<Kind, number>> = {
  plain: 30,
  steps: 22,
  long: 10,
  complete: 14,
  narrow: 20,
  unique: 10,
  metered: 10,
  parent: 6,
  poison: 1
}
const deck: ReadonlyArray<Kind> = Object.entries(shares).flatMap(([kind, share]) =>
  // SAFETY: the keys of `shares`.
  Array.from({ length: share }, () => kind as Kind)
)

const UNIQUE_KEYS = 6
const PARTITIONS = 3

export const draw = (dice: Dice.Dice): Order => {
  const kind = dice.oneOf(deck) ?? "plain"
  return {
    id: `${kind}-${crypto.randomUUID().slice(0, 13)}`,
    kind,
    plan: plan(dice, kind),
    isKept: kind !== "plain" || dice.between(1, 2) === 1,
    ...kind === "unique" ? { uniqueKey: `key ${dice.between(1, UNIQUE_KEYS)}` } : {},
    ...kind === "narrow" ? { partition: `part ${dice.between(1, PARTITIONS)}`, priority: dice.between(0, 30_000) } : {}
  }
}

/** A plain job that stands and falls with a transaction. */
export const child = (family: string, n: number, workMs: number): Order => ({
  id: `${family}/${n}`,
  kind: "plain",
  plan: { workMs, failures: 0, deaths: 0 },
  isKept: true,
  family
})

const plan = (dice: Dice.Dice, kind: Kind): Plan => {
  const workMs = kind === "long"
    ? dice.between(1500, 3000)
    : kind === "narrow"
    ? dice.between(100, 500)
    : dice.between(1, 10) === 1
    ? dice.between(300, 1500)
    : dice.between(5, 120)
  if (kind === "poison") return { workMs: 5, failures: 0, deaths: CRASH_LIMIT }
  const trouble = dice.between(1, 100)
  if (trouble <= 3) return { workMs, failures: 0, deaths: dice.between(1, 2) }
  return { workMs, failures: trouble <= 15 ? dice.between(1, MAX_ATTEMPTS) : 0, deaths: 0 }
}

export const rulesOf = ({ kind }: Order) => ({
  maxAttempts: MAX_ATTEMPTS,
  crashLimit: kind === "poison" ? POISON_CRASH_LIMIT : CRASH_LIMIT
})

export const enqueue = ({ id, isKept, kind, partition, plan, priority, uniqueKey }: Order) =>
  tasks[kind].enqueue(plan, { id, retention: isKept ? undefined : 0, uniqueKey, partitionKey: partition, priority })
