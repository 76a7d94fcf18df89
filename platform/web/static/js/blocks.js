// The map of KV-cache blocks: one square for each block, or for several where there are too many to see.

const MAX_SQUARES = 1600;
const GAP = 1;
// In OKLCH equal lightness looks equally light, so no adapter stands out by its hue.
const HUES = [255, 60, 155, 310, 20, 205, 105, 340];
const FREE = 0;
const CACHED = 1;
const FIRST_ADAPTER = 3;
const SWATCHES = ["swatch-free", "swatch-cached", "swatch-base"];

export function colourOf(kind) {
  const place = kind - FIRST_ADAPTER;
  return `oklch(${0.66 - 0.09 * (Math.floor(place / HUES.length) % 3)} 0.15 ${HUES[place % HUES.length]})`;
}

function palette() {
  const fixed = SWATCHES.map((id) => getComputedStyle(document.getElementById(id)).backgroundColor);
  return (kind) => fixed[kind] ?? colourOf(kind);
}

function countKinds(blocks) {
  const counts = new Map();
  for (const kind of blocks) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return counts;
}

// What a square of several blocks shows: its most frequent use, if it has any.
function kindOf(blocks) {
  const counts = countKinds(blocks);
  const used = [...counts].filter(([kind]) => kind > CACHED);
  if (used.length) return used.reduce((most, entry) => (entry[1] > most[1] ? entry : most))[0];
  return counts.has(CACHED) ? CACHED : FREE;
}

export function drawBlocks(blocks) {
  const map = Uint8Array.from(atob(blocks.map), (letter) => letter.charCodeAt(0));
  const perSquare = Math.max(1, Math.ceil(map.length / MAX_SQUARES));
  const squares = Math.ceil(map.length / perSquare);
  const canvas = document.getElementById("block-map");
  const width = canvas.clientWidth;
  const cell = Math.max(6, Math.min(16, Math.floor(Math.sqrt((width * 150) / Math.max(1, squares)))));
  const columns = Math.max(1, Math.floor((width + GAP) / cell));
  const height = Math.max(1, Math.ceil(squares / columns)) * cell;
  canvas.width = width * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  const paint = palette();
  for (let square = 0; square < squares; square++) {
    context.fillStyle = paint(kindOf(map.subarray(square * perSquare, (square + 1) * perSquare)));
    context.fillRect((square % columns) * cell, Math.floor(square / columns) * cell, cell - GAP, cell - GAP);
  }
  drawLegend(blocks.legend, countKinds(map));
  const tokens = `${perSquare * (blocks.block_size ?? 0)} tokens`;
  document.getElementById("blocks-scale").textContent = map.length ? `One square is ${tokens}.` : "";
}

function drawLegend(legend, counts) {
  ["free", "cached", "base"].forEach((name, kind) => {
    document.getElementById(`count-${name}`).textContent = (counts.get(kind) ?? 0).toLocaleString("en");
  });
  const entries = Object.entries(legend).map(([kind, label]) => {
    const swatch = Object.assign(document.createElement("i"), { className: "swatch" });
    swatch.style.background = colourOf(Number(kind));
    const entry = document.createElement("span");
    const count = Object.assign(document.createElement("b"), { textContent: counts.get(Number(kind)).toLocaleString("en") });
    entry.append(swatch, `${label} `, count);
    return entry;
  });
  document.getElementById("block-legend").replaceChildren(...entries);
}
