/** `npm run bench`: headgate, its peers and the raw limit, measured side by side in one run. */
import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import * as Effect from "effect/Effect"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Options from "./Options.ts"
import { summaries } from "./Profile.ts"
import { measureAll } from "./Run.ts"
import * as Server from "./Server.ts"
import * as Statements from "./Statements.ts"
import { systems } from "./systems/index.ts"
import * as Terminal from "./Terminal.ts"
import { gate } from "./workloads/Gate.ts"

const say = (line: string): void => console.log(line)

const measure = async (url: string, options: Options.Options): Promise<void> => {
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
    const collection = await measureAll(server, chosen, options, say)
    const results = collection.results("update")
    say(Terminal.tables(results))
    const gateResults = options.workloads.includes("W6")
      ? await gate(server, await systems["headgate"]!(), options, say)
      : []
    if (gateResults.length > 0) say(Terminal.gateTable(gateResults))
    if (options.profile !== undefined) say(summaries(options.profile))
    if (options.json !== undefined) {
      const settings = Object.fromEntries(chosen.map(({ name, settings }) => [name, settings]))
      const postgres = { version: server.version, ...server.settings }
      Fs.writeFileSync(
        options.json,
        JSON.stringify({ machine, postgres, settings, results, gate: gateResults }, null, 2)
      )
    }
  } finally {
    await server.close()
  }
}

const main = async (): Promise<void> => {
  const options = Options.parse(process.argv.slice(2))
  const settings = { ...Server.serverSettings, ...(options.showsStatements ? Statements.serverSettings : {}) }
  await Effect.runPromise(Effect.scoped(Effect.gen(function*() {
    const url = yield* EmbeddedPostgres.url({ isDurable: true, settings })
    yield* Effect.promise(() => measure(url, options))
  })))
}

try {
  await main()
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  console.error(Options.usage)
  process.exitCode = 1
}
