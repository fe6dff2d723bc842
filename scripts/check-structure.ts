/**
 * Checks what the compiler does not: which package may import which, cycles between files, sizes and names of files,
 * tests that mirror a source, and a few words that must not be written. Each rule is a function from the tree to messages.
 * The root to check may be given as an argument; default is this repository.
 */
import { existsSync, globSync, readFileSync } from "node:fs"
import { dirname, join, relative, resolve } from "node:path"

const root = resolve(process.argv[2] ?? join(import.meta.dirname, ".."))

/** What each package's sources may import of the others. Siblings that are not listed never meet. */
const allowedPackages: Readonly<Record<string, ReadonlyArray<string>>> = {
  core: [],
  postgres: ["core"],
  worker: ["core"],
  api: ["core"],
  otel: ["core"],
  console: ["api"],
  cli: ["core", "postgres", "api"],
  headgate: ["core", "postgres", "worker"],
  testkit: ["core", "postgres", "worker"],
  bench: ["core", "postgres", "worker", "otel", "headgate", "testkit"]
}

const maximumLines = 500
const forbiddenNames = /^(utils?|common|helpers?|types|misc|shared|.*(Manager|Impl|Live))$/

/** Tests of a whole package, or of one promise that several of its sources keep: "packages/x/test/Name.test.ts". */
const testsWithoutSource: ReadonlyArray<string> = [
  "packages/postgres/test/Charges.test.ts",
  "packages/postgres/test/Plans.test.ts",
  "packages/postgres/test/ProducerBackpressure.test.ts",
  "packages/postgres/test/ProducerGroups.test.ts",
  "packages/postgres/test/ProducerPolicies.test.ts",
  "packages/postgres/test/StateMachine.test.ts",
  "packages/worker/test/Charge.test.ts",
  "packages/worker/test/OnError.test.ts",
  "packages/worker/test/Poison.test.ts"
]

interface Import {
  readonly from: string
  /** Erased by the compiler. */
  readonly isTypeOnly: boolean
  readonly specifier: string
}

const list = (pattern: string): ReadonlyArray<string> =>
  globSync(pattern, { cwd: root, exclude: (name) => name === "node_modules" || name === "dist" })
    .map((path) => path.replaceAll("\\", "/")).sort()

const read = (path: string): string => readFileSync(join(root, path), "utf8")

const sources = list("packages/*/src/**/*.{ts,tsx}")
const everything = [
  ...sources,
  ...list("packages/*/test/**/*.ts"),
  ...list("test/**/*.ts"),
  ...list("scripts/**/*.ts"),
  ...list("examples/**/*.ts")
]

