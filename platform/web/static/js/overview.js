// The overview, redrawn from each live state: sparklines, what needs attention, tiers, block map, adapter tiles.

import { drawBlocks } from "./blocks.js";
import { drawChart, drawTable, liveTimes } from "./charts.js";
import { onLive } from "./live.js";
import { url } from "./server.js";
import { drawTiles } from "./tiles.js";

const UNITS = {
  requests_per_minute: "/min",
  tokens_per_second: "tokens/s",
  first_token_ms: "ms",
  errors_per_minute: "/min",
};
let lastState = null;

function labelOf(figure) {
  const name = figure.querySelector("h2").textContent;
  return figure.dataset.figure === "first_token_ms" ? `${name}, p95` : name;
}

function drawFigures({ history }) {
  const times = liveTimes(history.requests_per_minute.length);
  const figures = [...document.querySelectorAll("[data-figure]:not([hidden])")];
  const series = figures.map((figure) => {
    const key = figure.dataset.figure;
    return { key, label: labelOf(figure), unit: UNITS[key], values: history[key] };
  });
  for (const [number, one] of series.entries()) {
    const figure = figures[number];
    const failing = one.key === "errors_per_minute" && one.values.some((value) => value >= 1);
    figure.dataset.tone = failing ? "bad" : "";
    drawChart(figure.querySelector("[data-chart]"), times, [{ ...one, colour: failing ? "--bad" : "--accent" }]);
  }
  drawTable("figure-values", times, series);
}

function drawAttention(items) {
  const list = document.getElementById("attention-items");
  if (list.contains(document.activeElement)) return;
  list.replaceChildren(...items.map(attentionItem));
  document.getElementById("attention").hidden = !items.length;
}

function attentionItem({ tone, text, path }) {
  const item = document.createElement("li");
  item.dataset.tone = tone;
  // Without a path: this person may not open the page.
  item.append(path ? Object.assign(document.createElement("a"), { textContent: text, href: url(path) }) : text);
  return item;
}

function tierOf({ name, share, words }) {
  const bar = Object.assign(document.createElement("div"), { className: "bar" });
  bar.append(document.createElement("div"));
  bar.firstElementChild.style.width = `${100 * share}%`;
  const label = Object.assign(document.createElement("strong"), { textContent: name });
  const percent = Object.assign(document.createElement("span"), { textContent: `${(100 * share).toFixed(1)}\u00a0%` });
  const note = Object.assign(document.createElement("small"), { className: "muted", textContent: words });
  const tier = document.createElement("div");
  tier.append(label, percent, bar, note);
  return tier;
}

function draw(state) {
  lastState = state;
  document.getElementById("no-traffic").hidden = state.traffic.seen;
  drawFigures(state.traffic);
  drawAttention(state.attention);
  if (state.tiers.length) document.getElementById("tiers").replaceChildren(...state.tiers.map(tierOf));
  drawBlocks(state.blocks);
  drawTiles(state.residency);
}

onLive(draw);
document.addEventListener("themechange", () => lastState && drawBlocks(lastState.blocks));
addEventListener("resize", () => lastState && drawBlocks(lastState.blocks));
