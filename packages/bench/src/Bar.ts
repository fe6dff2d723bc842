/**
 * What headgate must reach, as data. Each row is a median of one run, alone or as a ratio to another median of the same
 * run, so that the machine falls out of it.
 */
import { costMetric, type Result } from "./Measurement.ts"
import type { ResultFile } from "./ResultFile.ts"
import type { WorkloadName } from "./System.ts"

/** `peers` stands for the best of all systems but headgate and raw. */
interface Figure {
  readonly system: string
  /** Any, where it is left out: the best of them. */
  readonly setting?: string
  readonly processes?: number
  /** Default: the row's. */
  readonly metric?: string
}

interface Row {
  readonly workload: WorkloadName
  readonly metric: string
  readonly name: string
  readonly figure: Figure
  readonly over?: Figure
  readonly sense: "at least" | "at most"
  readonly bar: number
}

export interface Verdict extends Pick<Row, "name" | "sense" | "bar"> {
  /** Undefined: not measured. */
  readonly value: number | undefined
  /** The fewest that one of its medians was made of. */
  readonly rounds: number | undefined
  readonly isMet: boolean
}

const headgate = (setting: string, processes = 1): Figure => ({ system: "headgate", setting, processes })
const raw = (setting: string, processes = 1): Figure => ({ system: "raw", setting, processes })
const peers = (processes = 1): Figure => ({ system: "peers", processes })

const wide = "concurrency 1000"
const usual = "default concurrency"
const single = "enqueue one by one, 16 callers"
const bulk = "enqueue 1000 at a time"
const one = "steps, 1 at once"
const many = "steps, 32 at once"
const held = "a snapshot held 300 s"

const row = (
  name: string,
  workload: WorkloadName,
  metric: string,
  figure: Figure,
  sense: Row["sense"],
  bar: number,
  over?: Figure
): Row => ({ name, workload, metric, figure, sense, bar, ...over === undefined ? {} : { over } })

export const rows: ReadonlyArray<Row> = [
  row("W2 drain, concurrency 1,000, to raw", "W2", "drain", headgate(wide), "at least", 0.8, raw("update")),
  row("W2 drain, concurrency 1,000, to the best peer", "W2", "drain", headgate(wide), "at least", 1.6, peers()),
  row("W2 drain, 2 processes, to the best peer", "W2", "drain", headgate(wide, 2), "at least", 1.5, peers(2)),
  row("W2 drain, default concurrency, to raw", "W2", "drain", headgate(usual), "at least", 0.65, raw("update")),
  row("W2 drain, default concurrency, to the best peer", "W2", "drain", headgate(usual), "at least", 1.2, peers()),
  row(
    "W2 drain, finished jobs kept, to raw",
    "W2",
    "drain",
    headgate(`${wide}, kept`),
    "at least",
    0.65,
    raw("update")
  ),
  row("W2 drain, 1 % traced, to off", "W2", "drain", headgate(`${wide}, 1 % traced`), "at least", 0.9, headgate(wide)),
  row("W1 one by one, to raw", "W1", single, headgate(wide), "at least", 1.5, raw("update")),
  row("W1 batches of 1,000, to raw", "W1", bulk, headgate(wide), "at least", 0.6, raw("update")),
  row("W1 batches of 1,000, to the best peer", "W1", bulk, headgate(wide), "at least", 1.8, peers()),
  row(
    "W1 with workers attached, to without",
    "W1",
    single,
    headgate(`${wide}, 2 workers attached`),
    "at least",
    0.8,
    headgate(wide)
  ),
  row("W3 notify, p50, to raw", "W3", "enqueue to start, p50", headgate("notify"), "at most", 1.3, raw("notify")),
  row("W3 notify, p99, to raw", "W3", "enqueue to start, p99", headgate("notify"), "at most", 1.5, raw("notify")),
  ...["drain beside 1M finished", "drain of 1M waiting"].map((metric) =>
    row(`W4 ${metric}, to beside 1k`, "W4", metric, headgate(`${wide}, kept`), "at least", 0.9, {
      ...headgate(`${wide}, kept`),
      metric: "drain beside 1k finished"
    })
  ),
  row("W5 1 at once, to DBOS", "W5", one, headgate("1 at once"), "at least", 4, { system: "dbos" }),
  row("W5 1 at once, to raw", "W5", one, headgate("1 at once"), "at least", 0.7, raw("1 at once")),
  row("W5 1 at once, commits a step", "W5", costMetric(one, "commits"), headgate("1 at once"), "at most", 1.2),
  row("W5 32 at once, to DBOS", "W5", many, headgate("32 at once"), "at least", 25, { system: "dbos" }),
  row(
    "W5 32 at once, to raw, grouped",
    "W5",
    many,
    headgate("32 at once"),
    "at least",
    0.5,
    raw("grouped, 32 at once")
  ),
  row("W5 32 at once, commits a step", "W5", costMetric(many, "commits"), headgate("32 at once"), "at most", 0.06),
  row(
    "W7 database CPU per job, 16 processes to 2",
    "W7",
    costMetric("drain", "database CPU"),
    headgate(usual, 16),
    "at most",
    1.3,
    headgate(usual, 2)
  ),
  // Chance and the scheduler of the machine share the jobs out; a process that claims in vain has next to none.
  row(
    "W7 least busy of 16 processes, to an even share",
    "W7",
    "least busy process",
    headgate(usual, 16),
    "at least",
    0.1
  ),
  ...["200,000 jobs", "200,000 idle polls"].map((phase) =>
    row(
      `W8 heap growth over ${phase}, MB`,
      "W8",
      `heap growth over ${phase}`,
      headgate("polls when told"),
      "at most",
      5
    )
  ),
  row(
    `W9 claim p95 under ${held}, to fresh`,
    "W9",
    `claim p95 under ${held}, to fresh`,
    headgate(usual),
    "at most",
    10
  ),
  row("W9 recovery, s", "W9", `recovery from ${held}`, headgate(usual), "at most", 60)
]

