// The files of an adapter out of a zip or tar archive, read in the browser: the server never sees an archive.
// An archive is a stranger's: names are only compared, sizes are bounded before and while bytes are unpacked.

import { CONFIG, OPTIONAL, WANTED, size } from "./files.js";

const MAX_ENTRIES = 4096;
const MAX_NAME = 1024;
const BLOCK = 512;
const [STORED, DEFLATED] = [0, 8];
const [END_OF_DIRECTORY, DIRECTORY_ENTRY, LOCAL_ENTRY] = [0x06054b50, 0x02014b50, 0x04034b50];
const ENCRYPTED = 1;
const IN_ZIP64 = 0xffffffff;
const END_BYTES = 22;
const SMALL_FILE = 65536;
const MAX_EXPANSION = 1100;

export function isArchive(name) {
  return /\.(zip|tar|tar\.gz|tgz)$/i.test(name);
}

// Throws an Error in words. `limit`: bytes that one file may have.
export async function filesOfArchive(archive, limit) {
  if (archive.size > 2 * limit) throw new Error(`it is ${size(archive.size)}, more than an adapter may be`);
  const entries = /\.zip$/i.test(archive.name) ? await zipEntries(archive) : await tarEntries(archive, limit);
  const chosen = choose(entries);
  for (const entry of chosen) check(entry, limit);
  const files = [];
  for (const entry of chosen) files.push(new File([await entry.read(limit)], baseOf(entry.path), { type: "application/octet-stream" }));
  return files;
}

function baseOf(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

function folderOf(path) {
  return path.slice(0, path.lastIndexOf("/") + 1);
}

// The adapter nearest to the archive's root: training folders hold checkpoints of the same names further down.
function choose(entries) {
  for (const { path } of entries) refuseHostile(path);
  const configs = entries.filter(({ path }) => baseOf(path) === CONFIG);
  if (!configs.length) throw new Error(`there is no ${CONFIG} in it`);
  const depth = Math.min(...configs.map(({ path }) => path.split("/").length));
  const folders = [...new Set(configs.filter(({ path }) => path.split("/").length === depth).map(({ path }) => folderOf(path)))];
  if (folders.length > 1) throw new Error(`it contains several adapters (${folders.slice(0, 3).join(", ")}); upload one at a time`);
  const chosen = entries.filter(({ path }) => folderOf(path) === folders[0] && [...WANTED, ...OPTIONAL].includes(baseOf(path)));
  const names = chosen.map(({ path }) => path);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice) throw new Error(`${twice} is in it twice`);
  return chosen;
}

function refuseHostile(path) {
  if (path.length > MAX_NAME) throw new Error("it contains a file name that is too long");
  if (path.startsWith("/") || /^[a-z]:/i.test(path) || path.includes("\\") || path.split("/").includes("..") || path.includes("\0"))
    throw new Error(`the path ${JSON.stringify(path.slice(0, 80))} points outside the archive; pack the adapter's own folder`);
}

function check(entry, limit) {
  const name = baseOf(entry.path);
  if (entry.problem) throw new Error(`${name} ${entry.problem}`);
  if (entry.size > limit) throw new Error(`${name} unpacks to ${size(entry.size)}, more than the limit of ${size(limit)}`);
  if (entry.packed !== undefined && entry.size > SMALL_FILE + entry.packed * MAX_EXPANSION)
    throw new Error(`${name} claims to unpack from ${size(entry.packed)} to ${size(entry.size)}, which is not possible`);
}

