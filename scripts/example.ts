/** `npm run example -- 01-hello` runs an example on the Node version the project brings along. */
import { existsSync, readdirSync } from "node:fs"
import { join } from "node:path"
import { pathToFileURL } from "node:url"

const folder = join(import.meta.dirname, "..", "examples")
const name = process.argv[2] ?? ""
const main = join(folder, name, "main.ts")

if (name !== "" && existsSync(main)) await import(pathToFileURL(main).href)
else {
  const names = readdirSync(folder).filter((name) => existsSync(join(folder, name, "main.ts")))
  console.error(`Name an example: ${names.join(", ")}`)
  process.exitCode = 2
}
