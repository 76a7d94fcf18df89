// The ai package with @ai-sdk/openai-compatible: `node ai.js WHAT` prints what the server said as JSON.
import process from "node:process";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { ADD, ARTICLES, QUESTION, SALE, Sale, SUM } from "./asked.js";

const provider = createOpenAICompatible({
  name: "loraplex",
  baseURL: `${process.env.SERVER}/v1`,
  apiKey: process.env.KEY,
  supportsStructuredOutputs: true,
});
const asked = { model: provider("sql"), prompt: QUESTION, temperature: 0, maxRetries: 0 };

const calls = {
  async chat() {
    return (await generateText(asked)).text;
  },
  async stream() {
    let text = "";
    for await (const piece of streamText(asked).textStream) text += piece;
    return text;
  },
  async tools() {
    const add = tool({ description: "Add two numbers.", inputSchema: jsonSchema(ADD) });
    const answer = await generateText({
      ...asked, model: provider("tools"), prompt: SUM, tools: { add }, toolChoice: "required", maxOutputTokens: 100,
    });
    const call = answer.toolCalls[0];
    return { name: call.toolName, arguments: call.input, finish: answer.finishReason, text: answer.text };
  },
  async agent() {
    const add = tool({ description: "Add two numbers.", inputSchema: jsonSchema(ADD), execute: ({ a, b }) => a + b });
    const answer = await generateText({ ...asked, model: provider("tools"), prompt: SUM, tools: { add }, stopWhen: stepCountIs(3) });
    return { called: answer.steps.flatMap((step) => step.toolCalls.map((call) => call.input)), text: answer.text };
  },
  async structured() {
    const output = Output.object({ schema: Sale });
    return (await generateText({ ...asked, model: provider("json"), prompt: SALE, output })).output;
  },
  async embeddings() {
    const model = provider.embeddingModel("demo");
    return (await embedMany({ model, values: ARTICLES, maxRetries: 0 })).embeddings;
  },
  async error() {
    try {
      await generateText({ ...asked, model: provider("absent") });
    } catch (error) {
      return { status: error.statusCode, isRetryable: error.isRetryable };
    }
  },
};

console.log(JSON.stringify(await calls[process.argv[2]]()));
