import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import {
  type EnqueueOptions,
  Inspect,
  Invalid,
  isTerminal,
  Job,
  JobId,
  Output,
  Progress,
  Retry,
  Task
} from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Context, Effect, Layer, Option, Schema } from "effect"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

/** NUL, both halves of a pair alone, a whole pair, and text that only looks like an escape. */
const NASTY = ["a\u0000b", "\ud83d", "\ude00", "x\ud83dy", "ok 😀", "\\u0000", "\\ud83d", "😀\ude00"]
/** What must come back as it was, wherever it was put. */
const isPlain = (text: string): boolean => !/\0|\p{Surrogate}/u.test(text)
const MIB = 1_048_576

const Nested = Schema.Struct({ list: Schema.Array(Schema.Record(Schema.String, Schema.String)) })
/** Depth 3, and the text as a key as well. */
const nested = (text: string) => ({ list: [{ [text]: text }] })

class Refused extends Schema.TaggedError<Refused>()("Refused", { text: Schema.String }) {}

const Where = Schema.Literals([
  "payload and result",
  "step",
  "step key",
  "cursor",
  "once",
  "effect key",
  "output",
  "progress",
  "typed error",
  "defect",
  "skip"
])

const Carrier = Task.make("carrier", {
  payload: Schema.Struct({ where: Where, text: Schema.String, deep: Nested }),
  success: Nested,
  error: Schema.Union([Refused, Invalid]),
  steps: ["step"],
  retry: Retry.fixed("10 millis"),
  maxAttempts: 2,
  crashLimit: 1,
  queue: "carrier"
})

/** The second attempt of a job that failed on purpose finds, and answers, what the first one stored. */
const fails = <A>(value: A) =>
  Effect.flatMap(Job.facts, ({ attempt }) => attempt === 0 ? new Refused({ text: "once" }) : Effect.succeed(value))

const CarrierHandler = Carrier.toLayer(Effect.fn(function*({ deep, text, where }) {
  switch (where) {
    case "payload and result":
      return deep
    case "step":
      return yield* Effect.flatMap(Carrier.step("step", Effect.succeed(deep), { result: Nested }), fails)
    case "step key":
      yield* Carrier.step("step", Effect.void, { key: text })
      return deep
    case "cursor":
      return yield* Carrier.cursor(
        "step",
        { schema: Nested, initial: { list: [] }, result: Nested },
        (position, save) =>
          position.list.length === 0
            ? Effect.andThen(save(deep), new Refused({ text: "once" }))
            : Effect.succeed(position)
      )
    case "once":
      return yield* Effect.flatMap(Carrier.once("step", Effect.succeed(deep), { result: Nested }), fails)
    case "effect key":
      yield* Carrier.once("step", Effect.void, { effectKey: text })
      return deep
    case "output":
      yield* Output.put(Nested, deep)
      return deep
    case "progress":
      yield* Progress.report({ current: 1, total: 1, message: text })
      return deep
    case "typed error":
      return yield* new Refused({ text })
    case "defect":
      return yield* Effect.die(new Error(text))
    case "skip":
      return yield* Job.skip(text)
  }
}))

class Stage extends Context.Service<Stage, Site.Site>()("test/Stage") {}

const stage = Layer.effect(
  Stage,
  Effect.gen(function*() {
    const { url } = yield* TestDatabase.TestDatabase
    const site = yield* Site.open(url)
    yield* Effect.orDie(
      site.work(Layer.merge(CarrierHandler, SizedHandler), { concurrency: 20, pollInterval: "50 millis" })
    )
    return site
  })
)

const ended = (id: string, withinMs?: number) =>
  Watch.until(
    Effect.map(Watch.job(id), (job) => isTerminal(job.state) ? Option.some(job) : Option.none()),
    `job ${id} to end`,
    withinMs
  )

/** Runs a job for each text, and looks at what became of it. */
const carry = <A, E, R>(where: typeof Where.Type, look: (id: JobId, text: string) => Effect.Effect<A, E, R>) =>
  Effect.flatMap(Stage, (site) =>
    site.use(Effect.forEach(NASTY, (text) =>
      Effect.gen(function*() {
        const id = yield* Carrier.enqueue({ where, text, deep: nested(text) })
        yield* ended(id)
        return yield* look(id, text)
      }), { concurrency: 4 })))

const inspect = Inspect.use((inspect) => Effect.succeed(inspect))

