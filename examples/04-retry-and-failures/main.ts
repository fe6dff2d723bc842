/** Failures are typed, and each type says what becomes of the job: tried again, counted or not, or given up. */
import { EmbeddedPostgres } from "@headgate/testkit"
import { Console, Effect, Layer, Schema } from "effect"
import { Inspect, Job, OnError, PostgresStore, Retry, Task, Worker } from "headgate"

class MailboxFull extends Schema.TaggedError<MailboxFull>()("MailboxFull", { address: Schema.String }) {}
class UnknownAddress extends Schema.TaggedError<UnknownAddress>()("UnknownAddress", { address: Schema.String }) {}
class Maintenance extends Schema.TaggedError<Maintenance>()("Maintenance", {}) {}

const SendMail = Task.make("mail:send", {
  payload: Schema.Struct({ to: Schema.String }),
  error: Schema.Union([MailboxFull, UnknownAddress, Maintenance]),
  maxAttempts: 3,
  // A tag that is forgotten here does not compile.
  onError: {
    MailboxFull: OnError.retry({ policy: Retry.exponential({ base: "50 millis", cap: "1 second" }) }),
    UnknownAddress: ({ address }) => OnError.skip(`nobody is at ${address}`),
    // Nobody's fault: the job comes back later, and no attempt is consumed.
    Maintenance: OnError.notAFailure
  }
})

const SendMailHandler = SendMail.toLayer(Effect.fn(function*({ to }) {
  const { attempt, fence } = yield* Job.facts
  yield* Console.log(`to ${to}: run ${fence}, ${attempt} failures before`)
  if (to === "full@example.com") return yield* new MailboxFull({ address: to })
  if (to === "none@example.com") return yield* new UnknownAddress({ address: to })
  if (fence === 1) return yield* new Maintenance()
}))

const program = Effect.gen(function*() {
  for (const to of ["full@example.com", "none@example.com", "ada@example.com"]) {
    const id = yield* SendMail.enqueue({ to })
    const inspect = yield* Inspect
    yield* Effect.ignore(SendMail.await(id))
    const job = yield* inspect.job(id)
    yield* Console.log(`${job.state}${job.reason === undefined ? "" : `, ${job.reason}`}, ${job.attempt} failures`)
    for (const { errorTag, fence, outcome } of yield* inspect.attempts(id)) {
      yield* Console.log(`  run ${fence}: ${outcome}${errorTag === undefined ? "" : ` ${errorTag}`}`)
    }
  }
})

const Main = Worker.layer().pipe(
  Layer.provide(SendMailHandler),
  Layer.provideMerge(PostgresStore.layer),
  Layer.provide(EmbeddedPostgres.layerClient())
)

await Effect.runPromise(program.pipe(Effect.provide(Main)))
