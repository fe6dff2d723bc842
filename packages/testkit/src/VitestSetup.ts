/**
 * One server for a whole vitest run: `globalSetup: ["@headgate/testkit/VitestSetup"]`. Test files then take databases
 * from `TestDatabase`.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as TestRun from "./TestRun.ts"

export default async (): Promise<() => Promise<void>> => {
  const scope = Scope.makeUnsafe()
  const end = Scope.close(scope, Exit.void)
  await Effect.runPromise(TestRun.begin().pipe(Scope.provide(scope), Effect.onError(() => end)))
  return () => Effect.runPromise(end)
}
