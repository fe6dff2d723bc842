import type { System } from "../System.ts"

/** Loaded one at a time: a measured process holds no other system's code. */
export const systems: Readonly<Record<string, () => Promise<System>>> = {
  raw: async () => (await import("./Raw.ts")).raw,
  headgate: async () => (await import("./Headgate.ts")).headgate,
  "graphile-worker": async () => (await import("./GraphileWorker.ts")).graphileWorker,
  "pg-boss": async () => (await import("./PgBoss.ts")).pgBoss,
  dbos: async () => (await import("./Dbos.ts")).dbos,
  effect: async () => (await import("./EffectBuiltIns.ts")).effectBuiltIns
}
