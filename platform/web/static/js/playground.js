// One prompt to up to four models at once, streamed side by side, with TTFT and tokens/s under each pane.

import { csrfToken, url } from "./page.js";

const MAX_PANES = 4;
const form = document.getElementById("playground");
const panes = document.getElementById("panes");
let controller = null;

function chosen() {
  return [...form.querySelectorAll('input[name="model"]:checked')].map((box) => box.value);
}

function addPane(model) {
  const pane = document.getElementById("pane").content.cloneNode(true).firstElementChild;
  pane.querySelector("h2").textContent = model;
  panes.append(pane);
  return pane;
}

async function* events(body) {
  let rest = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

async function stream(model, pane, signal) {
  const output = pane.querySelector("output");
  const footer = pane.querySelector("footer");
  const started = performance.now();
  let first = null;
  const answer = await fetch(url("/v1/chat/completions"), {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", "x-csrf-token": csrfToken() },
    body: JSON.stringify({
      model,
      messages: [{ role: "user", content: form.prompt.value }],
      temperature: Number(form.temperature.value),
      max_tokens: Number(form.max_tokens.value),
      seed: Number(form.seed.value),
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const text = chunk.choices[0]?.delta?.content;
    if (text) {
      first ??= performance.now() - started;
      output.textContent += text;
    }
    if (chunk.usage) {
      const seconds = (performance.now() - started) / 1000;
      const tokens = chunk.usage.completion_tokens;
      footer.textContent = `${tokens} tokens · TTFT ${Math.round(first ?? 0)} ms · ${(tokens / seconds).toFixed(0)} tokens/s`;
    }
  }
}

async function run(event) {
  event?.preventDefault();
  const models = chosen().slice(0, MAX_PANES);
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  panes.replaceChildren();
  document.getElementById("stop").disabled = false;
  await Promise.all(
    models.map(async (model) => {
      const pane = addPane(model);
      try {
        await stream(model, pane, signal);
      } catch (error) {
        pane.querySelector("footer").textContent = error.name === "AbortError" ? "stopped" : error.message;
      }
    }),
  );
  if (!signal.aborted) document.getElementById("stop").disabled = true;
}

form.addEventListener("submit", run);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey) form.requestSubmit();
});
form.addEventListener("change", () => {
  const full = chosen().length >= MAX_PANES;
  for (const box of form.querySelectorAll('input[name="model"]:not(:checked)')) box.disabled = full;
});
document.getElementById("stop").addEventListener("click", () => {
  controller?.abort();
  document.getElementById("stop").disabled = true;
});
