// What every page has: the live connection, theme switch, copy buttons and keyboard.

import "./live.js";
import "./confirm.js";
import "./trouble.js";
import "./undo.js";
import { url } from "./server.js";

// The list of keys says where they lead; it has only pages that this person may open.
const DESTINATIONS = Object.fromEntries([...document.querySelectorAll("#keys [data-path]")].map((one) => [one.textContent, one.dataset.path]));
const COPIED_MILLISECONDS = 1500;

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  document.dispatchEvent(new Event("themechange"));
}

async function copy(button) {
  const source = document.querySelector(button.dataset.copy);
  getSelection().selectAllChildren(source);
  // Browsers keep the clipboard API from plain-HTTP pages of other machines.
  if (navigator.clipboard) await navigator.clipboard.writeText(source.textContent);
  else document.execCommand("copy");
  getSelection().removeAllRanges();
  const label = button.textContent;
  button.textContent = "Copied";
  button.disabled = true;
  setTimeout(() => Object.assign(button, { textContent: label, disabled: false }), COPIED_MILLISECONDS);
}

let before = "";

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const destination = DESTINATIONS[`${before} ${event.key}`];
  before = event.key;
  if (destination) location.href = url(destination);
  if (event.key === "?") showKeys();
  const field = event.key === "/" && document.querySelector('[data-shortcut="/"]');
  if (field) {
    event.preventDefault();
    field.select();
  }
}

function showKeys() {
  const keys = document.getElementById("keys");
  if (!keys.open) keys.showModal();
}

function showMoments(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const words = "clock" in time.dataset ? moment.toLocaleTimeString() : "moment" in time.dataset && moment.toLocaleString();
    // Only once: the observer that calls this hears of the change too.
    if (words && time.textContent !== words) time.textContent = words;
    time.title = `${moment.toLocaleString()} (${moment.toISOString().slice(0, 16).replace("T", " ")} UTC)`;
  }
}

document.getElementById("switch-tenant")?.addEventListener("change", (event) => event.target.form.requestSubmit());
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("show-keys").addEventListener("click", showKeys);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("keydown", press);
// What a form made is shown once: a reload must ask for the page, not make another.
if (document.querySelector("[data-once]")) history.replaceState(null, "", location.href);
new MutationObserver(() => showMoments(document)).observe(document.getElementById("main"), { childList: true, characterData: true, subtree: true });
showMoments(document);