export const judge = ({ gate, results }: Pick<ResultFile, "results" | "gate">): ReadonlyArray<Verdict> => [
  ...rows.map((row) => verdictOf(row, results)),
  ...gate.map(({ bar, is_met, name, value }) => ({
    name: `W6 ${name}`,
    sense: (value >= bar) === is_met ? "at least" as const : "at most" as const,
    bar,
    value,
    rounds: undefined,
    isMet: is_met
  })),
  ...gate.length > 0 ? [] : [{
    name: "W6",
    sense: "at least" as const,
    bar: 1,
    value: undefined,
    rounds: undefined,
    isMet: false
  }]
]

const verdictOf = (row: Row, results: ReadonlyArray<Result>): Verdict => {
  const { bar, name, over, sense } = row
  const found = find(row, row.figure, results)
  const base = over && find(row, over, results)
  const isMeasured = found !== undefined && (over === undefined || base !== undefined)
  const value = isMeasured ? found.median / (base?.median ?? 1) : undefined
  const rounds = isMeasured ? Math.min(found.rounds, base?.rounds ?? found.rounds) : undefined
  const isMet = value !== undefined && (sense === "at least" ? value >= bar : value <= bar)
  return { name, sense, bar, value, rounds, isMet }
}

/** The best where several fit: the fastest, or of what is better small the smallest. */
const find = (row: Row, figure: Figure, results: ReadonlyArray<Result>): Result | undefined => {
  const fitting = results.filter(({ metric, processes, setting, system, workload }) =>
    workload === row.workload && metric === (figure.metric ?? row.metric) && processes === (figure.processes ?? 1) &&
    (figure.system === "peers" ? system !== "headgate" && system !== "raw" : system === figure.system) &&
    (figure.setting === undefined || setting === figure.setting)
  )
  const isBetter = (a: Result, b: Result) => a.unit.endsWith("/s") ? a.median > b.median : a.median < b.median
  return fitting.reduce<Result | undefined>(
    (best, one) => best !== undefined && isBetter(best, one) ? best : one,
    undefined
  )
}
