// Take the files, name them to the server by their SHA-256, send what it has not got, show its report, then register.

import { filesOfArchive, isArchive } from "./archive.js";
import { CONFIG, OPTIONAL, WANTED, WEIGHTS, adviceOn, droppedFiles, problemOf, sha256Of, size } from "./files.js";
import { csrfHeader, reasonOf, url } from "./server.js";
import { sendFile } from "./transfer.js";

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
const limit = Number(form.dataset.limit);
const files = new Map();
let controller = null;
let ready = false;

// `folders`: names of those that were not looked into.
async function take(list, folders = []) {
  const notes = [];
  const unpacked = [];
  for (const file of list) {
    if (!isArchive(file.name)) unpacked.push(file);
    else unpacked.push(...(await unpack(file, notes)));
  }
  const known = unpacked.filter((file) => file.name in FIELDS);
  const strange = unpacked.filter((file) => !(file.name in FIELDS));
  // Another adapter's files come with their own tokenizer, or with none.
  if (known.some((file) => file.name === CONFIG)) for (const name of OPTIONAL) files.delete(name);
  for (const file of known) files.set(file.name, file);
  const lines = [];
  for (const name of namesToSend()) lines.push(await lineOf(name));
  ready = lines.every((line) => line.tone === "good");
  if (!ready) for (const file of strange.slice(0, 5)) lines.push(line("warn", `${file.name} was skipped: ${adviceOn(file.name)}`));
  if (!ready) for (const folder of folders.slice(0, 5)) lines.push(line("warn", `${folder}/ was skipped: choose the folder that contains the files`));
  document.getElementById("chosen").replaceChildren(...[...notes, ...lines].map(shown));
  allowSending();
  report.hidden = true;
}

// The server looks for itself at what it is to fetch.
function allowSending() {
  send.disabled = controller !== null || (kind() === "files" && !ready);
}

async function unpack(archive, notes) {
  drop.setAttribute("aria-busy", "true");
  try {
    const found = await filesOfArchive(archive, limit);
    notes.push(line("good", `${archive.name} unpacked in your browser`));
    return found;
  } catch (error) {
    notes.push(line("bad", `${archive.name} cannot be used: ${error.message}.`));
    return [];
  } finally {
    drop.removeAttribute("aria-busy");
  }
}

function namesToSend() {
  return [...WANTED, ...OPTIONAL.filter((name) => files.has(name))];
}

