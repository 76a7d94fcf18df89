// One prompt to up to four models at once, streamed side by side, with time to first token and tokens/s under each.

import { curlCode, javascriptCode, pythonCode } from "./code.js";
import { csrfHeader, reasonOf, url } from "./server.js";
import { Tokens, fillTokenTable, shadeAll } from "./tokens.js";

const MAX_PANES = 4;
const form = document.getElementById("playground");
const panes = document.getElementById("panes");
const stop = document.getElementById("stop");
const chat = form.dataset.chat === "yes";
const path = url(chat ? "/v1/chat/completions" : "/v1/completions");
let controller = null;
let answers = [];

function chosen() {
  return [...form.querySelectorAll('input[name="model"]:checked')].map((box) => box.value);
}

function boxOf(model) {
  return [...form.querySelectorAll('input[name="model"]')].find((box) => box.value === model);
}

// What a serving profile has a say on is left to it.
function bodyFor(model) {
  const text = form.prompt.value;
  const body = {
    model,
    ...(chat ? { messages: [{ role: "user", content: text }] } : { prompt: text }),
    temperature: Number(form.temperature.value),
    max_tokens: Number(form.max_tokens.value),
    seed: Number(form.seed.value),
  };
  const fields = form.profiles.checked ? (boxOf(model)?.dataset.fields ?? "") : "";
  for (const name of fields.split(" ")) delete body[name];
  return body;
}

function kindOf(model) {
  const { words } = boxOf(model).dataset;
  if (words) return `profile: ${words}`;
  return form.querySelector(".chip:has(small) input").value === model ? "base" : "";
}

async function* events(body) {
  let rest = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice("data: ".length);
  }
}

// What the page asks for beside what the code shows.
function extras() {
  const compared = form.compare.checked ? (chat ? { logprobs: true } : { logprobs: 1 }) : {};
  return { ...compared, stream: true, stream_options: { include_usage: true } };
}

async function* chunks(model, signal) {
  const answer = await fetch(path, {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", ...csrfHeader() },
    body: JSON.stringify({ ...bodyFor(model), ...extras() }),
  });
  if (!answer.ok) throw new Error(reasonOf(await answer.text(), answer.status));
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}

async function stream(model, pane, tokens, signal) {
  const started = performance.now();
  let first = null;
  for await (const chunk of chunks(model, signal)) {
    const choice = chunk.choices[0];
    const text = chat ? choice?.delta?.content : choice?.text;
    if (choice) tokens.add(text ?? "", choice.logprobs);
    if (text) {
      first ??= performance.now();
      note(pane, `TTFT ${Math.round(first - started)} ms`);
    }
    if (chunk.usage) note(pane, summary(chunk.usage.completion_tokens, started, first ?? performance.now()));
  }
}

function summary(tokens, started, first) {
  const seconds = (performance.now() - first) / 1000;
  const rate = tokens > 1 ? ` · ${((tokens - 1) / Math.max(seconds, 1e-3)).toFixed(0)}\u00a0tokens/s` : "";
  return `TTFT\u00a0${Math.round(first - started)}\u00a0ms · ${tokens}\u00a0tokens${rate}`;
}

function note(pane, words, tone = "") {
  const footer = pane.querySelector("footer");
  footer.textContent = words;
  footer.dataset.tone = tone;
}

function addPane(model) {
  const pane = document.getElementById("pane").content.cloneNode(true).firstElementChild;
  pane.querySelector("h2 span").textContent = model;
  pane.setAttribute("aria-label", model);
  pane.querySelector("h2 small").textContent = kindOf(model);
  note(pane, "waiting…");
  panes.append(pane);
  return pane;
}

async function answer(model, signal) {
  const pane = addPane(model);
  const tokens = new Tokens(model, pane.querySelector("output"));
  answers.push(tokens);
  pane.dataset.busy = "yes";
  try {
    await stream(model, pane, tokens, signal);
  } catch (error) {
    if (error.name === "AbortError") note(pane, "stopped");
    else note(pane, error.message, "bad");
  }
  pane.dataset.busy = "no";
  showDifferences();
}

function showDifferences() {
  const compared = answers.some((tokens) => tokens.list.length);
  document.getElementById("shades").hidden = !compared || answers.length < 2;
  document.getElementById("tokens").hidden = !compared;
  shadeAll(answers);
  fillTokenTable(document.getElementById("tokens"), answers);
}

async function run(event) {
  event.preventDefault();
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  panes.replaceChildren();
  answers = [];
  stop.disabled = false;
  await Promise.all(chosen().map((model) => answer(model, signal)));
  if (signal.aborted) return;
  stop.disabled = true;
  document.getElementById("spoken").textContent = "All answers are complete.";
}

function limitChoice() {
  const names = chosen();
  for (const box of form.querySelectorAll('input[name="model"]:not(:checked)')) box.disabled = names.length >= MAX_PANES;
  document.getElementById("run").disabled = !names.length;
}

function showCode() {
  const [address, body] = [location.origin + url(""), bodyFor(chosen()[0] ?? "")];
  document.getElementById("code-text").textContent = curlCode(location.origin + path, body);
  document.getElementById("code-python").textContent = pythonCode(address, chat, body);
  document.getElementById("code-javascript").textContent = javascriptCode(address, chat, body);
}

form.addEventListener("submit", run);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("input", () => {
  limitChoice();
  showCode();
});
// A search brings other models.
new MutationObserver(limitChoice).observe(document.getElementById("models"), { childList: true });
document.getElementById("tokens").addEventListener("toggle", showDifferences);
stop.addEventListener("click", () => {
  controller.abort();
  stop.disabled = true;
});
limitChoice();
showCode();
