// Serves graphs.mjs with the real LangGraph server on a free port, and prints
// READY <host> when it answers. The working folder takes its state.
import { startServer } from "@langchain/langgraph-api/server";

const graphs = {};
for (const name of ["react", "deep", "approve", "boom", "hitl", "two", "custom", "blocks", "slow", "stubborn", "long", "plain"]) {
  graphs[name] = new URL("graphs.mjs", import.meta.url).pathname + ":" + name;
}
const { host, cleanup } = await startServer({ port: Number(process.env.PORT ?? 0), nWorkers: 10, host: "127.0.0.1", cwd: process.cwd(), graphs });
process.on("SIGTERM", async () => {
  await cleanup();
  process.exit(0);
});
console.log("READY " + host);
