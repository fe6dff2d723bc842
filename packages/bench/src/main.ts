/** `npm run bench`: headgate, its peers and the raw limit, measured side by side in one run. */
import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import * as Effect from "effect/Effect"
import * as Os from "node:os"
import * as Bar from "./Bar.ts"
import * as Options from "./Options.ts"
import { summaries } from "./Profile.ts"
import * as ResultFile from "./ResultFile.ts"
import { measureAll } from "./Run.ts"
import * as Server from "./Server.ts"
import * as Statements from "./Statements.ts"
import { systems } from "./systems/index.ts"
import { bases } from "./systems/Raw.ts"
import * as Terminal from "./Terminal.ts"
import { gate } from "./workloads/Gate.ts"

const say = (line: string): void => console.log(line)

/** Answers whether all of it was measured. */
const measure = async (url: string, options: Options.Options): Promise<boolean> => {
  const chosen = await Promise.all(options.systems.map((name) => systems[name]!()))
  const server = await Server.connect(url)
  const machine = {
    cpus: Os.cpus().length,
    model: Os.cpus()[0]?.model ?? "",
    memory: Os.totalmem(),
    node: process.version
  }
  say(`PostgreSQL ${server.version}, Node ${machine.node}, ${machine.cpus} x ${machine.model}`)
  say(Terminal.settingsText(server.settings, chosen))
  try {
    const { collection, failures } = await measureAll(server, chosen, options, say)
    const results = collection.results(bases)
    say(Terminal.tables(results))
    const hasGate = options.workloads.includes("W6") && options.systems.includes("headgate")
    const gateResults = hasGate ? await gate(server, await systems["headgate"]!(), options, say) : []
    if (gateResults.length > 0) say(Terminal.gateTable(gateResults))
    if (options.profile !== undefined) say(summaries(options.profile))
    if (options.json !== undefined) {
      const settings = Object.fromEntries(chosen.map(({ name, settings }) => [name, settings]))
      const postgres = { version: server.version, ...server.settings }
      ResultFile.write(options.json, { machine, postgres, settings, results, gate: gateResults })
    }
    if (failures.length > 0) say(`\nNot measured:\n${failures.join("\n")}`)
    return failures.length === 0
  } finally {
    await server.close()
  }
}

/** Answers whether all of the bar is met. */
const check = (path: string): boolean => {
  const verdicts = Bar.judge(ResultFile.read(path))
  say(Terminal.barTable(verdicts))
  return verdicts.every(({ isMet }) => isMet)
}

const main = async (): Promise<boolean> => {
  const options = Options.parse(process.argv.slice(2))
  if (options.check !== undefined) return check(options.check)
  const settings = { ...Server.serverSettings, ...(options.showsStatements ? Statements.serverSettings : {}) }
  return Effect.runPromise(Effect.scoped(Effect.gen(function*() {
    const url = yield* EmbeddedPostgres.url({ isDurable: true, settings })
    return yield* Effect.promise(() => measure(url, options))
  })))
}

try {
  if (!await main()) process.exitCode = 1
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  console.error(Options.usage)
  process.exitCode = 1
}
