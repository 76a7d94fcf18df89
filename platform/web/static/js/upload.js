// Drop or choose the two files, check the configuration here, send both with progress, then show the server's report.

import { csrfToken, url } from "./page.js";

const WANTED = ["adapter_config.json", "adapter_model.safetensors"];
const form = document.getElementById("upload");
const drop = document.getElementById("drop");
const files = new Map();
let running = null;

function size(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const children = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
  return (await Promise.all(children.map(filesOf))).flat();
}

async function take(list) {
  for (const file of list) if (WANTED.includes(file.name)) files.set(file.name, file);
  const lines = [];
  for (const name of WANTED) lines.push(files.has(name) ? `✓ ${name}, ${size(files.get(name).size)}` : `… still missing: ${name}`);
  const problem = await configProblem();
  if (problem) lines.push(`✗ ${problem}`);
  const tooLarge = [...files.values()].find((file) => file.size > Number(form.dataset.limit));
  if (tooLarge) lines.push(`✗ ${tooLarge.name} is larger than the limit of ${size(Number(form.dataset.limit))}`);
  document.getElementById("chosen").replaceChildren(
    ...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })),
  );
  document.getElementById("send").disabled = files.size < WANTED.length || Boolean(problem) || Boolean(tooLarge);
}

async function configProblem() {
  const file = files.get("adapter_config.json");
  if (!file) return null;
  let config;
  try {
    config = JSON.parse(await file.text());
  } catch {
    return "adapter_config.json is not valid JSON";
  }
  if (config.peft_type !== "LORA") return `peft_type is ${JSON.stringify(config.peft_type)}; LORA is supported`;
  return Number.isInteger(config.r) && config.r > 0 ? null : "adapter_config.json has no rank r";
}

async function digest(file) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function put(name, file, sha256, onProgress) {
  return new Promise((resolve, reject) => {
    const request = (running = new XMLHttpRequest());
    request.open("PUT", url(`/api/v1/adapters/${encodeURIComponent(name)}/files/${file.name}`));
    request.setRequestHeader("content-type", "application/octet-stream");
    request.setRequestHeader("x-content-sha256", sha256);
    request.setRequestHeader("x-csrf-token", csrfToken());
    request.upload.onprogress = (event) => onProgress(event.loaded);
    request.onload = () => (request.status < 300 ? resolve() : reject(new Error(reason(request))));
    request.onerror = () => reject(new Error("the connection broke; press Upload again, finished files are kept"));
    request.onabort = () => reject(new Error("cancelled"));
    request.send(file);
  });
}

function reason(request) {
  try {
    return JSON.parse(request.responseText).error.message;
  } catch {
    return `the server answered ${request.status}`;
  }
}

function progress(sent, total, started) {
  const seconds = Math.max(0.001, (performance.now() - started) / 1000);
  const rate = sent / seconds;
  const percent = Math.round((100 * sent) / total);
  const bar = document.querySelector("#progress-card .bar");
  bar.setAttribute("aria-valuenow", percent);
  bar.firstElementChild.style.width = `${percent}%`;
  const left = rate > 0 ? Math.ceil((total - sent) / rate) : 0;
  document.getElementById("progress-text").textContent =
    `${percent} %, ${size(sent)} of ${size(total)}, ${size(rate)}/s, ${left} s left`;
}

async function send(event) {
  event.preventDefault();
  const name = document.getElementById("name").value.trim();
  const report = document.getElementById("report");
  const button = document.getElementById("send");
  button.disabled = true;
  report.hidden = true;
  document.getElementById("progress-card").hidden = false;
  const total = [...files.values()].reduce((sum, file) => sum + file.size, 0);
  const started = performance.now();
  let done = 0;
  try {
    const digests = {};
    for (const file of WANTED.map((wanted) => files.get(wanted))) {
      document.getElementById("progress-text").textContent = `hashing ${file.name}`;
      digests[file.name] = await digest(file);
      await put(name, file, digests[file.name], (sent) => progress(done + sent, total, started));
      done += file.size;
    }
    progress(total, total, started);
    await check(name, digests, report);
  } catch (error) {
    const notice = Object.assign(document.createElement("p"), { className: "notice", textContent: `Not uploaded: ${error.message}` });
    notice.dataset.tone = "bad";
    report.replaceChildren(notice);
  } finally {
    running = null;
    report.hidden = false;
    button.disabled = false;
    document.getElementById("progress-card").hidden = true;
  }
}

async function check(name, digests, report) {
  const body = new URLSearchParams({
    config_sha256: digests["adapter_config.json"],
    weights_sha256: digests["adapter_model.safetensors"],
  });
  const answer = await fetch(url(`/adapters/${encodeURIComponent(name)}/versions`), {
    method: "POST",
    headers: { "x-csrf-token": csrfToken() },
    body,
  });
  report.innerHTML = await answer.text();
}

drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.dataset.over = "yes";
});
drop.addEventListener("dragleave", () => (drop.dataset.over = "no"));
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.dataset.over = "no";
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  await take(entries.length ? (await Promise.all(entries.map(filesOf))).flat() : event.dataTransfer.files);
});
document.getElementById("files").addEventListener("change", (event) => take(event.target.files));
document.getElementById("cancel").addEventListener("click", () => running?.abort());
form.addEventListener("submit", send);
