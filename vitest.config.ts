import { defineConfig } from "vitest/config"

const conditions = ["headgate-source"]
// Without "module": Node itself loads what is not ours, and never takes such a build.
const resolve = { conditions: [...conditions, "node", "development|production"] }

export default defineConfig({
  resolve,
  ssr: { resolve },
  test: {
    include: ["packages/*/test/**/*.test.ts", "test/**/*.test.ts"],
    globalSetup: ["./packages/testkit/src/VitestSetup.ts"],
    pool: "forks",
    maxWorkers: 2,
    execArgv: conditions.map((condition) => `--conditions=${condition}`),
    testTimeout: 120_000,
    hookTimeout: 120_000
  }
})
