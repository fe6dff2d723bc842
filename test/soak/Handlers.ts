/** What the workers of the soak run. Everything that could matter is told to the audit before it is done. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { Job } from "headgate"
import { Audit } from "./Audit.ts"
import { child, enqueue } from "./Orders.ts"
import {
  Complete,
  Injected,
  Long,
  Mark,
  Metered,
  Narrow,
  PAGES,
  Parent,
  Plain,
  type Plan,
  Poison,
  Steps,
  Unique
} from "./Tasks.ts"

const mark = Effect.map(Job.facts, ({ fence }): Mark => ({ fence, nonce: crypto.randomUUID() }))

const CHILDREN = 2

/** Goes wrong as the plan says, or does the work. */
const asPlanned = <E, R>({ deaths, failures, workMs }: Plan, work: Effect.Effect<Mark, E, R>) =>
  Effect.gen(function*() {
    const audit = yield* Audit
    const { attempt, crashAttempt, fence } = yield* Job.facts
    yield* audit.say("start")
    yield* Effect.sleep(workMs)
    if (crashAttempt < deaths) {
      yield* audit.say("die")
      return yield* Effect.die(new Error(`death at fence ${fence}`))
    }
    if (attempt < failures) {
      yield* audit.say("fail")
      return yield* new Injected({ fence })
    }
    return yield* work
  })

const finish = Effect.gen(function*() {
  yield* (yield* Audit).say("finish")
  return yield* mark
})

/** The body of a step: says that it runs, and takes its time. */
const body = (step: string, workMs: number) =>
  Effect.gen(function*() {
    const made = yield* mark
    yield* (yield* Audit).say("body", { step, nonce: made.nonce })
    yield* Effect.sleep(workMs / 3)
    return made
  })

const effect = (step: string) =>
  Effect.gen(function*() {
    const sql = yield* PgClient.PgClient
    const { fence, id } = yield* Job.facts
    yield* sql`INSERT INTO audit.effect (job_id, step, fence) VALUES (${id}, ${step}, ${fence})`
  })

const durable = Effect.fnUntraced(function*(step: string, { nonce }: Mark) {
  yield* (yield* Audit).say("durable", { step, nonce })
})

const PlainHandler = Plain.toLayer((plan) => asPlanned(plan, finish))
const PoisonHandler = Poison.toLayer((plan) => asPlanned(plan, finish))
const UniqueHandler = Unique.toLayer((plan) => asPlanned(plan, finish))
const NarrowHandler = Narrow.toLayer((plan) => asPlanned(plan, finish))
const MeteredHandler = Metered.toLayer((plan) => asPlanned(plan, finish))

const pages = (workMs: number) =>
  Steps.cursor(
    "pages",
    { schema: Schema.Struct({ page: Schema.Int, ...Mark.fields }), initial: { page: 0, fence: 0, nonce: "" } },
    (from, save) =>
      Effect.gen(function*() {
        for (let page = from.page + 1; page <= PAGES; page++) {
          yield* Effect.sleep(workMs / PAGES)
          yield* save({ page, ...yield* mark })
        }
      })
  )

const StepsHandler = Steps.toLayer((plan) =>
  asPlanned(
    plan,
    Effect.gen(function*() {
      yield* durable("draw", yield* Steps.step("draw", body("draw", plan.workMs), { result: Mark }))
      yield* pages(plan.workMs)
      const publish = Effect.tap(body("publish", plan.workMs), () => effect("publish"))
      yield* durable("publish", yield* Steps.once("publish", publish, { result: Mark }))
      yield* Steps.sleep("nap", plan.workMs + 1)
      yield* durable("announce", yield* Steps.step("announce", body("announce", plan.workMs), { result: Mark }))
      return yield* finish
    })
  )
)

const LongHandler = Long.toLayer((plan) =>
  asPlanned(
    { ...plan, workMs: plan.workMs / 4 },
    Effect.gen(function*() {
      for (const step of ["first", "second", "third"] as const) {
        yield* durable(step, yield* Long.step(step, body(step, plan.workMs), { result: Mark }))
      }
      return yield* finish
    })
  )
)

const CompleteHandler = Complete.toLayer((plan) =>
  asPlanned(plan, Complete.completeWith(Effect.andThen(effect("complete"), finish)))
)

/** The children are enqueued in the transaction of the step. */
const spawn = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const { id } = yield* Job.facts
  const children = Array.from({ length: CHILDREN }, (_, n) => child(id, n, 20))
  yield* (yield* Audit).intend(children)
  const made = yield* body("spawn", 10)
  yield* sql`INSERT INTO audit.family (name) VALUES (${id})`
  for (const order of children) yield* enqueue(order)
  return made
})

const ParentHandler = Parent.toLayer((plan) =>
  asPlanned(
    plan,
    Effect.gen(function*() {
      yield* durable("spawn", yield* Parent.once("spawn", spawn, { result: Mark }))
      return yield* finish
    })
  )
)

export const handlers = Layer.mergeAll(
  PlainHandler,
  PoisonHandler,
  UniqueHandler,
  NarrowHandler,
  MeteredHandler,
  StepsHandler,
  LongHandler,
  CompleteHandler,
  ParentHandler
)
