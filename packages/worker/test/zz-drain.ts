import * as PgClient from "@effect/sql-pg/PgClient"
import { Inspect, Producer, Task } from "@headgate/core"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase } from "@headgate/testkit"
import { Worker } from "@headgate/worker"
import { Effect, Exit, Layer, Schema, Scope } from "effect"
import * as SqlClient from "effect/sql/SqlClient"

const N = Number(process.env.N ?? 20000)
const concurrency = Number(process.env.C ?? 1000)
const prefetch = Number(process.env.P ?? 0)
let done = 0
let resolveDone = () => {}
const Noop = Task.make("noop", { payload: Schema.Struct({ n: Schema.Number }), retention: 0 })
const NoopLive = Noop.toLayer(() =>
  Effect.sync(() => {
    if (++done === N) resolveDone()
  })
)
const Store = PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))

const enqueue = Effect.gen(function*() {
  for (let i = 0; i < N; i += 5000) {
    yield* Noop.enqueueAll(Array.from({ length: Math.min(5000, N - i) }, (_, j) => ({ n: i + j })))
  }
  const sql = yield* SqlClient.SqlClient
  yield* sql`vacuum analyze headgate.job`
})
const raw = Effect.gen(function*() {
  if (process.env.NORAW) return
  yield* enqueue
  const sql = yield* SqlClient.SqlClient
  const t0 = performance.now()
  let total = 0
  for (;;) {
    const rows =
      yield* sql`update headgate.job set state='running', fence=fence+1, lease_id=gen_random_uuid(), lease_expires_at_ms=1e15::bigint, worker='w', claimed_at_ms=1 where id = any(array(select id from headgate.job where state='available' order by priority desc, scheduled_at_ms, id limit ${concurrency} for no key update skip locked)) returning id, payload`
    if (rows.length === 0) break
    total += rows.length
    const ids = rows.map((r) => r.id as string)
    yield* sql`delete from headgate.job where id = any(${ids})`
  }
  console.log("raw", Math.round(total / (performance.now() - t0) * 1000), "/s")
})
const drainOnce = Effect.gen(function*() {
  yield* enqueue
  done = 0
  const p = new Promise<void>((r) => resolveDone = r)
  const scope = yield* Scope.make()
  const cpu0 = process.cpuUsage()
  const t0 = performance.now()
  yield* Layer.buildWithScope(Worker.layer({ concurrency, prefetch }).pipe(Layer.provide(NoopLive)), scope)
  const t1 = performance.now()
  yield* Effect.promise(() => p)
  const t2 = performance.now()
  const sql = yield* SqlClient.SqlClient
  for (;;) {
    const [r] = yield* sql`select count(*)::int as n from headgate.job`
    if ((r as any).n === 0) break
  }
  const t3 = performance.now()
  const cpu = process.cpuUsage(cpu0)
  yield* Scope.close(scope, Exit.void)
  console.log(
    `drain C=${concurrency} P=${prefetch}`,
    Math.round(N / (t3 - t1) * 1000),
    "/s",
    "handlers done",
    Math.round(t2 - t1),
    "ms; cpu us/job",
    Math.round((cpu.user + cpu.system) / N),
    "user",
    Math.round(cpu.user / N),
    "close",
    Math.round(performance.now() - t3)
  )
})
await Effect.runPromise(
  Effect.gen(function*() {
    yield* raw
    for (let i = 0; i < Number(process.env.ROUNDS ?? 3); i++) yield* drainOnce
    yield* raw
  }).pipe(Effect.provide(Store)) as any
)
process.exit(0)
