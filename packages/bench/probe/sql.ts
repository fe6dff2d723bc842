import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import * as Effect from "effect/Effect"
import * as Server from "../src/Server.ts"
import * as Statements from "../src/Statements.ts"
import { systems } from "../src/systems/index.ts"
import { successSql } from "@headgate/postgres/Leases"
import * as Pg from "pg"

const kept = process.argv.includes("--kept")
const explain = process.argv.includes("--explain")
const N = 20000, B = Number(process.argv[2] ?? 1000)
await Effect.runPromise(Effect.scoped(Effect.gen(function*() {
  const url = yield* EmbeddedPostgres.url({ isDurable: true, settings: { ...Server.serverSettings, ...Statements.serverSettings, shared_preload_libraries: "pg_stat_statements,auto_explain", "pg_stat_statements.track": process.argv.includes("--stats") ? "all" : "none", plan_cache_mode: "auto" } })
  yield* Effect.promise(async () => {
    const server = await Server.connect(url)
    const hg = await systems["headgate"]!()
    const raw = await systems["raw"]!()
    for (let round = 0; round < 2; round++) {
      const rawDb = await server.fresh(raw)
      const rs = raw.settings[kept ? 0 : 1]!
      await raw.fill(rawDb.url, rs, N)
      await rawDb.settle()
      const c0 = new Pg.Client({ connectionString: rawDb.url }); await c0.connect()
      let t = performance.now(), claimMs = 0, finMs = 0
      for (let i = 0; i < N / B; i++) {
        const a = performance.now()
        const { rows } = await c0.query<{id: string}>({ name: "c", text: `update job set state = 'running', claimed_at = now() where id = any(array(select id from job where state = 'available' order by id limit $1 for update skip locked)) returning id, payload`, values: [B] })
        const b = performance.now(); claimMs += b - a
        await c0.query({ name: "f", text: kept ? `update job set state = 'completed', finished_at = now() from unnest($1::bigint[]) as done(id) where job.id = done.id` : "delete from job using unnest($1::bigint[]) as done(id) where job.id = done.id", values: [rows.map((r) => r.id)] })
        finMs += performance.now() - b
      }
      console.log(`raw: claim ${(claimMs / N * 1000).toFixed(1)} us/job, finish ${(finMs / N * 1000).toFixed(1)} us/job, ${Math.round(N / (performance.now() - t) * 1000)}/s`)
      await c0.end(); await rawDb.drop()

      const db = await server.fresh(hg)
      const setting = hg.settings[kept ? 1 : 0]!
      await hg.fill(db.url, setting, N)
      await db.settle()
      const c = new Pg.Client({ connectionString: db.url }); await c.connect()
      if (explain) {
        c.on("notice", (n) => console.log(n.message))
        await c.query("set client_min_messages = log; set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on; set auto_explain.log_buffers = on; set auto_explain.log_nested_statements = on; set auto_explain.log_triggers=on")
      }
      if (process.argv.includes("--stats")) await Statements.install(db.client)
      claimMs = finMs = 0; t = performance.now()
      const steps = explain ? 7 : N / B
      const each: number[] = [], fin: number[] = []
      for (let i = 0; i < steps; i++) {
        const lease = crypto.randomUUID()
        const a = performance.now()
        if (explain && i < steps - 1) await c.query("set client_min_messages = warning")
        if (explain && i === steps - 1) await c.query("set client_min_messages = log")
        const { rows } = await c.query<{ id: string; fence: string }>({ name: "a", text: "select * from headgate.admit($1, $2, $3, $4, $5, $6, $7)", values: ["w1", lease, ["default"], [kept ? "no-op-kept" : "no-op"], [1], B, 30000] })
        const b = performance.now(); claimMs += b - a; each.push(b - a)
        const n = rows.length
        await c.query({ name: "s", text: successSql.replace("unnest($1, $2, $3, $4, $5)", "unnest($1::text[], $2::uuid[], $3::bigint[], $4::int[], $5::bytea[])"), values: [rows.map((r) => r.id), Array(n).fill(lease), rows.map((r) => r.fence), [], []] })
        const d = performance.now() - b; finMs += d; fin.push(d)
      }
      const J = steps * B
      console.log(`headgate sql: admit ${(claimMs / J * 1000).toFixed(1)} us/job, settle ${(finMs / J * 1000).toFixed(1)} us/job, ${Math.round(J / (performance.now() - t) * 1000)}/s`)
      console.log("  admit ms", each.map((x) => x.toFixed(1)).join(" ")); console.log("  settle ms", fin.map((x) => x.toFixed(1)).join(" "))
      if (process.argv.includes("--stats")) console.log(await Statements.top(db.client))
      await c.end(); await db.drop()
      if (explain) break
    }
    await server.close()
  })
})))
