import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import type { LeaseRef } from "@headgate/core/Ids"
import { Inspect } from "@headgate/core/Inspect"
import { OutputStore, ProgressStore } from "@headgate/core/Reports"
import type { TrackedReport } from "@headgate/core/TrackedWork"
import { Time } from "@headgate/testkit"
import { Deferred, Effect, Exit } from "effect"
import * as Jobs from "./Jobs.ts"

const report = (lease: LeaseRef, current = 1) =>
  ProgressStore.use((store) => store.report(lease, { current, total: 10, message: "half" }))
const track = (lease: LeaseRef, work: TrackedReport["work"] = []) =>
  ProgressStore.use((store) => store.track(lease, { isWaiting: work.length > 0, work, omitted: 3 }))
const put = (lease: LeaseRef, byte = 1) =>
  OutputStore.use((store) => store.put(lease, { version: 3, bytes: Uint8Array.of(byte) }))

layer(Jobs.layer, { excludeTestServices: true })("Reports", (it) => {
  it.effect("the latest report replaces the one before, with the writer's fence and the store's time", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const now = yield* Time.freeze()
      yield* Jobs.seed({ id: "p1", state: "running", fence: 4 })
      const lease = Jobs.lease("p1", 4)
      yield* report(lease, 1)
      yield* put(lease, 1)
      yield* Time.advance(5)
      yield* report(lease, 9)
      yield* put(lease, 9)
      const common = { fence: lease.fence, updatedAtMs: now + 5 }
      assert.deepStrictEqual(yield* inspect.progress(lease.jobId), {
        current: 9,
        total: 10,
        message: "half",
        ...common
      })
      assert.deepStrictEqual(yield* inspect.output(lease.jobId), { version: 3, bytes: Uint8Array.of(9), ...common })
    }))

  it.effect("tracked work is told with the store's time, and only of the attempt that runs", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      const now = yield* Time.freeze()
      yield* Jobs.seed({ id: "p7", state: "running", fence: 4 })
      const lease = Jobs.lease("p7", 4)
      assert.isUndefined(yield* inspect.tracked(lease.jobId))
      yield* track(lease)
      yield* Time.advance(5)
      yield* track(lease, [{ name: "a \"b\", {c}", state: "running", inStateForMs: 7 }, {
        name: "d",
        state: "failed",
        inStateForMs: 0.4
      }])
      assert.deepStrictEqual(yield* inspect.tracked(lease.jobId), {
        fence: lease.fence,
        updatedAtMs: now + 5,
        isWaiting: true,
        omitted: 3,
        work: [
          { name: "a \"b\", {c}", state: "running", enteredAtMs: now - 2 },
          { name: "d", state: "failed", enteredAtMs: now + 5 }
        ]
      })
      yield* pg`UPDATE headgate.job SET fence = 5 WHERE id = 'p7'`
      assert.isUndefined(yield* inspect.tracked(lease.jobId))
    }))

  it.effect("a writer with another lease or another fence is refused and told the state, and nothing is written", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      yield* Jobs.seed({ id: "p2", state: "running", fence: 2 }, { id: "p3", state: "archived" })
      const stale = [
        [Jobs.lease("p2", 1), "running"],
        [{ ...Jobs.lease("p2", 2), leaseId: "00000000-0000-4000-8000-000000000000" } as LeaseRef, "running"],
        [Jobs.lease("p3", 1), "archived"],
        [Jobs.lease("p4", 1), "missing"]
      ] as const
      for (const [lease, state] of stale) {
        const refused = [
          yield* Effect.flip(report(lease)),
          yield* Effect.flip(track(lease)),
          yield* Effect.flip(put(lease))
        ]
        for (const refusal of refused) assert.deepInclude(refusal, { _tag: "LeaseRejected", jobId: lease.jobId, state })
      }
      assert.strictEqual(yield* inspect.progress(Jobs.jobId("p2")), undefined)
      assert.strictEqual(yield* inspect.output(Jobs.jobId("p2")), undefined)
      assert.strictEqual(yield* inspect.tracked(Jobs.jobId("p2")), undefined)
    }))

  it.effect("a report that meets the end of its lease is refused, whichever came first", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const control = yield* Control
      yield* Jobs.seed({ id: "p5", state: "running" })
      const lease = Jobs.lease("p5")
      const exits = yield* Deferred.make<ReadonlyArray<Exit.Exit<unknown, unknown>>>()
      yield* pg.withTransaction(Effect.gen(function*() {
        yield* pg`SELECT FROM headgate.cancel_job('p5')`
        const writes = Effect.all([Effect.exit(report(lease)), Effect.exit(put(lease))], { concurrency: 2 })
        yield* Effect.forkDetach(Effect.flatMap(writes, (all) => Deferred.succeed(exits, all)))
        yield* Jobs.waitingForLocks(2)
      }))
      for (const exit of yield* Deferred.await(exits)) {
        assert.match(JSON.stringify(exit), /"LeaseRejected".*"cancelled"/)
      }
      assert.lengthOf(yield* pg`SELECT FROM headgate.progress WHERE job_id = 'p5'`, 0)
      yield* control.remove(lease.jobId)
    }))

  it.effect("the reports of a job go when it is removed", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const control = yield* Control
      yield* Jobs.seed({ id: "p6", state: "running" })
      yield* report(Jobs.lease("p6"))
      yield* track(Jobs.lease("p6"))
      yield* put(Jobs.lease("p6"))
      assert.deepStrictEqual(yield* Jobs.columns("p6", "has_reports"), [true])
      yield* control.cancel(Jobs.jobId("p6"))
      yield* control.remove(Jobs.jobId("p6"))
      const left = yield* pg`SELECT job_id FROM headgate.progress WHERE job_id = 'p6'
        UNION ALL SELECT job_id FROM headgate.tracked WHERE job_id = 'p6'
        UNION ALL SELECT job_id FROM headgate.output WHERE job_id = 'p6'`
      assert.deepStrictEqual(left, [])
    }))
})
