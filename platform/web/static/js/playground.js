// One conversation with up to four models at once, streamed side by side, with time to first token and tokens/s under each.

import { messagesFor, recall, remember } from "./conversation.js";
import { curlCode, javascriptCode, pythonCode } from "./code.js";
import { csrfHeader, publicAddress, reasonOf, url } from "./server.js";
import { Tokens, fillTokenTable, shadeAll } from "./tokens.js";

const MAX_PANES = 4;
const form = document.getElementById("playground");
const panes = document.getElementById("panes");
const [stop, regenerate, startAnew] = ["stop", "regenerate", "start-anew"].map((id) => document.getElementById(id));
const chat = form.dataset.chat === "yes";
const path = chat ? "/v1/chat/completions" : "/v1/completions";
const SETTINGS = ["temperature", "max_tokens", "seed"];
const SWITCHES = ["compare", "profiles"];
let controller = null;
let answers = [];
let turns = [];

function chosen() {
  return [...form.querySelectorAll('input[name="model"]:checked')].map((box) => box.value);
}

function boxOf(model) {
  return [...form.querySelectorAll('input[name="model"]')].find((box) => box.value === model);
}

// What a serving profile has a say on is left to it.
function bodyFor(model, message, before) {
  const body = {
    model,
    ...(chat ? { messages: messagesFor(model, before, form.system.value, message) } : { prompt: message }),
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

async function* chunks(body, signal) {
  const answer = await fetch(url(path), {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", ...csrfHeader() },
    body: JSON.stringify({ ...body, ...extras() }),
  });
  if (!answer.ok) throw new Error(reasonOf(await answer.text(), answer.status));
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}

async function stream(body, pane, tokens, signal) {
  const started = performance.now();
  let first = null;
  for await (const chunk of chunks(body, signal)) {
    const choice = chunk.choices[0];
    const thought = choice?.delta?.reasoning_content;
    const text = thought ?? (chat ? choice?.delta?.content : choice?.text);
    if (choice) tokens.add(text ?? "", choice.logprobs, thought);
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
  panes.append(pane);
  return pane;
}

function said(role, text) {
  const line = document.getElementById("said").content.cloneNode(true).querySelector(`[data-role="${role}"]`);
  line.append(text);
  return line;
}

// The turns of one model; the answer to the last stands in the pane's output.
function showTurns(pane, model, last) {
  const earlier = turns.filter((turn) => turn !== last && Object.hasOwn(turn.answers, model));
  const lines = earlier.flatMap(({ message, answers }) => [said("user", message), said("assistant", answers[model])]);
  pane.querySelector(".turns").replaceChildren(...lines, said("user", last.message));
}

async function answer(model, turn, before, signal) {
  const pane = addPane(model);
  const tokens = new Tokens(model, pane.querySelector("output"));
  answers.push(tokens);
  if (chat) showTurns(pane, model, turn);
  note(pane, "waiting…");
  pane.dataset.busy = "yes";
  try {
    await stream(bodyFor(model, turn.message, before), pane, tokens, signal);
  } catch (error) {
    if (error.name === "AbortError") note(pane, "stopped");
    else note(pane, error.message, "bad");
  }
  pane.dataset.busy = "no";
  const text = tokens.answer;
  if (text && pane.querySelector("footer").dataset.tone !== "bad") turn.answers[model] = text;
  showDifferences();
}

function showDifferences() {
  const compared = answers.some((tokens) => tokens.list.length);
  document.getElementById("shades").hidden = !compared || answers.length < 2;
  document.getElementById("tokens").hidden = !compared;
  shadeAll(answers);
  fillTokenTable(document.getElementById("tokens"), answers);
}

async function run(message) {
  controller = new AbortController();
  const { signal } = controller;
  const [before, turn] = [[...turns], { message, answers: {} }];
  turns.push(turn);
  panes.replaceChildren();
  answers = [];
  showState();
  await Promise.all(chosen().map((model) => answer(model, turn, before, signal)));
  controller = null;
  if (!Object.keys(turn.answers).length) takeBack();
  if (!signal.aborted) document.getElementById("spoken").textContent = "All answers are complete.";
  keep();
}

// Nobody has answered: the message waits for another try.
function takeBack() {
  const { message } = turns.pop();
  if (chat && !form.prompt.value) form.prompt.value = message;
}

function submit(event) {
  event.preventDefault();
  if (controller || !chosen().length) return;
  const message = form.prompt.value;
  if (chat) form.prompt.value = "";
  else turns = [];
  run(message);
}

function clear() {
  turns = [];
  answers = [];
  panes.replaceChildren();
  showDifferences();
  keep();
  form.prompt.focus();
}

function showState() {
  const [names, busy] = [chosen(), controller !== null];
  for (const box of form.querySelectorAll('input[name="model"]:not(:checked)')) box.disabled = names.length >= MAX_PANES;
  document.getElementById("run").disabled = busy || !names.length;
  stop.disabled = !busy;
  regenerate.disabled = busy || !names.length || !turns.length;
  startAnew.disabled = busy || !turns.length;
  showCode(names);
}

// The request that Run would send, or the last one while the message is empty.
function showCode(names) {
  const choice = document.getElementById("code-model");
  const model = names.includes(choice.value) ? choice.value : (names[0] ?? "");
  choice.replaceChildren(...names.map((name) => new Option(name, name, false, name === model)));
  const isLast = chat && !form.prompt.value && turns.length;
  const body = isLast ? bodyFor(model, turns.at(-1).message, turns.slice(0, -1)) : bodyFor(model, form.prompt.value, chat ? turns : []);
  const address = publicAddress("");
  document.getElementById("code-text").textContent = curlCode(publicAddress(path), body);
  document.getElementById("code-python").textContent = pythonCode(address, chat, body);
  document.getElementById("code-javascript").textContent = javascriptCode(address, chat, body);
}

// Names of models stand in the address, so that the page has them whatever a search shows; texts stay in this tab.
function keep() {
  const names = chosen();
  const address = `?${new URLSearchParams(names.map((name) => ["model", name]))}`;
  history.replaceState(null, "", address);
  const settings = Object.fromEntries(SETTINGS.map((name) => [name, form[name].value]));
  const switches = Object.fromEntries(SWITCHES.map((name) => [name, form[name].checked]));
  remember({ address, names, settings, switches, system: form.system.value, message: form.prompt.value, turns });
  showState();
}

function restore(page) {
  const query = new URLSearchParams(location.search);
  const isSame = !query.has("model") || page.address === location.search;
  for (const name of SETTINGS) form[name].value = page.settings[name];
  for (const name of SWITCHES) form[name].checked = page.switches[name];
  form.system.value = page.system;
  if (!query.has("prompt") && (isSame || page.message)) form.prompt.value = page.message;
  if (!isSame) return;
  for (const box of form.querySelectorAll('input[name="model"]')) box.checked = page.names.includes(box.value);
  turns = page.turns;
  for (const model of chosen()) showKept(model);
}

function showKept(model) {
  const last = turns.at(-1);
  if (!last || !chat) return;
  const pane = addPane(model);
  showTurns(pane, model, last);
  pane.querySelector("output").textContent = last.answers[model] ?? "";
}

form.addEventListener("submit", submit);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("input", keep);
// A search brings other models.
new MutationObserver(showState).observe(document.getElementById("models"), { childList: true });
document.getElementById("tokens").addEventListener("toggle", showDifferences);
document.getElementById("code-model").addEventListener("change", showState);
stop.addEventListener("click", () => controller.abort());
startAnew.addEventListener("click", clear);
regenerate.addEventListener("click", () => run(turns.pop().message));
const kept = recall();
if (kept) restore(kept);
showState();
