/** What the audience sees: lines with the time, and a bar that is redrawn on a terminal and told in quarters elsewhere. */
import { Context, Effect, Layer } from "effect"
import type { Check } from "./checks.ts"

export class Story extends Context.Service<Story, {
  readonly title: (text: string) => Effect.Effect<void>
  readonly say: (text: string) => Effect.Effect<void>
  readonly progress: (label: string, current: number, total: number) => Effect.Effect<void>
  readonly verdict: (check: Check) => Effect.Effect<void>
}>()("demo/Story") {
  static readonly layer = Layer.sync(this, () => {
    const startedAt = performance.now()
    const isTerminal = process.stdout.isTTY === true && !process.env["CI"]
    let isBarShown = false
    let toldQuarters = 0

    const print = (line: string, isBar = false) => {
      process.stdout.write(`${isBarShown ? "\r\x1b[2K" : ""}${line}${isBar ? "" : "\n"}`)
      isBarShown = isBar
    }
    const timed = (text: string) => {
      const seconds = ((performance.now() - startedAt) / 1000).toFixed(1)
      return `${seconds.padStart(5)} s  ${text}`
    }
    return Story.of({
      title: (text) => Effect.sync(() => print(`\n${text}`)),
      say: (text) => Effect.sync(() => print(timed(text))),
      progress: (label, current, total) =>
        Effect.sync(() => {
          if (isTerminal) return print(timed(bar(label, current, total)), true)
          const quarters = Math.floor(4 * current / total)
          if (quarters !== toldQuarters && quarters > 0) print(timed(bar(label, current, total)))
          toldQuarters = quarters
        }),
      verdict: ({ actual, expected, holds, promise }) =>
        Effect.sync(() =>
          print(holds ? `  ok    ${promise}: ${actual}` : `  FAIL  ${promise}: ${expected} expected, found ${actual}`)
        )
    })
  })
}

const bar = (label: string, current: number, total: number): string => {
  const width = 30
  const done = Math.round(width * current / total)
  return `${label} [${"#".repeat(done)}${".".repeat(width - done)}] ${grouped(current)} of ${grouped(total)}`
}

const grouped = (value: number): string => value.toLocaleString("en-US")
