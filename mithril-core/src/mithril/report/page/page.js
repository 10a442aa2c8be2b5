"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const FIRST_ROWS = 100;
const find = (id) => document.getElementById(id);

/** Return a new element: text is never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function showFigures() {
  document.title = `Mithril plan: ${data.title}`;
  find("title").textContent = data.title;
  find("subtitle").textContent = data.subtitle;
  for (const [label, value] of data.figures) {
    find("figures").append(make("div", { class: "figure" }, make("b", {}, value), make("span", {}, label)));
  }
  for (const [name, size] of data.mesh.axes) {
    find("mesh").append(make("span", { class: "axis" }, make("b", {}, name), ` ${size}`));
  }
  find("mesh").append(make("span", {}, `${data.mesh.devices} devices, the last axis varies fastest`));
}

/* ---------------------------------------------------------------- the model */

let chosen = "";

function showTree() {
  const root = find("tree");
  root.append(makeBranch("", data.model || "whole model"));
  openBranch(root.firstChild);
}

const children = new Map();
for (const path of data.layers) {
  const cut = path.lastIndexOf(".");
  const parent = cut < 0 ? "" : path.slice(0, cut);
  if (!children.has(parent)) children.set(parent, []);
  children.get(parent).push(path);
}

function makeBranch(path, label) {
  const name = make("button", { "data-path": path, role: "treeitem", "aria-selected": "false" }, label);
  name.addEventListener("click", () => choose(path));
  const fold = make("button", { class: "fold", "aria-label": `unfold ${label}` }, children.has(path) ? "▸" : "");
  const branch = make("li", {}, make("div", { class: "row" }, fold, name));
  branch.path = path;
  fold.addEventListener("click", () => (branch.inner ? closeBranch(branch) : openBranch(branch)));
  return branch;
}

function openBranch(branch) {
  if (!children.has(branch.path)) return;
  branch.inner = make("ul", { role: "group" });
  for (const path of children.get(branch.path)) {
    branch.inner.append(makeBranch(path, path.slice(path.lastIndexOf(".") + 1)));
  }
  branch.append(branch.inner);
  branch.querySelector(".fold").textContent = "▾";
}

function closeBranch(branch) {
  branch.inner.remove();
  branch.inner = null;
  branch.querySelector(".fold").textContent = "▸";
}

const isInside = (path, layer) => layer === "" || path === layer || path.startsWith(`${layer}.`);

function choose(layer) {
  chosen = layer;
  for (const button of document.querySelectorAll("nav button[data-path]")) {
    button.setAttribute("aria-selected", String(button.dataset.path === layer));
  }
  find("layer-title").textContent = layer || "whole model";
  const tensors = data.tensors.filter((row) => isInside(row[0], layer));
  const collectives = data.collectives.filter((row) => isInside(row.layer, layer));
  find("tensor-count").textContent = `(${tensors.length})`;
  find("collective-count").textContent = `(${collectives.length})`;
  showTable(find("tensors"), ["name", "type", "split", "on each device", "decided by"], tensors, ([, ...cells]) =>
    cells.map((cell) => make("td", {}, cell)));
  showTable(find("collectives"), ["what", "bytes", "time", "value", "why", "line"], collectives, (row) => [
    make("td", {}, row.what, make("small", {}, row.phase)),
    make("td", { class: "number" }, row.bytes.toLocaleString("en")),
    make("td", { class: "number" }, row.time),
    make("td", {}, row.value),
    make("td", {}, row.why, ...row.instead.map((other) => make("small", {}, `instead: ${other}`))),
    make("td", {}, make("code", {}, row.source)),
  ]);
}

function showTable(table, titles, rows, cells, count = FIRST_ROWS) {
  table.replaceChildren(make("tr", {}, ...titles.map((title) => make("th", {}, title))));
  for (const row of rows.slice(0, count)) table.append(make("tr", {}, ...cells(row)));
  if (rows.length > count) {
    const more = make("button", { class: "more" }, `${rows.length - count} more`);
    more.addEventListener("click", () => showTable(table, titles, rows, cells, rows.length));
    table.append(make("tr", {}, make("td", { colspan: String(titles.length) }, more)));
  }
}

/* ---------------------------------------------------------------- timeline and memory */

function drawOn(parent, height, draw) {
  const canvas = make("canvas", { height: String(height) });
  parent.append(canvas);
  const width = Math.max(300, parent.clientWidth);
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  draw(pen, width, height);
  return canvas;
}

const COLORS = {
  compute: "#4477aa", communication: "#cc6677", send: "#ddaa33", receive: "#228833", "host copies": "#aa3377",
};
const LANE = 21;

function showTimeline() {
  const { rows, seconds, note } = data.timeline;
  find("timeline-note").textContent = note;
  if (!rows.length) return;
  const found = new Set(rows.flatMap((row) => row.events.map((x) => x[2])));
  const lanes = Object.keys(COLORS).filter((stream) => found.has(stream));
  const key = make("p", {});
  for (const stream of lanes) {
    const box = make("span", { class: "key" });
    box.style.background = COLORS[stream];
    key.append(box, stream);
  }
  find("timeline").append(key);
  for (const row of rows) {
    find("timeline").append(make("div", { class: "devices" }, row.devices));
    const canvas = drawOn(find("timeline"), 2 + LANE * lanes.length, (pen, width) => {
      for (const [start, end, stream] of row.events) {
        pen.fillStyle = COLORS[stream];
        const left = (start / seconds) * width;
        const top = 2 + LANE * lanes.indexOf(stream);
        pen.fillRect(left, top, Math.max(0.3, ((end - start) / seconds) * width), LANE - 2);
      }
    });
    canvas.addEventListener("mousemove", (event) => {
      const box = canvas.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * seconds;
      const stream = lanes[Math.floor((event.clientY - box.top - 1) / LANE)];
      const under = row.events.find((x) => x[2] === stream && x[0] <= at && at <= x[1]);
      canvas.title = under ? `${under[3]}: ${((under[1] - under[0]) * 1e6).toFixed(1)} us` : "";
    });
  }
}

function showMemory() {
  find("memory-note").textContent = data.memory.note;
  for (const row of data.memory.rows) {
    find("memory").append(make("div", { class: "devices" }, `${row.devices}: ${row.text}`));
    drawOn(find("memory"), 120, (pen, width, height) => {
      const top = Math.max(...row.curve, data.memory.capacity || 0) || 1;
      const down = (bytes) => height - 4 - (bytes / top) * (height - 14);
      pen.fillStyle = "#88ccee";
      pen.beginPath();
      pen.moveTo(0, height);
      row.curve.forEach((bytes, i) => {
        const step = width / row.curve.length;
        pen.lineTo(i * step, down(bytes));
        pen.lineTo((i + 1) * step, down(bytes));
      });
      pen.lineTo(width, height);
      pen.fill();
      if (data.memory.capacity) {
        pen.strokeStyle = "#cc3311";
        pen.strokeRect(-1, down(data.memory.capacity), width + 2, 0);
      }
    });
  }
}

showFigures();
showTree();
choose("");
showTimeline();
showMemory();
document.body.dataset.ready = "true";
