/**
 * The exported declarations of a source, with the members that a user of each meets, as signatures of one line. It reads
 * the text as the formatter lays it out: a declaration starts at the margin, and its members are indented by two.
 */
export interface Member {
  readonly signature: string
  readonly says: string
}

export interface Declaration {
  readonly name: string
  readonly says: string
  /** `service`, `failure`..., and what an interface extends; empty for what the name alone says. */
  readonly sort: string
  /** Of services, their static side included, interfaces, schemas and objects of functions. */
  readonly members: ReadonlyArray<Member>
  /** What a type, or a schema of one, comes to; empty where there are members, and for what is too long to read. */
  readonly means: string
}

/** In the order of the source; a type and a value of one name are one. */
export const declarationsOf = (text: string): ReadonlyArray<Declaration> => {
  const found = new Map<string, Declaration>()
  const aliases = [...text.matchAll(/^type (\w+) = (.+)$/gm)]
  for (const { comment, lines } of topLevel(text)) {
    const head = /^export (?:declare )?(?:abstract )?(?:const|class|interface|type|function) (\w+)/.exec(lines[0] ?? "")
    if (head === null) continue
    const [, name = ""] = head
    const one = declaration(text, name, comment, lines)
    const members = one.members.map(({ says, signature }) => ({ says, signature: spelled(signature, aliases) }))
    const other = found.get(name)
    found.set(name, {
      name,
      says: one.says || (other?.says ?? ""),
      sort: other?.sort || one.sort,
      members: [...(other?.members ?? []), ...members],
      means: other?.means || one.means
    })
  }
  return [...found.values()]
}

/** A name that only this source knows stands for what it means. */
const spelled = (signature: string, aliases: ReadonlyArray<RegExpMatchArray>): string =>
  aliases.reduce(
    (signature, [, name = "", means = ""]) => signature.replaceAll(new RegExp(`\\b${name}\\b(?!\\??:)`, "g"), means),
    signature
  )

export const plain = (comment: string): string => comment.replaceAll(/^\s*\*?\s?/gm, "").replaceAll(/\s+/g, " ").trim()

export const firstSentence = (comment: string): string =>
  /^.*?[.?!](?=\s|$)/.exec(plain(comment))?.[0] ?? plain(comment)

interface Chunk {
  readonly comment: string
  readonly lines: ReadonlyArray<string>
}

/** What starts at the margin: lines that only close what was opened belong to the one before. */
const topLevel = (text: string): ReadonlyArray<Chunk> => chunks(text.split("\n"), "")

/** Lines in groups: each begins with one that has the indent and opens something, after the comment above it. */
const chunks = (lines: ReadonlyArray<string>, indent: string): ReadonlyArray<Chunk> => {
  const found: Array<{ comment: string; lines: Array<string> }> = []
  const start = new RegExp(`^${indent}[^\\s)}\\]>|&*/]`)
  let comment = ""
  let isOpen = false
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] ?? ""
    if (line.startsWith(`${indent}/**`)) {
      const from = at
      while (!lines[at]?.includes("*/") && at < lines.length) at++
      comment = lines.slice(from, at + 1).join("\n").trim().replace(/^\/\*\*/, "").replace(/\*\/$/, "")
    } else if (start.test(line)) {
      found.push({ comment, lines: [line] })
      comment = ""
      isOpen = true
    } else if (line !== "" && !line.startsWith(indent)) {
      isOpen = false
    } else if (isOpen) {
      found.at(-1)?.lines.push(line)
    }
  }
  return found
}

