// The openai package of npm: `node openai.js WHAT` prints what the server said as JSON.
import process from "node:process";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { ADD, ARTICLES, QUESTION, SALE, Sale, SUM } from "./asked.js";

const client = new OpenAI({ baseURL: `${process.env.SERVER}/v1`, apiKey: process.env.KEY, maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const asked = { model: "sql", messages: user(QUESTION), temperature: 0 };

const calls = {
  async chat() {
    const answer = await client.chat.completions.create(asked);
    return answer.choices[0].message.content;
  },
  async stream() {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    return text;
  },
  async tools() {
    const tools = [{ type: "function", function: { name: "add", description: "Add two numbers.", parameters: ADD } }];
    const answer = await client.chat.completions.create({
      ...asked, model: "tools", messages: user(SUM), tools, tool_choice: "required", max_tokens: 100,
    });
    const call = answer.choices[0].message.tool_calls[0].function;
    return { name: call.name, arguments: JSON.parse(call.arguments), finish: answer.choices[0].finish_reason };
  },
  async structured() {
    const answer = await client.chat.completions.parse({
      model: "json", messages: user(SALE), temperature: 0, response_format: zodResponseFormat(Sale, "sale"),
    });
    return answer.choices[0].message.parsed;
  },
  async embeddings() {
    const answer = await client.embeddings.create({ model: "demo", input: ARTICLES });
    return answer.data.map((row) => row.embedding);
  },
  async responses() {
    const answer = await client.responses.create({ model: "sql", input: QUESTION, temperature: 0 });
    return answer.output_text;
  },
  async error() {
    try {
      await client.chat.completions.create({ ...asked, model: "absent" });
    } catch (error) {
      return { isNotFound: error instanceof OpenAI.NotFoundError, code: error.code };
    }
  },
};

console.log(JSON.stringify(await calls[process.argv[2]]()));
