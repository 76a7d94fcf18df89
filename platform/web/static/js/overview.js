// The overview's sparklines and adapter tiles, redrawn from each live state.

import { colourOf, drawBlocks } from "./blocks.js";
import { onLive } from "./live.js";
import { url } from "./server.js";

let lastState = null;

function drawSparklines(state) {
  for (const svg of document.querySelectorAll("[data-spark]")) {
    const points = state.traffic.history[svg.dataset.spark];
    const top = Math.max(...points, 1e-9);
    let held = null;
    const steps = points.flatMap((value, i) => {
      held = value ?? held;
      return held === null ? [] : [`${((100 * i) / (points.length - 1)).toFixed(2)} ${(28 - (26 * held) / top).toFixed(2)}`];
    });
    svg.closest("[data-figure]").dataset.tone = svg.dataset.spark === "errors_per_minute" && top >= 1 ? "bad" : "";
    svg.querySelector("path").setAttribute("d", steps.length ? `M${steps.join("L")}` : "");
  }
}

function tileOf(adapter) {
  const tile = document.createElement(adapter.name ? "a" : "div");
  tile.className = "tile";
  tile.title = adapter.label;
  tile.dataset.busy = adapter.busy ? "yes" : "no";
  if (adapter.name) tile.href = url(`/adapters/${encodeURIComponent(adapter.name)}`);
  tile.style.borderLeftColor = colourOf(adapter.kind);
  tile.append(
    Object.assign(document.createElement("strong"), { textContent: adapter.label }),
    Object.assign(document.createElement("span"), { textContent: adapter.activity }),
    Object.assign(document.createElement("small"), { textContent: adapter.words }),
  );
  return tile;
}

function drawTiles(state) {
  document.getElementById("adapter-bar").style.width = `${state.residency.share * 100}%`;
  const tiles = document.getElementById("adapter-tiles");
  // A tile somebody is about to follow by keyboard stays as it is.
  if (!tiles.contains(document.activeElement)) tiles.replaceChildren(...state.residency.tiles.map(tileOf));
}

function draw(state) {
  lastState = state;
  document.getElementById("no-traffic").hidden = state.traffic.seen;
  drawSparklines(state);
  drawBlocks(state.blocks);
  drawTiles(state);
}

onLive(draw);
document.addEventListener("themechange", () => lastState && drawBlocks(lastState.blocks));
addEventListener("resize", () => lastState && drawBlocks(lastState.blocks));
