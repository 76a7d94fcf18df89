// Sending one file, going on where a broken connection left off.

import { csrfHeader, reasonOf, url } from "./server.js";

const ATTEMPTS = 6;
const FIRST_PAUSE_MILLISECONDS = 500;
const MOST_WAIT_MILLISECONDS = 900_000;
// 409: the server still holds the lost connection, or has less than it said. 408: it came too slowly. The others: a
// proxy found no server, as while it starts again.
const LOST = new Set([408, 409, 502, 503, 504]);

// Worth another try; `waits`: milliseconds after which the server asks us back, 0 where the connection is lost.
class Broken extends Error {
  constructor(message, waits = 0) {
    super(message);
    this.waits = waits;
  }
}

// Resolves to whether bytes were sent. `onProgress` hears how many of the file are there, `onBreak` of each lost connection
// and `onWait` of the server's reason to come back later. Attempts count that brought the server nothing new.
export async function sendFile(adapter, file, digest, { onProgress, onBreak, onWait, signal }) {
  const path = `/api/v1/adapters/${encodeURIComponent(adapter)}/files/${file.name}`;
  let [failures, waited, kept, tried] = [0, 0, -1, false];
  for (;;) {
    try {
      const { received, already_here: here } = await whatIsThere(path, file, digest, signal);
      onProgress(received);
      if (here) return tried;
      if (received > kept) [failures, kept] = [0, received];
      tried = true;
      await put(path, file, digest, received, onProgress, signal);
      return true;
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      waited += error.waits;
      if (!error.waits) failures++;
      if (failures === ATTEMPTS || waited > MOST_WAIT_MILLISECONDS) throw error;
      if (error.waits) onWait(error.message);
      else onBreak(failures);
      await pause(error.waits || FIRST_PAUSE_MILLISECONDS * 2 ** (failures - 1), signal);
    }
  }
}

async function whatIsThere(path, file, digest, signal) {
  let answer;
  try {
    answer = await fetch(url(`${path}?size=${file.size}`), { headers: { "x-content-sha256": digest, accept: "application/json" }, signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : broken();
  }
  const text = await answer.text();
  if (!answer.ok) throw refusal(answer.status, text, answer.headers.get("retry-after"));
  return JSON.parse(text);
}

function put(path, file, digest, start, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    signal.addEventListener("abort", () => request.abort());
    request.open("PUT", url(path));
    const headers = { "content-type": "application/octet-stream", "x-content-sha256": digest, ...csrfHeader() };
    if (start) headers["content-range"] = `bytes ${start}-${file.size - 1}/${file.size}`;
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(start + event.loaded);
    request.onload = () => {
      if (request.status < 300) resolve();
      else reject(refusal(request.status, request.responseText, request.getResponseHeader("retry-after")));
    };
    request.onerror = () => reject(broken());
    request.onabort = () => reject(signal.reason);
    request.send(start ? file.slice(start) : file);
  });
}

function refusal(status, text, retryAfter) {
  const [reason, seconds] = [reasonOf(text, status), Number(retryAfter)];
  if (status === 503 && seconds) return new Broken(reason, 1000 * seconds);
  return LOST.has(status) ? broken() : new Error(reason);
}

function broken() {
  return new Broken("Connection lost. Upload again to resume where it stopped.");
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
