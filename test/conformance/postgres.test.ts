import * as PostgresStage from "./PostgresStage.ts"
import { conformance } from "./Suite.ts"

conformance(PostgresStage.layer)
