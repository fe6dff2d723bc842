/** The PostgreSQL store of headgate. */
export * as Migrations from "./Migrations.ts"
export * as PostgresStore from "./PostgresStore.ts"
export { PostgresSettings } from "./Settings.ts"
