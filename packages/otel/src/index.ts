/** OpenTelemetry for headgate: one layer for the traces, metrics and logs of producers, workers and handlers. */
export * as Otel from "./Otel.ts"
