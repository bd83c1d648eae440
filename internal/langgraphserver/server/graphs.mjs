// Graphs with models that say what is written here, chunk by chunk.
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, AIMessageChunk } from "@langchain/core/messages";
import { ChatGenerationChunk } from "@langchain/core/outputs";
import { tool } from "@langchain/core/tools";
import { Annotation, END, interrupt, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { createDeepAgent } from "deepagents";
import { createAgent, todoListMiddleware } from "langchain";
import { z } from "zod";

const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("aborted"));
    });
  });

// A model that gives its n-th turn when n answers of it stand in the messages.
class Scripted extends BaseChatModel {
  constructor(turns, delay = 5) {
    super({});
    this.turns = turns;
    this.delay = delay;
  }
  _llmType() {
    return "scripted";
  }
  bindTools() {
    return this;
  }
  async *_streamResponseChunks(messages, options, manager) {
    const n = messages.filter((m) => m.getType() === "ai").length;
    const turn = this.turns[Math.min(n, this.turns.length - 1)];
    // The stream is told of each chunk by way of the manager.
    const send = async (fields, text = "") => {
      const chunk = new ChatGenerationChunk({ text, message: new AIMessageChunk(fields) });
      await manager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
      return chunk;
    };
    for (const block of turn.blocks ?? []) {
      await pause(this.delay, options.signal);
      yield send({ content: [block] });
    }
    for (const word of (turn.text ?? "").match(/\S+\s*/g) ?? []) {
      await pause(this.delay, options.signal);
      yield send({ content: word }, word);
    }
    if (turn.fail) throw new Error(turn.fail);
    for (const [index, call] of (turn.calls ?? []).entries()) {
      const args = JSON.stringify(call.args);
      const half = Math.ceil(args.length / 2);
      for (const part of [{ name: call.name, id: call.id, args: "" }, { args: args.slice(0, half) }, { args: args.slice(half) }]) {
        yield send({ content: "", tool_call_chunks: [{ type: "tool_call_chunk", index, ...part }] });
      }
    }
    yield send({ content: "", response_metadata: { finish_reason: "stop" } });
  }
  async _generate(messages, options, manager) {
    let all;
    for await (const chunk of this._streamResponseChunks(messages, options, manager)) all = all ? all.concat(chunk) : chunk;
    return { generations: [{ text: all.text, message: all.message }] };
  }
}

const call = (id, name, args) => ({ id, name, args });

const weather = tool(async ({ city }) => JSON.stringify({ city, celsius: 21 }), {
  name: "weather", description: "Weather of a city.", schema: z.object({ city: z.string() }),
});
const nap = tool(async ({ ms }) => { await pause(ms); return "napped " + ms; }, {
  name: "nap", description: "Sleeps.", schema: z.object({ ms: z.number() }),
});
const broken = tool(async () => { throw new Error("relation does not exist"); }, {
  name: "broken", description: "Fails.", schema: z.object({}),
});

// Parallel, slow and failing tools.
export const react = createAgent({
  model: new Scripted([
    { text: "Let me look that up. ", calls: [call("call_A", "weather", { city: "Paris" })] },
    { text: "Now two at once. ", calls: [call("call_B", "nap", { ms: 400 }), call("call_C", "nap", { ms: 50 })] },
    { calls: [call("call_D", "broken", {})] },
    { text: "Paris has 21 degrees, and the database failed." },
  ], 10),
  tools: [weather, nap, broken],
});

// A sub-agent, files and todos.
export const deep = createDeepAgent({
  model: new Scripted([
    { calls: [call("call_1", "write_todos", { todos: [{ content: "ask", status: "in_progress" }] })] },
    { calls: [call("call_2", "task", { description: "Research owls", subagent_type: "researcher" })] },
    { calls: [call("call_3", "write_file", { file_path: "/owl.md", content: "# Owls\nThey fly.\n" })] },
    { text: "Done: /owl.md" },
  ]),
  middleware: [todoListMiddleware()],
  subagents: [{
    name: "researcher", description: "Researches.", systemPrompt: "Research.",
    model: new Scripted([{ text: "Looking. ", calls: [call("call_1", "weather", { city: "Owlton" })] }, { text: "Owls fly." }]),
    tools: [weather],
  }],
});

