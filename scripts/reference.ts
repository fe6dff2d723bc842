/**
 * Writes docs/reference.md: every public name with its module, the first sentence of its docstring and its members, from
 * the sources.
 * `npm run reference` writes it; a test fails when it is behind.
 */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { type Declaration, declarationsOf, plain } from "./declarations.ts"

const root = join(import.meta.dirname, "..")

interface Module {
  readonly path: string
  readonly says: string
  readonly entries: ReadonlyArray<Declaration>
}

const packages = [
  {
    name: "@headgate/core",
    folder: "core",
    about: "Definitions, pure rules and contracts. Also exported by `headgate`."
  },
  { name: "@headgate/postgres", folder: "postgres", about: "The store. Also exported by `headgate`." },
  { name: "@headgate/worker", folder: "worker", about: "The runtime. Also exported by `headgate`." },
  {
    name: "@headgate/otel",
    folder: "otel",
    about: "OpenTelemetry: traces, metrics and logs. Apart from `headgate`, with the OpenTelemetry SDK as its peers."
  },
  { name: "@headgate/testkit", folder: "testkit", about: "For development and tests." }
]

/** The page as it should be. */
export const reference = (): string => {
  const parts = packages.map(({ about, folder, name }) => {
    const modules = publicModules(folder).filter(({ entries }) => entries.length > 0)
    return [`## ${name}`, about, ...modules.map(section)].join("\n\n")
  })
  const head =
    "# Reference\n\nEvery public name with its members. What is optional may be left out or `undefined`. The sources carry the full docstrings: shapes, units, defaults and errors."
  return `${[head, ...parts].join("\n\n")}\n`
}

const section = ({ entries, path, says }: Module): string =>
  [
    `### ${path}`,
    ...(says === "" ? [] : [says]),
    ["| name | |", "| --- | --- |", ...entries.map(row)].join("\n"),
    ...entries.flatMap(members)
  ].join("\n\n")

const row = ({ means, name, says }: Declaration): string =>
  `| \`${name}\` | ${cell([...(means === "" ? [] : [`\`${means}\``]), says].join(" ").trim())} |`

const members = ({ members, name, sort }: Declaration): ReadonlyArray<string> => {
  if (members.length === 0) return []
  const lines = members.map(({ says, signature }) => `- \`${signature}\`${says === "" ? "" : ` ${says}`}`)
  return [`**\`${name}\`**${sort === "" ? "" : `, ${sort}`}`, lines.join("\n")]
}

const cell = (text: string): string => text.replaceAll("|", "\\|")

/** The modules an index re-exports, with the names it lets out of each. */
const publicModules = (folder: string): ReadonlyArray<Module> => {
  const source = join(root, "packages", folder, "src")
  const index = readFileSync(join(source, "index.ts"), "utf8")
  const modules = new Map<string, ReadonlyArray<string> | undefined>()
  for (
    const [, what = "", file = ""] of index.matchAll(
      /^export (?:type )?(\*(?: as \w+)?|\{[^}]+\}) from "\.\/([^"]+)"/gm
    )
  ) {
    const named = what.startsWith("{") ? what.match(/\w+/g) ?? [] : undefined
    modules.set(file, named === undefined ? undefined : modules.has(file) ? modules.get(file) : named)
  }
  return [...modules].map(([file, named]) => {
    const text = readFileSync(join(source, file), "utf8")
    const entries = declarationsOf(text).filter(({ name }) => named === undefined || named.includes(name))
    return { path: `${folder}/src/${file}`, says: headOf(text), entries }
  })
}

const headOf = (text: string): string => text.startsWith("/**") ? plain(text.slice(3, text.indexOf("*/"))) : ""

export const referencePath = join(root, "docs", "reference.md")

if (process.argv[1] === import.meta.filename) writeFileSync(referencePath, reference())
