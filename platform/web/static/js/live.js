// One live connection for all parts of a page: server-sent events while the page is looked at, a poll while they fail.

import { url } from "./server.js";

const SILENCE_MILLISECONDS = 4000;
// Where streams never come through, silence and pause make a poll every five seconds.
const RETRY_MILLISECONDS = 1000;
const listeners = [];
const dot = document.getElementById("live");
let source = null;
let timer = null;

export function onLive(listener) {
  listeners.push(listener);
}

export function lookup(state, path) {
  return path.split(".").reduce((value, key) => value?.[key], state);
}

function show(live) {
  dot.dataset.live = live ? "yes" : "no";
  dot.textContent = live ? "live" : "reconnecting…";
}

function deliver(state) {
  for (const listener of listeners) listener(state);
}

function connect() {
  disconnect();
  source = new EventSource(url("/dashboard/live"));
  source.onmessage = (event) => {
    expect();
    show(true);
    deliver(JSON.parse(event.data));
  };
  source.onerror = lose;
  expect();
}

function disconnect() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

// A server that hangs keeps its connections open, so silence counts as a loss too.
function expect() {
  clearTimeout(timer);
  timer = setTimeout(lose, SILENCE_MILLISECONDS);
}

function lose() {
  disconnect();
  show(false);
  timer = setTimeout(poll, RETRY_MILLISECONDS);
}

// Proxies that hold streams back let a plain answer through; and it says when the session has ended.
async function poll() {
  try {
    const signal = AbortSignal.timeout(SILENCE_MILLISECONDS);
    const answer = await fetch(url("/dashboard/state"), { headers: { accept: "application/json" }, signal });
    if (answer.status === 401) location.href = url("/login");
    if (answer.ok) deliver(await answer.json());
    else fallSilent();
    connect();
  } catch {
    fallSilent();
    lose();
  }
}

// Nobody shall read that an engine is ready of which nothing is heard.
function fallSilent() {
  for (const tag of document.querySelectorAll('[data-bind="engine.words"]')) {
    tag.textContent = "No response";
    tag.dataset.tone = "bad";
  }
}

// Browsers allow six connections to a host: tabs nobody looks at must not hold one.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => event.persisted && connect());

onLive((state) => {
  for (const element of document.querySelectorAll("[data-bind]")) {
    const value = lookup(state, element.dataset.bind);
    if (value !== undefined) element.textContent = typeof value === "number" ? value.toLocaleString("en") : value;
    if (element.dataset.bind === "engine.words") element.dataset.tone = state.engine.tone;
  }
  if (!state.residency.states) return;
  for (const tag of document.querySelectorAll("[data-residency]")) {
    const residency = state.residency.states[tag.dataset.residency] ?? state.residency.on_disk;
    tag.textContent = tag.title = residency.words;
    tag.dataset.tone = residency.tone;
  }
});
connect();
