/** headgate: everything most programs need. */
export * from "@headgate/core"
export * from "@headgate/postgres"
export * from "@headgate/worker"
