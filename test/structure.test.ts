import { assert, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"

/** What the structure check says of a tree with these files. */
const check = (files: Readonly<Record<string, string>>) => {
  const root = mkdtempSync(join(tmpdir(), "headgate-structure-"))
  try {
    for (const [path, text] of Object.entries(files)) {
      mkdirSync(dirname(join(root, path)), { recursive: true })
      writeFileSync(join(root, path), text)
    }
    const script = join(import.meta.dirname, "../scripts/check-structure.ts")
    const { status, stderr } = spawnSync(process.execPath, [script, root], { encoding: "utf8" })
    return { status, messages: stderr.trim() }
  } finally {
    rmSync(root, { recursive: true })
  }
}

const sound = {
  "packages/core/package.json": `{ "peerDependencies": { "effect": "1" } }`,
  "packages/core/src/Gate.ts":
    `import type * as Effect from "effect/Effect"\nexport const one: Effect.Effect<number> | 1 = 1`,
  "packages/core/test/Gate.test.ts": `import { one } from "../src/Gate.ts"\none satisfies unknown`,
  "packages/worker/package.json": `{ "dependencies": { "@headgate/core": "1" } }`,
  "packages/worker/src/Loop.ts": `import { one } from "@headgate/core/Gate"\nexport const loop = one`
}

it("a sound tree passes", () => {
  assert.deepStrictEqual(check(sound), { status: 0, messages: "" })
})

const violations: ReadonlyArray<readonly [title: string, files: Readonly<Record<string, string>>, message: RegExp]> = [
  ["a sibling import", { "packages/worker/src/Loop.ts": `import "@headgate/postgres/Gate"` }, /worker must not import/],
  [
    "an import across packages by path",
    { "packages/worker/src/Loop.ts": `export * from "../../core/src/Gate.ts"` },
    /leaves its package/
  ],
  [
    "a foreign import in core",
    { "packages/core/src/Gate.ts": `import "node:fs"` },
    /core imports effect and nothing else/
  ],
  ["a sibling dependency", {
    "packages/worker/package.json": `{ "dependencies": { "@headgate/core": "1", "@headgate/postgres": "1" } }`
  }, /worker must not depend on/],
  ["an undeclared dependency", { "packages/worker/package.json": "{}" }, /@headgate\/core is not declared/],
  ["an import cycle", {
    "packages/core/src/A.ts": `import { b } from "./B.ts"\nexport const a = () => b`,
    "packages/core/src/B.ts": `import { type X, a } from "./A.ts"\nexport const b = () => a`
  }, /cycle: packages\/core\/src\/A\.ts -> packages\/core\/src\/B\.ts/],
  ["a long file", { "packages/core/src/Gate.ts": "\n".repeat(500) }, /501 lines/],
  ["a name that says nothing", { "packages/core/src/utils.ts": "" }, /"utils"/],
  ["a test without its source", { "packages/core/test/Gone.test.ts": "" }, /there is no packages\/core\/src\/Gone\.ts/],
  [
    "an unexplained cast",
    { "packages/core/src/Gate.ts": `export const one = 1 as unknown` },
    /Gate\.ts:1: a cast needs/
  ],
  ["a cast to any", { "packages/core/test/Gate.test.ts": `(1 as any).x` }, /Gate\.test\.ts:1: "as any"/]
]

for (const [title, files, message] of violations) {
  it(`${title} fails the check`, () => {
    const { messages, status } = check({ ...sound, ...files })
    assert.strictEqual(status, 1)
    assert.match(messages, message)
  })
}