const json = (bytes: Uint8Array | undefined): unknown =>
  bytes === undefined ? undefined : JSON.parse(new TextDecoder().decode(bytes))

/** The last error that is stored with the job: its tag, its text, and the typed form as the task encoded it. */
const storedError = Effect.fnUntraced(function*(id: string) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ tag: string; message: string; text: string; error: Uint8Array | null }>`
    SELECT error_tag AS tag, error_message AS message, error_text AS text, error FROM headgate.attempt
    WHERE job_id = ${id} ORDER BY fence DESC LIMIT 1`
  return row
})

/** The job ended by a refusal that names the field, on its first attempt. */
const isRefused = Effect.fnUntraced(function*(id: JobId, field: string) {
  const job = yield* Watch.job(id)
  assert.deepInclude(job, { state: "archived", reason: "fatal", attempt: 1, crashAttempt: 0 })
  const error = yield* storedError(id)
  assert.strictEqual(error?.tag, "Invalid")
  assert.include(`${error?.message} ${error?.text}`, field)
})

const repaired = (text: string): string => text.replaceAll(/\0|\p{Surrogate}/gu, "\ufffd")

const live = Layer.suspend(() => stage).pipe(Layer.provideMerge(TestDatabase.layer))

layer(live, { excludeTestServices: true })("Text that a database dislikes", (it) => {
  it.effect("comes back as it was in payloads and results, as keys and as values", () =>
    Effect.gen(function*() {
      yield* carry(
        "payload and result",
        Effect.fnUntraced(function*(id, text) {
          assert.strictEqual((yield* Watch.job(id)).state, "completed")
          assert.deepStrictEqual(json((yield* (yield* inspect).payload(id)).bytes), {
            where: "payload and result",
            text,
            deep: nested(text)
          })
          assert.deepStrictEqual(yield* Watch.result(id), nested(text))
        })
      )
    }))

  for (const where of ["step", "cursor", "once"] as const) {
    it.effect(`comes back as it was from a ${where} on the next attempt`, () =>
      carry(
        where,
        Effect.fnUntraced(function*(id, text) {
          assert.deepInclude(yield* Watch.job(id), { state: "completed", attempt: 1, crashAttempt: 0 })
          assert.deepStrictEqual(yield* Watch.result(id), nested(text))
        })
      ))
  }

  it.effect("comes back as it was in output", () =>
    carry(
      "output",
      Effect.fnUntraced(function*(id, text) {
        assert.deepStrictEqual(json((yield* (yield* inspect).output(id))?.bytes), nested(text))
      })
    ))

  for (const [where, field] of [["step key", "key"], ["effect key", "effect key"], ["progress", "message"]] as const) {
    it.effect(`is stored as it is in a ${where} or refused by name, and then not tried again`, () =>
      carry(
        where,
        Effect.fnUntraced(function*(id, text) {
          if (!isPlain(text)) return yield* isRefused(id, field)
          assert.deepInclude(yield* Watch.job(id), { state: "completed", attempt: 0 })
          const sql = yield* PgClient.PgClient
          const [row] = yield* sql<{ step: string; key: string; message: string }>`SELECT j.id,
            (SELECT s.step FROM headgate.step s WHERE s.job_id = j.id) AS step,
            (SELECT e.key FROM headgate.effect e WHERE e.job_id = j.id) AS key,
            (SELECT p.message FROM headgate.progress p WHERE p.job_id = j.id) AS message
          FROM headgate.job j WHERE j.id = ${id}`
          const found = where === "step key" ? row?.step : where === "effect key" ? row?.key : row?.message
          assert.strictEqual(found, where === "step key" ? `step[${text}]` : text)
        })
      ))
  }

  it.effect("is repaired in the text of an error, and kept as it was in its typed form", () =>
    carry(
      "typed error",
      Effect.fnUntraced(function*(id, text) {
        assert.deepInclude(yield* Watch.job(id), {
          state: "archived",
          reason: "exhausted",
          attempt: 2,
          crashAttempt: 0
        })
        const error = yield* storedError(id)
        assert.strictEqual(error?.tag, "Refused")
        assert.isTrue(isPlain(error?.text ?? "\0"))
        assert.deepStrictEqual(json(error?.error ?? undefined), { _tag: "Refused", text })
      })
    ))

  it.effect("is repaired in the text of a defect", () =>
    carry(
      "defect",
      Effect.fnUntraced(function*(id, text) {
        assert.deepInclude(yield* Watch.job(id), { state: "quarantined", attempt: 0, crashAttempt: 1 })
        const error = yield* storedError(id)
        assert.strictEqual(error?.message, repaired(text))
        assert.isTrue(error?.text.startsWith(`Error: ${repaired(text)}\n`))
      })
    ))

  it.effect("is repaired in the reason of a skip", () =>
    carry(
      "skip",
      Effect.fnUntraced(function*(id, text) {
        assert.deepInclude(yield* Watch.job(id), { state: "archived", reason: "skipped", attempt: 0 })
        assert.strictEqual((yield* storedError(id))?.message, repaired(text))
      })
    ))

  const places: ReadonlyArray<{
    readonly field: string
    readonly options: (text: string) => EnqueueOptions
    readonly read: (id: string) => Effect.Effect<unknown, unknown, PgClient.PgClient>
  }> = [
    { field: "id", options: (id) => ({ id }), read: (id) => Effect.succeed(id) },
    { field: "tags", options: (text) => ({ tags: [text] }), read: column("tags[1]") },
    { field: "headers", options: (text) => ({ headers: { note: text } }), read: header("note") },
    {
      field: "headers",
      options: (text) => ({ headers: { [text]: "named" } }),
      read: (id) =>
        Effect.map(column("convert_from(headers, 'UTF8')")(id), (all) => Object.keys(JSON.parse(String(all)))[0])
    },
    { field: "headers", options: (tracestate) => ({ headers: { tracestate } }), read: header("tracestate") },
    { field: "partitionKey", options: (partitionKey) => ({ partitionKey }), read: column("partition_key") },
    { field: "queue", options: (queue) => ({ queue }), read: column("queue") }
  ]

  for (const [n, { field, options, read }] of places.entries()) {
    it.effect(`in a new job's ${field} (${n}) is refused by name, with no row, or comes back as it was`, () =>
      Effect.flatMap(Stage, (site) =>
        site.use(Effect.forEach(NASTY, (text) =>
          Effect.gen(function*() {
            const rows = Effect.map(column("count(*)::int", "true")(""), Number)
            const before = yield* rows
            const payload = { where: "payload and result" as const, text, deep: nested(text) }
            const told = yield* Effect.result(Carrier.enqueue(payload, { pending: true, ...options(text) }))
            if (told._tag === "Success") {
              assert.strictEqual(yield* read(told.success), text)
              return
            }
            assert.isTrue(!isPlain(text) || field === "queue", `${JSON.stringify(text)} is refused as ${field}`)
            assert.deepInclude(told.failure, { _tag: "Invalid", field })
            assert.strictEqual(yield* rows, before)
          })))))
  }

  it.effect("makes unique keys that tell different texts apart and equal ones alike", () =>
    Effect.flatMap(Stage, (site) =>
      site.use(Effect.gen(function*() {
        const payload = { where: "payload and result" as const, text: "", deep: nested("") }
        for (const uniqueKey of NASTY) {
          const first = yield* Effect.result(Carrier.enqueue(payload, { pending: true, uniqueKey }))
          const second = yield* Effect.result(Carrier.enqueue(payload, { pending: true, uniqueKey }))
          if (first._tag === "Failure") assert.deepInclude(first.failure, { _tag: "Invalid", field: "uniqueKey" })
          else assert.deepInclude(second, { _tag: "Failure" })
          if (first._tag === "Success" && second._tag === "Failure") {
            assert.deepInclude(second.failure, { _tag: "Duplicate", existingId: first.success })
          }
        }
      }))))
})

