// Sending one file, going on where a broken connection left off.

import { csrfHeader, reasonOf, url } from "./server.js";

const ATTEMPTS = 6;
const FIRST_PAUSE_MILLISECONDS = 500;

class Broken extends Error {}

// Resolves to whether bytes were sent. `onProgress` hears how many of the file are there, `onBreak` of each lost connection.
export async function sendFile(adapter, file, digest, { onProgress, onBreak, signal }) {
  const path = url(`/api/v1/adapters/${encodeURIComponent(adapter)}/files/${file.name}`);
  for (let attempt = 1; ; attempt++) {
    try {
      const { received, already_here: here } = await whatIsThere(path, file, digest, signal);
      onProgress(received);
      if (here) return attempt > 1;
      await put(path, file, digest, received, onProgress, signal);
      return true;
    } catch (error) {
      if (!(error instanceof Broken) || attempt === ATTEMPTS) throw error;
      onBreak(attempt);
      await pause(FIRST_PAUSE_MILLISECONDS * 2 ** (attempt - 1), signal);
    }
  }
}

async function whatIsThere(path, file, digest, signal) {
  let answer;
  try {
    answer = await fetch(`${path}?size=${file.size}`, { headers: { "x-content-sha256": digest, accept: "application/json" }, signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : broken();
  }
  const text = await answer.text();
  if (!answer.ok) throw new Error(reasonOf(text, answer.status));
  return JSON.parse(text);
}

function put(path, file, digest, start, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    signal.addEventListener("abort", () => request.abort());
    request.open("PUT", path);
    const headers = { "content-type": "application/octet-stream", "x-content-sha256": digest, ...csrfHeader() };
    if (start) headers["content-range"] = `bytes ${start}-${file.size - 1}/${file.size}`;
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(start + event.loaded);
    request.onload = () => {
      if (request.status < 300) resolve();
      // 409: the server still holds the lost connection, or has less than it said.
      else reject(request.status === 409 ? broken() : new Error(reasonOf(request.responseText, request.status)));
    };
    request.onerror = () => reject(broken());
    request.onabort = () => reject(signal.reason);
    request.send(start ? file.slice(start) : file);
  });
}

function broken() {
  return new Broken("The connection broke. Upload again: it goes on where it stopped.");
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
