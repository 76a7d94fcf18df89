// One prompt to up to four models at once, streamed side by side, with time to first token and tokens/s under each.

import { csrfHeader, reasonOf, url } from "./server.js";

const MAX_PANES = 4;
const form = document.getElementById("playground");
const panes = document.getElementById("panes");
const stop = document.getElementById("stop");
const chat = form.dataset.chat === "yes";
const path = url(chat ? "/v1/chat/completions" : "/v1/completions");
let controller = null;

function chosen() {
  return [...form.querySelectorAll('input[name="model"]:checked')].map((box) => box.value);
}

function bodyFor(model) {
  const text = form.prompt.value;
  return {
    model,
    ...(chat ? { messages: [{ role: "user", content: text }] } : { prompt: text }),
    temperature: Number(form.temperature.value),
    max_tokens: Number(form.max_tokens.value),
    seed: Number(form.seed.value),
  };
}

async function* events(body) {
  let rest = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice("data: ".length);
  }
}

async function* chunks(model, signal) {
  const answer = await fetch(path, {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", ...csrfHeader() },
    body: JSON.stringify({ ...bodyFor(model), stream: true, stream_options: { include_usage: true } }),
  });
  if (!answer.ok) throw new Error(reasonOf(await answer.text(), answer.status));
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}

async function stream(model, pane, signal) {
  const output = pane.querySelector("output");
  const started = performance.now();
  let first = null;
  for await (const chunk of chunks(model, signal)) {
    const choice = chunk.choices[0];
    const text = chat ? choice?.delta?.content : choice?.text;
    if (text) {
      first ??= performance.now();
      output.textContent += text;
      note(pane, `TTFT ${Math.round(first - started)} ms`);
    }
    if (chunk.usage) note(pane, summary(chunk.usage.completion_tokens, started, first ?? performance.now()));
  }
}

function summary(tokens, started, first) {
  const seconds = (performance.now() - first) / 1000;
  const rate = tokens > 1 ? ` · ${((tokens - 1) / Math.max(seconds, 1e-3)).toFixed(0)} tokens/s` : "";
  return `TTFT ${Math.round(first - started)} ms · ${tokens} tokens${rate}`;
}

function note(pane, words, tone = "") {
  const footer = pane.querySelector("footer");
  footer.textContent = words;
  footer.dataset.tone = tone;
}

function addPane(model) {
  const pane = document.getElementById("pane").content.cloneNode(true).firstElementChild;
  pane.querySelector("h2 span").textContent = model;
  pane.querySelector("h2 small").textContent = form.querySelector(".chip:has(small) input").value === model ? "base" : "";
  note(pane, "waiting…");
  panes.append(pane);
  return pane;
}

async function answer(model, signal) {
  const pane = addPane(model);
  pane.dataset.busy = "yes";
  try {
    await stream(model, pane, signal);
  } catch (error) {
    if (error.name === "AbortError") note(pane, "stopped");
    else note(pane, error.message, "bad");
  }
  pane.dataset.busy = "no";
}

async function run(event) {
  event.preventDefault();
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  panes.replaceChildren();
  stop.disabled = false;
  await Promise.all(chosen().map((model) => answer(model, signal)));
  if (!signal.aborted) stop.disabled = true;
}

function limitChoice() {
  const names = chosen();
  for (const box of form.querySelectorAll('input[name="model"]:not(:checked)')) box.disabled = names.length >= MAX_PANES;
  document.getElementById("run").disabled = !names.length;
}

function showCode() {
  const body = JSON.stringify(bodyFor(chosen()[0] ?? ""), null, 2).replaceAll("'", "'\\''");
  document.getElementById("code-text").textContent = [
    `curl ${location.origin}${path} \\`,
    '  -H "Authorization: Bearer $LORAPLEX_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  -d '${body}'`,
  ].join("\n");
}

function filterModels(event) {
  const wanted = event.target.value.trim().toLowerCase();
  for (const chip of document.querySelectorAll(".chip")) {
    const box = chip.querySelector("input");
    chip.hidden = !box.checked && !box.value.includes(wanted);
  }
}

form.addEventListener("submit", run);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("input", () => {
  limitChoice();
  showCode();
});
document.getElementById("model-filter")?.addEventListener("input", filterModels);
stop.addEventListener("click", () => {
  controller.abort();
  stop.disabled = true;
});
limitChoice();
showCode();