function column(
  expression: string,
  where = "id = $1"
): (id: string) => Effect.Effect<unknown, unknown, PgClient.PgClient> {
  return (id) =>
    Effect.flatMap(PgClient.PgClient, (sql) =>
      Effect.map(
        sql.unsafe<{ value: unknown }>(
          `SELECT ${expression} AS value FROM headgate.job WHERE ${where}`,
          where.includes("$1") ? [id] : []
        ),
        ([row]) => row?.value
      ))
}

function header(name: string) {
  return (id: string) => Effect.map(column("convert_from(headers, 'UTF8')")(id), (all) => JSON.parse(String(all))[name])
}

/** Sizes are of the encoded form: a text of so many letters, and its two quotes. */
const Sized = Task.make("sized", {
  payload: Schema.String,
  success: Schema.String,
  steps: ["step", "once"],
  maxAttempts: 3,
  retry: Retry.fixed("10 millis"),
  queue: "sized"
})

const text = (bytes: number): string => "x".repeat(bytes - 2)

/** `door bytes`: writes a value of that size. Each start leaves a row, the side effect of all of them. */
const SizedHandler = Sized.toLayer(Effect.fn(function*(order) {
  const sql = yield* PgClient.PgClient
  const { id } = yield* Job.facts
  yield* sql`INSERT INTO side_effect VALUES (${id})`
  const [door, bytes] = order.split(" ")
  const value = text(Number(bytes))
  if (door === "step") yield* Sized.step("step", Effect.succeed(value), { result: Schema.String })
  if (door === "once") yield* Sized.once("once", Effect.succeed(value), { result: Schema.String })
  if (door === "cursor") yield* Sized.cursor("step", { schema: Schema.String, initial: "" }, (_, save) => save(value))
  if (door === "output") yield* Output.put(Schema.String, value)
  if (door === "complete") return yield* Sized.completeWith(Effect.succeed(value))
  return door === "result" ? value : "done"
}))

