import { conformance } from "./Suite.ts"
import * as PostgresStage from "./PostgresStage.ts"

conformance(PostgresStage.layer)
