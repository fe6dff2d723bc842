/** Typed array parameters: without a named element type the driver refuses arrays that are empty or all null. */
import * as PgTypes from "@effect/sql-pg/PgTypes"
import { isStorableText } from "@headgate/core/Text"
import * as Result from "effect/Result"

const array = (oid: number) => (values: ReadonlyArray<unknown> | null): PgTypes.Parameter =>
  Result.getOrThrow(PgTypes.array(values, oid))

export const texts: (values: ReadonlyArray<string | null>) => PgTypes.Parameter = array(PgTypes.OID.text)
export const uuids: (values: ReadonlyArray<string | null>) => PgTypes.Parameter = array(PgTypes.OID.uuid)
export const ints: (values: ReadonlyArray<number | null>) => PgTypes.Parameter = array(PgTypes.OID.int4)
export const bools: (values: ReadonlyArray<boolean | null>) => PgTypes.Parameter = array(PgTypes.OID.bool)
export const bytes: (values: ReadonlyArray<Uint8Array | null>) => PgTypes.Parameter = array(PgTypes.OID.bytea)

const int8s = array(PgTypes.OID.int8)

/** Whole numbers up to 2^53 - 1 as bigint. */
export const bigints = (values: ReadonlyArray<number | null>): PgTypes.Parameter =>
  int8s(values.map((value) => value === null ? null : BigInt(value)))

export const bigint = (value: number | null): PgTypes.Parameter => PgTypes.int8(value === null ? null : BigInt(value))
/** An array of arrays has no parameter: each inner one travels as a literal, to be cast to `text[]`. */
export const textArrayLiteral = (values: ReadonlyArray<string>): string =>
  `{${values.map((value) => `"${value.replace(/["\\]/g, "\\$&")}"`).join(",")}}`

/** A null of type `text[]`. */
export const noTexts: PgTypes.Parameter = array(PgTypes.OID.text)(null)
export const bool = PgTypes.bool
export const text = PgTypes.text
/** An id that no text column can hold is the id of no job: it is looked for as the empty one, which none has. */
export const id = (value: string): PgTypes.Parameter => text(isStorableText(value) ? value : "")
export const int = PgTypes.int4
export const uuid = PgTypes.uuid
export const bytea = PgTypes.bytea
