/** `conformance/state_machine.yaml`, and its cells: one event in one state under one case. */
import { yaml } from "./Corpus.ts"

export interface Row {
  readonly event: string
  readonly kind: "outcome" | "lifecycle"
  readonly from: ReadonlyArray<string>
  readonly cases: ReadonlyArray<Case>
  readonly attempt?: 1 | "reset"
  readonly crash_attempt?: 1 | "reset"
  readonly fence?: 1
  readonly position?: "kept" | "next_due"
}

export interface Case {
  readonly when?: string
  readonly to?: string
  readonly reason?: string
  readonly refused?: string
}

export interface Cell {
  readonly row: Row
  readonly from: string
  readonly case: Case
}

// SAFETY: the tests of core hold the file to its schema.
export const { rows, states, terminal } = yaml("state_machine.yaml") as {
  readonly states: ReadonlyArray<string>
  readonly terminal: ReadonlyArray<string>
  readonly rows: ReadonlyArray<Row>
}

export const cells: ReadonlyArray<Cell> = rows.flatMap((row) =>
  row.from.flatMap((from) => row.cases.map((each) => ({ row, from, case: each })))
)

/** Whether any row of the event names the state. */
export const applies = (event: string, kind: Row["kind"], state: string): boolean =>
  rows.some((row) => row.event === event && row.kind === kind && row.from.includes(state))

export const titleOf = ({ case: { refused, reason, to, when }, from, row: { event } }: Cell): string => {
  const becomes = refused === "passed_over"
    ? "leaves it alone"
    : refused === undefined
    ? `leads to ${to}`
    : `is ${refused}`
  return `${event}, ${from}${when === undefined ? "" : `, ${when}`}: ${becomes}${
    reason === undefined ? "" : ` (${reason})`
  }`
}
