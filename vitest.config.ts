import { defineConfig } from "vitest/config"

const conditions = ["headgate-source"]

export default defineConfig({
  resolve: { conditions: [...conditions, "module", "node", "development|production"] },
  ssr: { resolve: { conditions: [...conditions, "module", "node", "development|production"] } },
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
