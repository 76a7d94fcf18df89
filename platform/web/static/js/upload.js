// Take the files, name them to the server by their SHA-256, send what it has not got, and show its report.

import { CONFIG, OPTIONAL, WANTED, WEIGHTS, adviceOn, droppedFiles, problemOf, sha256Of, size } from "./files.js";
import { csrfHeader, reasonOf, url } from "./server.js";

const FILES_WANTED = 202;
const FIELDS = {
  [CONFIG]: "config_sha256",
  [WEIGHTS]: "weights_sha256",
  [OPTIONAL[0]]: "tokenizer_sha256",
  [OPTIONAL[1]]: "tokenizer_config_sha256",
  [OPTIONAL[2]]: "chat_template_sha256",
};
const [form, drop, send, cancel, report] = ["upload", "drop", "send", "cancel", "report"].map((id) =>
  document.getElementById(id),
);
const files = new Map();
let controller = null;

async function take(list) {
  const known = [...list].filter((file) => file.name in FIELDS);
  const strange = [...list].filter((file) => !(file.name in FIELDS));
  // Another adapter's files come with their own tokenizer, or with none.
  if (known.some((file) => file.name === CONFIG)) for (const name of OPTIONAL) files.delete(name);
  for (const file of known) files.set(file.name, file);
  const lines = [];
  for (const name of namesToSend()) lines.push(await lineOf(name));
  const ready = lines.every((line) => line.tone === "good");
  if (!ready) for (const file of strange.slice(0, 5)) lines.push(line("warn", `${file.name} is left out: ${adviceOn(file.name)}`));
  document.getElementById("chosen").replaceChildren(...lines.map(shown));
  send.disabled = !ready;
  report.hidden = true;
}

function namesToSend() {
  return [...WANTED, ...OPTIONAL.filter((name) => files.has(name))];
}

async function lineOf(name) {
  const file = files.get(name);
  if (!file) return line("warn", `${name} is still missing`);
  const problem = await problemOf(file, Number(form.dataset.limit));
  return problem ? line("bad", `${name}: ${problem}`) : line("good", `${name}, ${size(file.size)}`);
}

function line(tone, words) {
  return { tone, words };
}

function shown({ tone, words }) {
  const sign = { good: "✓", warn: "…", bad: "✕" }[tone];
  const item = Object.assign(document.createElement("li"), { textContent: `${sign} ${words}` });
  item.dataset.tone = tone;
  return item;
}

function showProgress(verb, done, total, started) {
  const seconds = Math.max(0.001, (performance.now() - started) / 1000);
  const percent = Math.round((100 * done) / Math.max(1, total));
  const bar = document.querySelector("#progress .bar");
  bar.setAttribute("aria-valuenow", percent);
  bar.firstElementChild.style.width = `${percent}%`;
  const left = Math.ceil(((total - done) * seconds) / Math.max(1, done));
  document.getElementById("progress-text").textContent =
    `${verb}: ${percent} %, ${size(done)} of ${size(total)}, ${size(done / seconds)}/s, ${left} s left`;
}

// Runs `work` on each file, with one progress over all of them.
async function each(verb, names, work) {
  const total = names.reduce((sum, name) => sum + files.get(name).size, 0);
  const started = performance.now();
  let before = 0;
  for (const name of names) {
    await work(name, (done) => showProgress(verb, before + done, total, started));
    before += files.get(name).size;
    showProgress(verb, before, total, started);
  }
}

function put(adapter, file, digest, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    signal.addEventListener("abort", () => request.abort());
    request.open("PUT", url(`/api/v1/adapters/${encodeURIComponent(adapter)}/files/${file.name}`));
    const headers = { "content-type": "application/octet-stream", "x-content-sha256": digest, ...csrfHeader() };
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(event.loaded);
    request.onload = () => (request.status < 300 ? resolve() : reject(new Error(reasonOf(request.responseText, request.status))));
    request.onerror = () => reject(new Error("The connection broke. Upload again: files that are here already are not sent twice."));
    request.onabort = () => reject(signal.reason);
    request.send(file);
  });
}

function register(adapter, digests, signal) {
  const body = new URLSearchParams(Object.entries(digests).map(([name, digest]) => [FIELDS[name], digest]));
  const path = url(`/adapters/${encodeURIComponent(adapter)}/versions`);
  return fetch(path, { method: "POST", headers: csrfHeader(), body, signal });
}

async function upload(adapter, signal) {
  const digests = {};
  await each("Reading", namesToSend(), async (name, onProgress) => {
    digests[name] = await sha256Of(files.get(name), onProgress, signal);
  });
  let answer = await register(adapter, digests, signal);
  if (answer.status === FILES_WANTED) {
    const missing = answer.headers.get("x-missing-files").split(",");
    await each("Sending", missing, (name, onProgress) => put(adapter, files.get(name), digests[name], onProgress, signal));
    document.getElementById("progress-text").textContent = "Checking…";
    answer = await register(adapter, digests, signal);
  }
  const text = await answer.text();
  if (!answer.ok) throw new Error(reasonOf(text, answer.status));
  report.innerHTML = text;
}

function showFailure(words) {
  const notice = Object.assign(document.createElement("p"), { className: "notice", textContent: words });
  notice.dataset.tone = "bad";
  report.replaceChildren(notice);
}

function setBusy(busy) {
  send.disabled = busy;
  cancel.hidden = !busy;
  document.getElementById("progress").hidden = !busy;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  controller = new AbortController();
  report.hidden = true;
  setBusy(true);
  try {
    await upload(document.getElementById("name").value.trim(), controller.signal);
  } catch (error) {
    showFailure(error.name === "AbortError" ? "Cancelled. Nothing was registered." : `Not uploaded. ${error.message}`);
  }
  setBusy(false);
  report.hidden = false;
});
drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.dataset.over = "yes";
});
drop.addEventListener("dragleave", () => (drop.dataset.over = "no"));
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.dataset.over = "no";
  await take(await droppedFiles(event.dataTransfer));
});
document.getElementById("files").addEventListener("change", (event) => take(event.target.files));
cancel.addEventListener("click", () => controller.abort());