const declaration = (text: string, name: string, comment: string, lines: ReadonlyArray<string>): Declaration => {
  const says = firstSentence(comment)
  const [first = ""] = lines
  const kind = /^export (?:declare )?(?:abstract )?(\w+)/.exec(first)?.[1]
  const isOpen = first.endsWith("{") && (kind !== "const" || /= (?:Schema\.Struct\()?\{$/.test(first))
  if (kind === "interface" || kind === "class" || isOpen) {
    const isObject = /^export const \w+ = \{/.test(first)
    const members = chunks(lines.slice(1), "  ").flatMap((member) => memberOf(name, isObject, member))
    return { name, says, sort: sortOf(lines), members: withoutDoubles(members), means: "" }
  }
  const [, inner] = /^export const \w+ = \{ ([\w, ]+) \}$/.exec(first) ?? []
  if (inner !== undefined) {
    return {
      name,
      says,
      sort: "",
      members: inner.split(", ").flatMap((inner) => shorthand(text, name, inner)),
      means: ""
    }
  }
  const means = /^export (?:type \w+(?:<[^=]*>)? =|const \w+ = (?=Schema\.(?:Literals|Union|Struct)\())\s*(.*)$/.exec(
    oneLine(withoutComments(lines.join("\n")))
  )?.[1] ?? ""
  return {
    name,
    says,
    sort: "",
    members: [],
    means: means.length > MAX_MEANING || means.startsWith("typeof ") ? "" : means
  }
}

const MAX_MEANING = 300

const sortOf = (lines: ReadonlyArray<string>): string => {
  const head = oneLine(lines.slice(0, 4).join("\n"))
  const [, of] = /^export interface \w+(?:<.*?>)? extends (.*?) \{/.exec(head) ?? []
  if (of !== undefined) return `and what \`${of}\` has`
  return sorts.find(([pattern]) => pattern.test(head))?.[1] ?? ""
}

const sorts: ReadonlyArray<readonly [RegExp, string]> = [
  [/ extends Context\.(?:Service|Reference)/, "service"],
  [/ extends Schema\.TaggedError/, "failure"],
  [/^export const \w+ = Schema/, "schema"]
]

interface FoundMember extends Member {
  readonly name: string
  readonly isStatic: boolean
  readonly hasBody: boolean
}

const memberOf = (owner: string, isObject: boolean, { comment, lines }: Chunk): ReadonlyArray<FoundMember> => {
  const code = withoutComments(lines.join("\n"))
  if (/^\s*(?:private|protected|override|constructor|#)/.test(code)) return []
  const [, modifier, name = ""] = /^\s*(static )?(?:readonly )?(\w+)/.exec(code) ?? []
  if (name === "") return []
  const isStatic = modifier !== undefined
  const of = isStatic || isObject ? `${owner}.` : ""
  const says = plain(comment)
  const overloads = /:\s*\{$/.test(lines[0] ?? "") ? chunks(lines.slice(1), "    ") : []
  if (overloads.length > 0 && overloads.every(({ lines }) => /^\s*[<(]/.test(lines[0] ?? ""))) {
    return overloads.map(({ lines }, nth) => {
      const signature = `${name}: ${oneLine(withoutComments(lines.join("\n")))}`
      return { name, isStatic, hasBody: false, signature, says: nth === 0 ? says : "" }
    })
  }
  const { hasBody, signature } = cut(code, isObject)
  return [{ name, isStatic, hasBody, signature: `${of}${signature.replace(/^static /, "")}`, says }]
}

/** Neither the implementation of an overloaded function, nor what a service has under the name of its static side. */
const withoutDoubles = (members: ReadonlyArray<FoundMember>): ReadonlyArray<Member> =>
  members.filter(({ hasBody, isStatic, name }, at) =>
    isStatic
      ? !hasBody || !members.slice(0, at).some((other) => other.isStatic && other.name === name)
      : !members.some((other) => other.isStatic && other.name === name)
  )

const shorthand = (text: string, owner: string, name: string): ReadonlyArray<Member> => {
  const found = topLevel(text).find(({ lines }) => lines[0]?.startsWith(`const ${name} = `))
  if (found === undefined) return []
  const code = withoutComments(found.lines.join("\n")).replace(/^const /, "").replace(" = ", ": ")
  return [{ signature: `${owner}.${cut(code, true).signature}`, says: plain(found.comment) }]
}

/** Up to a function's body, or a value. In an object of functions the first arrow of each comes before its body. */
const cut = (code: string, isObject: boolean): { readonly signature: string; readonly hasBody: boolean } => {
  let depth = 0
  for (let at = 0; at < code.length; at++) {
    const char = code[at] ?? ""
    if (code.startsWith("=>", at)) {
      if (depth === 0 && isObject) return { signature: oneLine(code.slice(0, at)).replace(": ", ""), hasBody: true }
      at++
    } else if ("([<".includes(char) || char === "{" && !isBody(code, at, depth)) depth++
    else if (")]>}".includes(char)) depth--
    else if (depth === 0 && (char === "{" || char === "=")) {
      return { signature: oneLine(code.slice(0, at)), hasBody: true }
    }
  }
  return { signature: oneLine(code), hasBody: false }
}

const isBody = (code: string, at: number, depth: number): boolean =>
  depth === 0 && /^\s*static (?!readonly)/.test(code) && code[at + 1] === "\n"

const withoutComments = (code: string): string =>
  code.replaceAll(/\/\*[\s\S]*?\*\//g, "").replaceAll(/^\s*\/\/.*$/gm, "")

const oneLine = (code: string): string =>
  // What stands on lines of its own in an object needs no mark there.
  code.replaceAll(/([^\s,;{([<|&=>:?])\n(?=\s+(?:readonly )?\w+\??:)/g, "$1; ").replaceAll(/\s+/g, " ").replaceAll(
    /([([<]) /g,
    "$1"
  ).replaceAll(/,? ([)\]>])/g, "$1")
    .replaceAll("=>", "=> ").replaceAll(/=>\s+/g, "=> ")
    .replaceAll("readonly ", "").replaceAll(/\?: ([^;,})]*?) \| undefined/g, "?: $1")
    .replace(/^([^|]*[=:(<]) \| /, "$1 ").replace(/^\| /, "").replace(/[,;]$/, "").trim()
