/** Reads the language-neutral vectors of `conformance/vectors`, whose long values are written short. */
import { readFileSync } from "node:fs"

export type VectorText = string | { readonly repeat: string; readonly times: number }
export type VectorBytes = { readonly hex: string } | { readonly repeat_byte: number; readonly times: number }

// SAFETY: the vectors are part of this repository; each test names the shape it reads and fails on another.
export const vectors = <A>(name: string): A =>
  JSON.parse(readFileSync(new URL(`../../../conformance/vectors/${name}.json`, import.meta.url), "utf8")) as A

export const bytesOf = (value: VectorBytes): Uint8Array =>
  "hex" in value ? Uint8Array.from(Buffer.from(value.hex, "hex")) : new Uint8Array(value.times).fill(value.repeat_byte)

export const textOf = (value: VectorText): string =>
  typeof value === "string" ? value : value.repeat.repeat(value.times)

export const hexOf = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex")

/** Expands the short forms and turns snake_case fields into camelCase ones, at any depth but not inside headers. */
export const fieldsOf = (value: unknown, isHeaders = false): unknown => {
  if (Array.isArray(value)) return value.map((item) => fieldsOf(item))
  if (typeof value !== "object" || value === null) return value
  if ("repeat" in value) return textOf(value as VectorText)
  if ("hex" in value || "repeat_byte" in value) return bytesOf(value as VectorBytes)
  return Object.fromEntries(
    Object.entries(value).map(([key, field]) => [isHeaders ? key : camelCase(key), fieldsOf(field, key === "headers")])
  )
}

const camelCase = (name: string): string => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())