// A deep agent that must be allowed to write.
export const approve = createDeepAgent({
  model: new Scripted([
    { text: "May I? ", calls: [call("call_W", "write_file", { file_path: "/plan.md", content: "A plan." })] },
    { text: "Written." },
  ]),
  interruptOn: { write_file: true },
});

const speaking = (turns, delay) => {
  const model = new Scripted(turns, delay);
  return async (state, config) => ({ messages: [await model.invoke(state.messages, config)] });
};
const graph = () => new StateGraph(MessagesAnnotation);

export const boom = graph()
  .addNode("prep", () => ({ messages: [new AIMessage({ id: "prep-1", content: "Prepared. " })] }))
  .addNode("llm", speaking([{}, { text: "I will fail now ", fail: "upstream 529 overloaded" }]))
  .addEdge(START, "prep").addEdge("prep", "llm").addEdge("llm", END).compile();

export const hitl = graph()
  .addNode("propose", speaking([{ text: "I want to deploy. " }]))
  .addNode("ask", () => ({ messages: [new AIMessage("They said " + JSON.stringify(interrupt({ question: "Deploy?", options: ["yes", "no"] })) + ". ")] }))
  .addNode("act", speaking([{}, {}, { text: "Deployed now." }]))
  .addEdge(START, "propose").addEdge("propose", "ask").addEdge("ask", "act").addEdge("act", END).compile();

// Two questions at once.
export const two = graph()
  .addNode("left", () => ({ messages: [new AIMessage("left " + interrupt("Left?") + ". ")] }))
  .addNode("right", () => ({ messages: [new AIMessage("right " + interrupt("Right?") + ". ")] }))
  .addEdge(START, "left").addEdge(START, "right").addEdge("left", END).addEdge("right", END).compile();

export const custom = graph()
  .addNode("work", (_, config) => {
    config.writer({ progress: 1, of: 2 });
    config.writer("a plain string");
    config.writer({ type: "artifact", artifact: { name: "report.csv", media_type: "text/csv", url: "https://example.test/r" } });
    return {};
  })
  .addNode("llm", speaking([{ text: "Worked." }]))
  .addEdge(START, "work").addEdge("work", "llm").addEdge("llm", END).compile();

export const blocks = graph()
  .addNode("llm", speaking([{
    blocks: [
      { type: "reasoning", reasoning: "The user wants ", index: 0 }, { type: "reasoning", reasoning: "a picture.", index: 0 },
      { type: "text", text: "Here is ", index: 1 }, { type: "text", text: "a pixel:", index: 1 },
      { type: "image", mimeType: "image/png", data: "iVBORw0KGgo=", index: 2 },
      { type: "thinking", thinking: "(a thought)", index: 3 },
    ],
  }]))
  .addEdge(START, "llm").addEdge("llm", END).compile();

const words = (n) => Array.from({ length: n }, (_, i) => "w" + i + " ").join("");

export const slow = graph().addNode("llm", speaking([{ text: words(600) }], 50)).addEdge(START, "llm").addEdge("llm", END).compile();

export const stubborn = graph()
  .addNode("deaf", async (_, config) => {
    for (let i = 0; i < 60; i++) {
      config.writer({ beat: i });
      await pause(100);
    }
    return {};
  })
  .addEdge(START, "deaf").addEdge("deaf", END).compile();

export const long = graph().addNode("llm", speaking([{ text: words(1000) }], 1)).addEdge(START, "llm").addEdge("llm", END).compile();

// A graph without messages.
export const plain = new StateGraph(Annotation.Root({ n: Annotation() }))
  .addNode("double", (s) => ({ n: s.n * 2 }))
  .addEdge(START, "double").addEdge("double", END).compile();
