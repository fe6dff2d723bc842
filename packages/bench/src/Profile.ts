/** A CPU profile as text: where one process spent its own time, by package and by function. */
import * as Fs from "node:fs"
import * as Path from "node:path"

interface Profile {
  readonly nodes: ReadonlyArray<{
    readonly id: number
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number }
  }>
  readonly samples: ReadonlyArray<number>
  readonly timeDeltas: ReadonlyArray<number>
}

/** The same for all of a directory's profiles that start with the given prefix. */
export const summaries = (prefix: string): string =>
  Fs.readdirSync(Path.dirname(prefix))
    .map((name) => Path.join(Path.dirname(prefix), name))
    .filter((path) => path.startsWith(prefix) && path.endsWith(".cpuprofile"))
    .map((path) => `\n${Path.basename(path)}\n${summary(JSON.parse(Fs.readFileSync(path, "utf8")), 40)}`)
    .join("\n")

const summary = (profile: Profile, limit: number): string => {
  const self = new Map<number, number>()
  profile.samples.forEach((id, index) => self.set(id, (self.get(id) ?? 0) + (profile.timeDeltas[index] ?? 0)))
  const byFunction = new Map<string, number>()
  const byPlace = new Map<string, number>()
  let busy = 0
  for (const { callFrame, id } of profile.nodes) {
    const micros = self.get(id) ?? 0
    if (micros === 0) continue
    const place = placeOf(callFrame.url, callFrame.functionName)
    add(byPlace, place.group, micros)
    if (callFrame.functionName === "(idle)") continue
    busy += micros
    add(byFunction, `${callFrame.functionName || "(anonymous)"}  ${place.file}:${callFrame.lineNumber + 1}`, micros)
  }
  const line = ([name, micros]: readonly [string, number]) =>
    `  ${(micros / 1000).toFixed(1).padStart(8)} ms ${(100 * micros / busy).toFixed(1).padStart(5)} %  ${name}`
  return [...sorted(byPlace).map(line), "", ...sorted(byFunction).slice(0, limit).map(line)].join("\n")
}

const add = (sums: Map<string, number>, key: string, micros: number): void => {
  sums.set(key, (sums.get(key) ?? 0) + micros)
}

const sorted = (sums: Map<string, number>) => [...sums].sort(([, a], [, b]) => b - a)

const placeOf = (url: string, functionName: string): { readonly group: string; readonly file: string } => {
  if (url === "") return { group: functionName.startsWith("(") ? functionName : "(native)", file: "" }
  const file = url.replace(/^.*\/(?:packages|node_modules)\//, "")
  const group = /^(@[^/]+\/[^/]+|[^/]+)/.exec(file)?.[1] ?? file
  return { group: url.startsWith("node:") ? "node" : group, file }
}
