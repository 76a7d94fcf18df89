// What every page has: theme switch, copy buttons, keyboard, and one live connection shared by all parts of a page.

const root = document.body.dataset.root;
const listeners = [];

export function onLive(listener) {
  listeners.push(listener);
}

export function csrfToken() {
  return document.querySelector('meta[name="csrf-token"]').content;
}

export function url(path) {
  return root + path;
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

document.getElementById("theme")?.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  document.dispatchEvent(new Event("themechange"));
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1200);
});

let pendingKey = "";
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const destinations = { go: "/", ga: "/adapters", gp: "/playground" };
  const destination = destinations[pendingKey + event.key];
  pendingKey = event.key === "g" ? "g" : "";
  if (destination) location.href = url(destination);
  if (event.key === "/") {
    const field = document.querySelector('[data-shortcut="/"]');
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

// Server-sent events, and a poll every 5 s while they do not get through.
const dot = document.getElementById("live");
let poll = null;

function show(live, words) {
  dot.dataset.live = live ? "yes" : "no";
  dot.textContent = words;
}

function deliver(state) {
  for (const listener of listeners) listener(state);
}

async function fetchOnce() {
  const answer = await fetch(url("/dashboard/state"), { headers: { accept: "application/json" } });
  if (answer.status === 401) location.href = url("/login");
  if (answer.ok) deliver(await answer.json());
}

function connect() {
  const source = new EventSource(url("/dashboard/live"));
  source.onopen = () => {
    clearInterval(poll);
    poll = null;
    show(true, "live");
  };
  source.onmessage = (event) => deliver(JSON.parse(event.data));
  source.onerror = () => {
    show(false, "reconnecting…");
    poll ??= setInterval(() => fetchOnce().catch(() => {}), 5000);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}

if (dot) connect();

onLive((state) => {
  for (const tag of document.querySelectorAll("[data-residency]")) {
    const residency = state.residency.states[tag.dataset.residency];
    if (!residency) continue;
    tag.textContent = residency.words;
    tag.dataset.tone = residency.tone;
  }
});