async function lineOf(name) {
  const file = files.get(name);
  if (!file) return line("warn", `${name} is missing`);
  const problem = await problemOf(file, limit);
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

function say(words) {
  document.getElementById("progress-text").textContent = words;
}

// `resumed`: bytes that were there before `started`, so that the rate is that of this connection.
function showProgress(verb, done, total, started, resumed = 0) {
  const seconds = Math.max(0.001, (performance.now() - started) / 1000);
  const percent = Math.round((100 * done) / Math.max(1, total));
  const bar = document.querySelector("#progress .bar");
  bar.setAttribute("aria-valuenow", percent);
  bar.firstElementChild.style.width = `${percent}%`;
  const rate = Math.max(1, done - resumed) / seconds;
  say(`${verb}: ${percent} %, ${size(done)} of ${size(total)}, ${size(rate)}/s, ${Math.ceil((total - done) / rate)} s left`);
}

// Runs `work` on each file, with one progress over all of them.
async function each(verb, names, work) {
  const total = names.reduce((sum, name) => sum + files.get(name).size, 0);
  const started = performance.now();
  let [before, resumed] = [0, null];
  for (const name of names) {
    await work(name, (done) => {
      resumed ??= done;
      showProgress(verb, before + done, total, started, resumed);
    });
    before += files.get(name).size;
    showProgress(verb, before, total, started, resumed ?? 0);
  }
}

async function post(path, fields, signal) {
  const answer = await fetch(url(path), { method: "POST", headers: csrfHeader(), body: new URLSearchParams(fields), signal });
  const text = await answer.text();
  if (!answer.ok) throw new Error(reasonOf(text, answer.status));
  return { text, missing: answer.status === FILES_WANTED ? answer.headers.get("x-missing-files").split(",") : [] };
}

async function uploadFiles(adapter, signal) {
  const digests = {};
  await each("Reading", namesToSend(), async (name, onProgress) => {
    digests[name] = await sha256Of(files.get(name), onProgress, signal);
  });
  const fields = Object.fromEntries(Object.entries(digests).map(([name, digest]) => [FIELDS[name], digest]));
  const path = `/adapters/${encodeURIComponent(adapter)}/check`;
  let answer = await post(path, fields, signal);
  const here = namesToSend().filter((name) => !answer.missing.includes(name));
  if (answer.missing.length) {
    const onBreak = (attempt) => say(`Connection lost. Resuming (attempt ${attempt + 1})…`);
    const onWait = (reason) => say(`Waiting to retry. ${reason}`);
    await each("Sending", answer.missing, (name, onProgress) =>
      sendFile(adapter, files.get(name), digests[name], { onProgress, onBreak, onWait, signal }),
    );
    say("Checking…");
    answer = await post(path, fields, signal);
  }
  show(answer.text);
  if (here.length) report.prepend(Object.assign(document.createElement("p"), { className: "muted small", textContent: `Already on the server, not sent again: ${here.join(", ")}.` }));
}

async function fetchByServer(adapter, source, signal) {
  say("The server is checking it…");
  show((await post("/upload/fetch", { name: adapter, source }, signal)).text);
}

function show(html) {
  report.innerHTML = html;
}

function showFailure(words) {
  const notice = Object.assign(document.createElement("p"), { className: "notice", textContent: words });
  notice.dataset.tone = "bad";
  notice.setAttribute("role", "alert");
  report.replaceChildren(notice);
}

function setBusy(busy) {
  allowSending();
  cancel.hidden = !busy;
  document.getElementById("progress").hidden = !busy;
}

// Runs `work` with Cancel at hand; whatever ends it is said in the report.
async function busy(work) {
  controller = new AbortController();
  report.hidden = true;
  setBusy(true);
  try {
    await work(controller.signal);
  } catch (error) {
    showFailure(error.name === "AbortError" ? "Cancelled. Nothing was registered." : `Not uploaded. ${error.message}`);
  }
  controller = null;
  setBusy(false);
  report.hidden = false;
  report.focus();
}

function kind() {
  return form.elements.from.value;
}

function showKind() {
  for (const part of form.querySelectorAll("[data-from]")) part.hidden = part.dataset.from !== kind();
  allowSending();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const adapter = document.getElementById("name").value.trim();
  if (kind() === "files") await busy((signal) => uploadFiles(adapter, signal));
  else await busy((signal) => fetchByServer(adapter, document.getElementById(`source-${kind()}`).value.trim(), signal));
});
report.addEventListener("submit", async (event) => {
  const { action } = event.target.dataset;
  // Others lead to another page.
  if (!action) return;
  event.preventDefault();
  const fields = Object.fromEntries(new FormData(event.target));
  await busy(async (signal) => show((await post(action, fields, signal)).text));
});
form.addEventListener("change", (event) => event.target.name === "from" && showKind());
drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.dataset.over = "yes";
});
drop.addEventListener("dragleave", () => (drop.dataset.over = "no"));
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.dataset.over = "no";
  const dropped = await droppedFiles(event.dataTransfer);
  await take(dropped.files, dropped.folders);
});
for (const id of ["files", "folder"]) {
  const field = document.getElementById(id);
  const takeChosen = () => take(...directlyIn([...field.files]));
  field.addEventListener("change", takeChosen);
  // Chosen before this script ran.
  if (field.files.length) takeChosen();
}
cancel.addEventListener("click", () => controller.abort());
showKind();

// Of a chosen folder the files that lie directly in it, and the names of its folders.
function directlyIn(list) {
  const paths = list.map((file) => file.webkitRelativePath.split("/"));
  const deeper = paths.filter((path) => path.length > 2).map((path) => path[1]);
  return [list.filter((_, i) => paths[i].length <= 2), [...new Set(deeper)]];
}
