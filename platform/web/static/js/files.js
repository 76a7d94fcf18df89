// The files of an adapter: out of what was dropped or chosen, checked before anything is sent.

import { sha256 } from "../vendor/hashes/sha2.js";

export const CONFIG = "adapter_config.json";
export const WEIGHTS = "adapter_model.safetensors";
export const WANTED = [CONFIG, WEIGHTS];
// Trainers save the tokenizer beside the adapter; the server says what it makes of it.
export const OPTIONAL = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
// What is served or converted at upload; the server's check says the rest.
const KINDS = ["LORA", "IA3", "ADALORA", "LOHA", "LOKR", "VERA"];
const LIMITS = { [CONFIG]: 1 << 20, "tokenizer.json": 64 << 20, "tokenizer_config.json": 4 << 20, "chat_template.jinja": 128 << 10 };

export function size(bytes) {
  const [count, unit] = bytes < 1e6 ? [bytes / 1e3, "kB"] : bytes < 1e9 ? [bytes / 1e6, "MB"] : [bytes / 1e9, "GB"];
  return `${count.toFixed(count < 100 ? 1 : 0)}\u00a0${unit}`;
}

// A dropped folder counts as the files that lie directly in it: training folders hold checkpoints of the same names.
// Gives those files, and the names of the folders beside them.
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return { files: [...transfer.files], folders: [] };
  const lists = await Promise.all(entries.map((entry) => (entry.isFile ? [entry] : childrenOf(entry))));
  const inside = lists.flat();
  const found = inside.filter((entry) => entry.isFile);
  const files = await Promise.all(found.map((entry) => new Promise((resolve, reject) => entry.file(resolve, reject))));
  return { files, folders: inside.filter((entry) => !entry.isFile).map((entry) => entry.name) };
}

async function childrenOf(folder) {
  const reader = folder.createReader();
  const all = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return all;
    all.push(...some);
  }
}

export async function problemOf(file, limit) {
  const most = LIMITS[file.name] ?? limit;
  if (file.size > most) return `${size(file.size)} is more than the limit of ${size(most)}`;
  return file.name === CONFIG ? configProblem(await file.text()) : null;
}

function configProblem(text) {
  let config;
  try {
    config = JSON.parse(text);
  } catch {
    return "is not valid JSON";
  }
  const kind = config?.peft_type;
  if (!KINDS.includes(kind)) return `its peft_type is ${JSON.stringify(kind)}; supported: ${KINDS.join(", ")}`;
  return kind !== "LORA" || (Number.isInteger(config.r) && config.r > 0) ? null : "has no rank r";
}

export function adviceOn(name) {
  if (/\.(bin|pt|pth|ckpt)$/.test(name)) return "pickle files are not accepted; save with safe_serialization=True";
  if (/\.(xz|bz2|zst|7z|rar)$/i.test(name)) return "supported archives are zip, tar and tar.gz";
  return `an adapter consists of ${WANTED.join(" and ")}, and optional tokenizer files`;
}

// Read piece by piece: the weights need not fit into memory, and the browser's own SHA-256 takes only whole buffers.
export async function sha256Of(file, onProgress, signal) {
  const hash = sha256.create();
  const reader = file.stream().getReader();
  for (let read = 0; ; ) {
    signal.throwIfAborted();
    const { done, value } = await reader.read();
    if (done) break;
    hash.update(value);
    onProgress((read += value.length));
  }
  return [...hash.digest()].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