async function zipEntries(archive) {
  const tail = await viewOf(archive.slice(Math.max(0, archive.size - END_BYTES - 0xffff)));
  let end = tail.byteLength - END_BYTES;
  while (end >= 0 && tail.getUint32(end, true) !== END_OF_DIRECTORY) end--;
  if (end < 0) throw new Error("it is not a zip archive, or it is cut off");
  const [count, length, start] = [tail.getUint16(end + 10, true), tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
  if (start === IN_ZIP64 || length === IN_ZIP64 || count === 0xffff) throw new Error("zip64 is not supported; use a tar, or fewer files");
  if (count > MAX_ENTRIES) throw new Error(`it has ${count} entries; at most ${MAX_ENTRIES} are read`);
  if (start + length > archive.size) throw new Error("its file list is broken");
  const directory = await viewOf(archive.slice(start, start + length));
  const entries = [];
  for (let at = 0; entries.length < count; ) {
    if (at + 46 > length || directory.getUint32(at, true) !== DIRECTORY_ENTRY) throw new Error("its file list is broken");
    const [nameLength, extra, comment] = [28, 30, 32].map((offset) => directory.getUint16(at + offset, true));
    if (at + 46 + nameLength > length) throw new Error("its file list is broken");
    entries.push(zipEntry(archive, directory, at, nameLength));
    at += 46 + nameLength + extra + comment;
  }
  return entries.filter(({ path }) => !path.endsWith("/"));
}

function zipEntry(archive, directory, at, nameLength) {
  const [flags, method] = [directory.getUint16(at + 8, true), directory.getUint16(at + 10, true)];
  const [crc, packed, unpacked, offset] = [16, 20, 24, 42].map((place) => directory.getUint32(at + place, true));
  const mode = directory.getUint32(at + 38, true) >>> 16;
  const path = textOf(new Uint8Array(directory.buffer, directory.byteOffset + at + 46, nameLength));
  let problem = "";
  if (flags & ENCRYPTED) problem = "is encrypted; pack it without a password";
  else if (method !== STORED && method !== DEFLATED) problem = "uses an unsupported compression method; use deflate or none";
  else if ([packed, unpacked, offset].includes(IN_ZIP64)) problem = "uses zip64, which is not supported; use a tar";
  else if ((mode & 0xf000) === 0xa000) problem = "is a link; include the file itself";
  const read = async (limit) => {
    const head = await viewOf(archive.slice(offset, offset + 30));
    if (head.byteLength < 30 || head.getUint32(0, true) !== LOCAL_ENTRY) throw new Error(`${baseOf(path)} is not where the archive says`);
    const start = offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
    if (start + packed > archive.size) throw new Error(`${baseOf(path)} is cut off`);
    const data = archive.slice(start, start + packed);
    const stream = method === DEFLATED ? data.stream().pipeThrough(new DecompressionStream("deflate-raw")) : data.stream();
    return collect(stream, { path, size: unpacked, crc }, limit);
  };
  return { path, size: unpacked, packed: method === DEFLATED ? packed : undefined, problem, read };
}

// A compressed tar is unpacked into a blob first, which the browser keeps on disk when it is large.
async function tarEntries(archive, limit) {
  const zipped = /gz$/i.test(archive.name);
  const tar = zipped ? await collect(archive.stream().pipeThrough(new DecompressionStream("gzip")), { path: archive.name }, 2 * limit) : archive;
  const entries = [];
  let long = "";
  for (let at = 0; at < tar.size; ) {
    if (at + BLOCK > tar.size) throw new Error("it is cut off");
    const head = new Uint8Array(await tar.slice(at, at + BLOCK).arrayBuffer());
    if (head.every((byte) => byte === 0)) break;
    checkTarHead(head);
    const length = octal(head.subarray(124, 136));
    const kind = String.fromCharCode(head[156] || 48);
    const data = tar.slice(at + BLOCK, at + BLOCK + length);
    if (at + BLOCK + length > tar.size) throw new Error("it is cut off");
    if (kind === "L" || kind === "x") long = await longName(kind, data, long);
    else if (kind !== "g") {
      const path = (long || tarName(head)).replace(/^(\.\/)+/, "");
      if (kind !== "5") entries.push({ path, size: length, problem: kind === "0" || kind === "7" ? "" : "is a link or a device; include the file itself", read: async () => data });
      long = "";
    }
    if (entries.length > MAX_ENTRIES) throw new Error(`it has more than ${MAX_ENTRIES} entries`);
    at += BLOCK + Math.ceil(length / BLOCK) * BLOCK;
  }
  return entries;
}

function checkTarHead(head) {
  const sum = head.reduce((total, byte, i) => total + (i >= 148 && i < 156 ? 32 : byte), 0);
  const told = textOf(head.subarray(148, 156)).replace(/[\0 ]/g, "");
  if (!/^[0-7]+$/.test(told) || sum !== Number.parseInt(told, 8)) throw new Error("it is not a tar archive, or it is damaged");
}

function octal(bytes) {
  const digits = textOf(bytes).replace(/[\0 ]/g, "");
  if (!/^[0-7]{0,12}$/.test(digits)) throw new Error("it has a file too large for a tar header");
  return Number.parseInt(digits || "0", 8);
}

function tarName(head) {
  const isPosix = textOf(head.subarray(257, 262)) === "ustar";
  const [name, prefix] = [cString(head.subarray(0, 100)), isPosix && head[262] === 0 ? cString(head.subarray(345, 500)) : ""];
  return prefix ? `${prefix}/${name}` : name;
}

async function longName(kind, data, known) {
  if (data.size > SMALL_FILE) throw new Error("it contains a file name that is too long");
  const text = await data.text();
  if (kind === "L") return text.split("\0")[0];
  if (/(^|\n)\d+ size=/.test(text)) throw new Error("it has a file too large for a tar header");
  return /(?:^|\n)\d+ path=([^\n]*)\n/.exec(text)?.[1] ?? known;
}

function cString(bytes) {
  return textOf(bytes).split("\0")[0];
}

function textOf(bytes) {
  return new TextDecoder().decode(bytes);
}

async function viewOf(blob) {
  return new DataView(await blob.arrayBuffer());
}

// All of a stream, cut off at the first byte beyond what it may have, checked against its declared size and CRC-32.
async function collect(stream, { path, size: declared, crc }, limit) {
  const name = baseOf(path);
  const most = declared ?? limit;
  let [total, sum, refusal] = [0, 0xffffffff, null];
  const bounded = new TransformStream({
    transform(chunk, controller) {
      total += chunk.length;
      if (total > most) throw (refusal = new Error(`${name} unpacks to more than ${declared === undefined ? "the limit of " : ""}${size(most)}`));
      if (crc !== undefined) sum = crcOf(chunk, sum);
      controller.enqueue(chunk);
    },
  });
  let blob;
  try {
    blob = await new Response(stream.pipeThrough(bounded)).blob();
  } catch {
    // Browsers say no more than that reading failed.
    throw refusal ?? new Error(`${name} cannot be unpacked: the archive is broken`);
  }
  if (declared !== undefined && total !== declared) throw new Error(`${name} is cut off`);
  if (crc !== undefined && (sum ^ 0xffffffff) >>> 0 !== crc) throw new Error(`${name} is damaged: its checksum is wrong`);
  return blob;
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

function crcOf(chunk, sum) {
  for (const byte of chunk) sum = CRC_TABLE[(sum ^ byte) & 0xff] ^ (sum >>> 8);
  return sum;
}