const importsOf = (path: string): ReadonlyArray<Import> => {
  const pattern = /(?:\b(?:import|export)\s+(type\s)?[^"';]*?\bfrom\s*|\bimport\s*\(?\s*)"([^"\n]+)"/g
  return [...withoutComments(path).matchAll(pattern)].map(([, type, specifier = ""]) => ({
    from: path,
    isTypeOnly: type !== undefined,
    specifier
  }))
}

const withoutComments = (path: string): string =>
  read(path).replaceAll(/\/\*[\s\S]*?\*\//g, "").replaceAll(/^\s*\/\/.*$/gm, "")

const packageOf = (path: string): string => path.split("/")[1] ?? ""

/** "@headgate/core/Leases" -> "core"; undefined for what is not ours. */
const ownPackage = (specifier: string): string | undefined =>
  /^@headgate\/([^/]+)/.exec(specifier)?.[1] ?? (/^headgate(\/|$)/.test(specifier) ? "headgate" : undefined)

const dependencyName = (specifier: string): string =>
  specifier.split("/").slice(0, specifier.startsWith("@") ? 2 : 1).join("/")

function importsFollowTheArrows(): ReadonlyArray<string> {
  return sources.flatMap(importsOf).flatMap(({ from, specifier }) => {
    const owner = packageOf(from)
    const target = ownPackage(specifier)
    if (specifier.startsWith(".")) {
      const file = relative(root, resolve(root, dirname(from), specifier)).replaceAll("\\", "/")
      return file.startsWith(`packages/${owner}/`) ? [] : [`${from}: "${specifier}" leaves its package`]
    }
    if (target !== undefined) {
      const isAllowed = target !== owner && allowedPackages[owner]?.includes(target)
      return isAllowed ? [] : [`${from}: ${owner} must not import "${specifier}"`]
    }
    if (owner === "core" && dependencyName(specifier) !== "effect") {
      return [`${from}: core imports effect and nothing else, not "${specifier}"`]
    }
    return []
  })
}

function manifestsSayWhatSourcesImport(): ReadonlyArray<string> {
  return list("packages/*/package.json").flatMap((path) => {
    const owner = packageOf(path)
    const manifest = JSON.parse(read(path))
    const declared: ReadonlyArray<string> = ["dependencies", "peerDependencies", "optionalDependencies"].flatMap((
      key
    ) => Object.keys(manifest[key] ?? {}))
    const mayDepend = (name: string) => {
      const target = ownPackage(name)
      return target === undefined ? owner !== "core" || name === "effect" : allowedPackages[owner]?.includes(target)
    }
    const used = sources.filter((source) => packageOf(source) === owner).flatMap(importsOf)
      .map(({ specifier }) => specifier)
      .filter((specifier) => !/^(\.|node:)/.test(specifier)).map(dependencyName)
    return [
      ...declared.filter((name) => !mayDepend(name)).map((name) => `${path}: ${owner} must not depend on ${name}`),
      ...[...new Set(manifest.private ? [] : used)].filter((name) => !declared.includes(name)).map((name) =>
        `${path}: ${name} is not declared`
      )
    ]
  })
}

function filesFormNoCycle(): ReadonlyArray<string> {
  const edges = new Map(sources.map((path) => [path, importsOf(path).flatMap(fileAtRunTime)]))
  const done = new Set<string>()
  const found: Array<string> = []
  const visit = (path: string, trail: ReadonlyArray<string>): void => {
    if (trail.includes(path)) {
      found.push(`import cycle: ${[...trail.slice(trail.indexOf(path)), path].join(" -> ")}`)
      return
    }
    if (done.has(path)) return
    for (const next of edges.get(path) ?? []) visit(next, [...trail, path])
    done.add(path)
  }
  for (const path of sources) visit(path, [])
  return found
}

const fileAtRunTime = ({ from, isTypeOnly, specifier }: Import): ReadonlyArray<string> =>
  specifier.startsWith(".") && !isTypeOnly ? [join(dirname(from), specifier).replaceAll("\\", "/")] : []

function filesStaySmall(): ReadonlyArray<string> {
  return sources.flatMap((path) => {
    const lines = read(path).split("\n").length
    return lines > maximumLines ? [`${path}: ${lines} lines, at most ${maximumLines}: split it by duty`] : []
  })
}

function namesSayTheDuty(): ReadonlyArray<string> {
  return everything.flatMap((path) =>
    path.split("/").map((part) => part.replace(/\.(test\.)?tsx?$/, "")).filter((part) => forbiddenNames.test(part))
      .map((part) => `${path}: "${part}" says nothing about its duty`)
  )
}

function testsMirrorSources(): ReadonlyArray<string> {
  return list("packages/*/test/**/*.test.ts").flatMap((path) => {
    const source = path.replace("/test/", "/src/").replace(/\.test\.ts$/, "")
    const isMirror = [".ts", ".tsx"].some((extension) => existsSync(join(root, source + extension)))
    return isMirror || testsWithoutSource.includes(path) ? [] : [`${path}: there is no ${source}.ts it would test`]
  })
}

function castsAreExplained(): ReadonlyArray<string> {
  const isCast = /[\w)\]}] as (?!const\b)[A-Za-z{[(]/
  return everything.flatMap((path) => {
    const lines = read(path).split("\n")
    return bareCode(path).split("\n").flatMap((code, index) => {
      const place = `${path}:${index + 1}`
      if (/\bas any\b/.test(code)) return [`${place}: "as any" hides what the compiler knows`]
      const isExplained = lines.slice(Math.max(0, index - 3), index + 1).some((near) => near.includes("SAFETY:"))
      return path.includes("/src/") && isCast.test(code) && !isExplained
        ? [`${place}: a cast needs a SAFETY: line`]
        : []
    })
  })
}

/** Line by line as in the file, with blanks for strings, comments, imports and re-exports. */
const bareCode = (path: string): string =>
  read(path).replaceAll(
    /\/\*[\s\S]*?\*\/|\/\/.*|^(?:import|export)\s[^"';=]*?\bfrom\s*"|^export \* as .*|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`/gm,
    (text) => text.replaceAll(/[^\n]/g, " ")
  )

const rules = [
  importsFollowTheArrows,
  manifestsSayWhatSourcesImport,
  filesFormNoCycle,
  filesStaySmall,
  namesSayTheDuty,
  testsMirrorSources,
  castsAreExplained
]

const messages = rules.flatMap((rule) => rule().map((message) => `${rule.name}: ${message}`))
for (const message of messages) console.error(message)
if (messages.length === 0) console.log(`structure: ${rules.length} rules hold over ${sources.length} sources`)
process.exit(messages.length === 0 ? 0 : 1)
