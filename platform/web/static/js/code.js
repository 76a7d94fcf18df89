// The playground's request as code that can be pasted; the key comes from the environment.

export function curlCode(address, body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return [
    `curl ${address} \\`,
    '  -H "Authorization: Bearer $LORAPLEX_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  -d '${json}'`,
  ].join("\n");
}

export function pythonCode(address, chat, body) {
  const call = chat ? "chat.completions" : "completions";
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${address}/v1`)}, api_key=os.environ["LORAPLEX_KEY"])
answer = client.${call}.create(
${Object.entries(body).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`).join("\n")}
)
print(answer.choices[0].${chat ? "message.content" : "text"})`;
}

export function javascriptCode(address, chat, body) {
  const call = chat ? "chat.completions" : "completions";
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(`${address}/v1`)}, apiKey: process.env.LORAPLEX_KEY });
const answer = await client.${call}.create(${JSON.stringify(body, null, 2)});
console.log(answer.choices[0].${chat ? "message.content" : "text"});`;
}