const sideEffects = Effect.fnUntraced(function*(id: string) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM side_effect WHERE id = ${id}`
  return row?.n
})

const sizes = Layer.effectDiscard(
  Effect.flatMap(PgClient.PgClient, (sql) => sql`CREATE TABLE side_effect (id text NOT NULL)`)
)

layer(live.pipe(Layer.provideMerge(sizes), Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "The limit of 1,048,576 bytes",
  (it) => {
    it.effect("takes a payload of exactly so many, and refuses one more with both numbers and no row", () =>
      Effect.flatMap(Stage, (site) =>
        site.use(Effect.gen(function*() {
          const id = yield* Sized.enqueue(text(MIB), { pending: true })
          assert.strictEqual((yield* (yield* inspect).payload(id)).bytes.length, MIB)
          const refused = yield* Effect.flip(Sized.enqueue(text(MIB + 1), { pending: true, id: "too large" }))
          assert.deepInclude(refused, { _tag: "Invalid", field: "payload", limit: MIB, actual: MIB + 1 })
          assert.strictEqual(yield* Watch.stateOf("too large"), "deleted")
          // Bytes of UTF-8, not letters.
          const wide = yield* Effect.flip(Sized.enqueue("ü".repeat(MIB / 2), { pending: true }))
          assert.deepInclude(wide, { field: "payload", limit: MIB, actual: MIB + 2 })
        }))))

    const doors = [["result", "ResultTooLarge"], ["complete", "Invalid"], ["step", "Invalid"], ["once", "Invalid"], [
      "cursor",
      "Invalid"
    ], ["output", "Invalid"]] as const
    for (const [door, tag] of doors) {
      it.effect(`takes a value of exactly so many from a ${door}, and ends the job at one more, without a second try`, () =>
        Effect.flatMap(Stage, (site) =>
          site.use(Effect.gen(function*() {
            const fits = yield* Sized.enqueue(`${door} ${MIB}`)
            assert.deepInclude(yield* ended(fits), { state: "completed", attempt: 0 })
            const exceeds = yield* Sized.enqueue(`${door} ${MIB + 1}`)
            assert.deepInclude(yield* ended(exceeds), {
              state: "archived",
              reason: "fatal",
              attempt: 1,
              crashAttempt: 0
            })
            const error = yield* storedError(exceeds)
            assert.strictEqual(error?.tag, tag)
            assert.include(error?.message, String(MIB))
            assert.include(error?.message, String(MIB + 1))
            assert.strictEqual(yield* sideEffects(exceeds), 1)
          }))))
    }

    it.effect("ends a job with a result of 300 MB within seconds, and its side effect happened once", () =>
      Effect.flatMap(Stage, (site) =>
        site.use(Effect.gen(function*() {
          const huge = 300 * MIB
          const startedAt = performance.now()
          const id = yield* Sized.enqueue(`result ${huge}`)
          const beside = yield* Sized.enqueue("result 10")
          assert.deepInclude(yield* ended(id, 120_000), {
            state: "archived",
            reason: "fatal",
            attempt: 1,
            crashAttempt: 0
          })
          const took = Math.round(performance.now() - startedAt)
          console.log(`a result of 300 MB ended its job: ${took} ms, of at most 15000 ms on a quiet machine`)
          assert.include((yield* storedError(id))?.message, String(huge))
          assert.strictEqual((yield* ended(beside)).state, "completed")
          yield* Effect.sleep(200)
          assert.strictEqual(yield* sideEffects(id), 1)
        }))))
  }
)
