// A tile for each adapter in memory, in the colour that the block map gives it.

import { colourOf } from "./blocks.js";
import { url } from "./server.js";

function tileOf(adapter) {
  const tile = document.createElement(adapter.path ? "a" : "div");
  tile.className = "tile";
  tile.title = adapter.label;
  tile.dataset.busy = adapter.busy ? "yes" : "no";
  if (adapter.path) tile.href = url(adapter.path);
  tile.style.borderLeftColor = colourOf(adapter.kind);
  tile.append(
    Object.assign(document.createElement("strong"), { textContent: adapter.label }),
    Object.assign(document.createElement("small"), { textContent: adapter.words }),
    Object.assign(document.createElement("span"), { textContent: adapter.activity }),
  );
  return tile;
}

export function drawTiles(residency) {
  const tiles = document.getElementById("adapter-tiles");
  // A tile somebody is about to follow by keyboard stays as it is.
  if (!tiles.contains(document.activeElement)) tiles.replaceChildren(...residency.tiles.map(tileOf));
}
