// The overview's figures, sparklines, block map and adapter tiles, redrawn from each live state.

import { onLive, url } from "./page.js";

const history = new Map();
const HISTORY = 60;
const ADAPTER_HUES = [218, 28, 145, 280, 350, 190, 60, 320];
let lastState = null;

function lookup(state, path) {
  return path.split(".").reduce((value, key) => value?.[key], state);
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return ["--block-free", "--block-cached", "--block-base"].map((name) => style.getPropertyValue(name).trim());
}

function adapterColour(index) {
  return `hsl(${ADAPTER_HUES[index % ADAPTER_HUES.length]} 65% ${52 + 9 * (Math.floor(index / ADAPTER_HUES.length) % 3)}%)`;
}

function drawFigures(state) {
  for (const element of document.querySelectorAll("[data-bind]")) {
    const value = lookup(state, element.dataset.bind);
    if (value !== undefined && value !== null) element.textContent = value;
    if (element.dataset.bind === "engine.state") element.dataset.tone = state.engine.tone;
  }
  for (const svg of document.querySelectorAll("[data-spark]")) {
    const key = svg.dataset.spark;
    const points = history.get(key) ?? [];
    points.push(Number(lookup(state, key)) || 0);
    if (points.length > HISTORY) points.shift();
    history.set(key, points);
    const top = Math.max(...points, 1e-9);
    const path = points.map((value, i) => `${i ? "L" : "M"}${(100 * i) / (HISTORY - 1)} ${28 - (26 * value) / top}`);
    svg.querySelector("path").setAttribute("d", path.join(""));
  }
}

function drawBlocks(state) {
  const map = Uint8Array.from(atob(state.blocks.map), (letter) => letter.charCodeAt(0));
  const canvas = document.getElementById("block-map");
  const width = (canvas.width = canvas.clientWidth);
  const cell = Math.max(3, Math.min(14, Math.floor(Math.sqrt((width * 150) / Math.max(1, map.length)))));
  const columns = Math.floor(width / cell);
  canvas.height = Math.ceil(map.length / columns) * cell;
  const context = canvas.getContext("2d");
  const [free, cached, base] = colours();
  map.forEach((kind, block) => {
    context.fillStyle = [free, cached, base][kind] ?? adapterColour(kind - 3);
    context.fillRect((block % columns) * cell, Math.floor(block / columns) * cell, cell - 1, cell - 1);
  });
  const present = [...new Set(map)].filter((kind) => kind >= 3);
  const entries = [["free", free], ["cached prefix, reusable", cached], ["base", base]];
  for (const kind of present.slice(0, 12)) entries.push([state.blocks.names[kind - 3] ?? "adapter", adapterColour(kind - 3)]);
  document.getElementById("block-legend").replaceChildren(...entries.map(([label, colour]) => legendEntry(label, colour)));
}

function legendEntry(label, colour) {
  const entry = document.createElement("span");
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  swatch.style.background = colour;
  entry.append(swatch, label);
  return entry;
}

function drawTiles(state) {
  document.getElementById("adapter-bar").style.width = `${state.residency.share * 100}%`;
  const tiles = state.residency.tiles.map((adapter, index) => {
    const tile = document.createElement(adapter.name ? "a" : "div");
    tile.className = "tile";
    if (adapter.name) tile.href = url(`/adapters/${encodeURIComponent(adapter.name)}`);
    tile.style.borderLeftColor = adapterColour(adapter.index ?? index);
    const name = document.createElement("strong");
    name.textContent = adapter.label;
    const words = document.createElement("small");
    words.textContent = adapter.words;
    tile.append(name, words);
    return tile;
  });
  document.getElementById("adapter-tiles").replaceChildren(...tiles);
}

function draw(state) {
  lastState = state;
  drawFigures(state);
  drawBlocks(state);
  drawTiles(state);
}

onLive(draw);
for (const event of ["themechange", "resize"]) {
  (event === "resize" ? window : document).addEventListener(event, () => lastState && drawBlocks(lastState));
}
