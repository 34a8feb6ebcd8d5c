// Draws the ladder of a recorded run. Only the entries in view are in the document.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
// Fields of an entry.
const [AT, NODE, LANE, CONN, NAME, DETAIL, REFUSAL, ARRIVAL] = [0, 1, 2, 3, 4, 5, 6, 7];
const LANES = ["operation", "event", "sent", "arrived", "application", "fate", "fault"];
const ROW = 22, TOP = 14, SVG = "http://www.w3.org/2000/svg";
// Lifelines, and their places as shares of the width; times are to the left of the first one. An
// end that was not recorded is one line.
const COLUMNS = ["application", "host", "device", "link", "device", "host", "application"];
const PLACES = {
  both: [0.15, 0.27, 0.40, 0.555, 0.71, 0.84, 0.95],
  client: [0.15, 0.33, 0.52, 0.73, 0.92, 0.92, 0.92],
  server: [0.16, 0.16, 0.16, 0.36, 0.56, 0.76, 0.93],
};

const byId = (id) => document.getElementById(id);
const box = byId("box"), scroll = byId("scroll"), svg = byId("ladder");
const state = { conn: 0, shown: [], matches: [], match: -1, selected: -1, scale: 1,
  lanes: new Set(LANES) };

function make(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function places() {
  const [client, server] = state.nodes;
  return PLACES[client === null ? "server" : server === null ? "client" : "both"];
}

function timeText(ns) {
  return (ns / 1e6).toFixed(3) + " ms";
}

// Entries of the connection, and those of its nodes that belong to no connection.
function choose() {
  const conn = data.connections[state.conn];
  const nodes = conn ? [conn.client, conn.server] : [0, null];
  state.nodes = nodes;
  state.shown = [];
  data.entries.forEach((entry, index) => {
    const mine = entry[CONN] === state.conn
      || (entry[CONN] === null && nodes.includes(entry[NODE]) && entry[NAME] !== "Load");
    if (mine && state.lanes.has(entry[LANE])) state.shown.push(index);
  });
  state.offloads = offloads();
  find(false);
  layout();
}

// States of the offload contexts of both devices, as intervals.
function offloads() {
  const spans = [];
  for (const side of [0, 1]) {
    let open = 0, kind = null, from = 0;
    const change = (at, to) => {
      if (to === kind) return;
      if (kind) spans.push({ side, kind, from, until: at });
      [kind, from] = [to, at];
    };
    for (const entry of data.entries) {
      if (entry[CONN] !== state.conn || entry[NODE] !== state.nodes[side]) continue;
      const [at, name] = [entry[AT], entry[NAME]];
      if (["L5oCreate", "QuicAdd", "Teardown", "Splice"].includes(name)) {
        open += 1;
        change(at, "on");
      } else if (["L5oDestroy", "QuicRemove", "L5oRefused", "QuicStatus", "TeardownRefused"]
        .includes(name)) {
        open = Math.max(0, open - 1);
        change(at, open ? "on" : null);
      } else if (name === "L5oResyncRxReq") {
        change(at, "searching");
      } else if (name === "L5oResyncRxResp") {
        change(at, open ? "on" : null);
      }
    }
    change(Infinity, null);
  }
  return spans;
}

function yOf(index, at) {
  if (byId("mode").value === "time") {
    const start = state.shown.length ? data.entries[state.shown[0]][AT] : 0;
    return TOP + (at - start) / 1e6 * 40 * state.scale;
  }
  return TOP + index * ROW * state.scale;
}

// Position of a time between the entries that are shown.
function yOfTime(at) {
  if (byId("mode").value === "time") return yOf(0, at);
  let low = 0, high = state.shown.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.entries[state.shown[middle]][AT] < at) low = middle + 1; else high = middle;
  }
  return yOf(low, at);
}

function layout() {
  const count = state.shown.length;
  const last = count ? data.entries[state.shown[count - 1]][AT] : 0;
  // Browsers limit the height of an element.
  state.height = Math.min(yOf(count, last) + 60, 15e6);
  scroll.style.height = state.height + "px";
  const heads = byId("heads");
  heads.replaceChildren();
  const conn = data.connections[state.conn];
  COLUMNS.forEach((name, index) => {
    const head = document.createElement("span");
    const node = index < 3 ? conn?.client : index > 3 ? conn?.server : undefined;
    if (node === null && index !== 0 && index !== 6) return;
    head.style.left = places()[index] * 100 + "%";
    head.textContent = node === null ? "peer" : name;
    if (node !== null && node !== undefined) {
      head.append(document.createElement("br"), data.nodes[node] ?? "");
    }
    heads.append(head);
  });
  draw();
}

function draw() {
  const top = Math.max(0, box.scrollTop - 400), height = box.clientHeight + 800;
  const width = scroll.clientWidth;
  svg.replaceChildren();
  svg.style.top = top + "px";
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 ${top} ${width} ${height}`);
  const x = places().map((share) => share * width);
  x.forEach((at) => make("line", { class: "life", x1: at, x2: at, y1: top, y2: top + height }, svg));
  for (const span of state.offloads) {
    const [y1, y2] = [yOfTime(span.from), span.until === Infinity ? top + height
      : yOfTime(span.until)];
    if (y2 < top || y1 > top + height) continue;
    const at = x[span.side === 0 ? 2 : 4];
    make("line", { class: "life " + span.kind, x1: at, x2: at, y1: Math.max(y1, top),
      y2: Math.min(y2, top + height) }, svg);
  }
  if (data.violation) {
    const y = yOfTime(data.violation.at);
    make("line", { class: "violation", x1: 0, x2: width, y1: y, y2: y }, svg);
  }
  let lastTime = null, lastY = -Infinity;
  state.shown.forEach((index, position) => {
    const entry = data.entries[index], y = yOf(position, entry[AT]);
    if (y < top - 60 || y > top + height + 60) return;
    if (entry[AT] !== lastTime && y - lastY > 12) {
      make("text", { class: "time", x: 2, y: y + 4 }, svg, timeText(entry[AT]));
      [lastTime, lastY] = [entry[AT], y];
    }
    drawEntry(entry, index, y, x);
  });
}

function drawEntry(entry, index, y, x) {
  const right = entry[NODE] === state.nodes[1] && entry[NODE] !== state.nodes[0];
  const [app, host, device] = right ? [x[6], x[5], x[4]] : [x[0], x[1], x[2]];
  const classes = ["entry", entry[LANE]];
  if (entry[REFUSAL]) classes.push("refusal");
  if (state.matches.includes(index)) classes.push("match");
  if (state.selected === index) classes.push("selected");
  const group = make("g", { class: classes.join(" ") }, svg);
  const ends = { operation: [host, device], event: [device, host], sent: [device, x[3]],
    arrived: [x[3], device] }[entry[LANE]];
  const label = entry[LANE] === "sent" || entry[LANE] === "arrived"
    ? shortFrame(entry) : entry[NAME];
  if (ends) {
    let [from, to, end] = [...ends, y];
    const arrival = entry[LANE] === "sent" ? entry[ARRIVAL] : null;
    if (arrival !== null && state.lanes.has("arrived")) {
      // A slanted line to the arrival, whose own entry has the label of that end.
      end = yOfTime(data.entries[arrival][AT]);
      const other = data.entries[arrival][NODE];
      if (other === state.nodes[0] || other === state.nodes[1]) to = right ? x[2] : x[4];
      if (byId("mode").value === "equal") end = Math.max(y, Math.min(end, y + 40 * ROW));
    }
    rect(group, Math.min(from, to), y - 9, Math.abs(to - from), 18);
    arrow(group, from, y, to, end);
    const middle = Math.min(from, ends[1]) + Math.abs(ends[1] - from) / 2;
    make("text", { x: middle, y: y - 3, "text-anchor": "middle" }, group, label);
  } else {
    const at = entry[LANE] === "application" ? app : entry[LANE] === "fate" ? x[3] : device;
    rect(group, at - 45, y - 9, 90, 18);
    if (entry[LANE] === "fate") {
      make("path", { d: `M${at - 5} ${y - 5}l10 10m0 -10l-10 10` }, group);
    } else {
      make("circle", { cx: at, cy: y, r: 4 }, group);
    }
    make("text", { x: at + (right ? -9 : 9), y: y + 4, "text-anchor": right ? "end" : "start" },
      group, label);
  }
  make("title", {}, group, `${timeText(entry[AT])} ${entry[NAME]}: ${entry[DETAIL]}`);
  group.addEventListener("click", () => select(index));
}

function rect(group, x, y, width, height) {
  make("rect", { x, y, width, height, rx: 3 }, group);
}

function arrow(group, x1, y1, x2, y2) {
  make("line", { x1, y1, x2, y2 }, group);
  const angle = Math.atan2(y2 - y1, x2 - x1), tip = (turn, size) =>
    `${x2 - size * Math.cos(angle + turn)} ${y2 - size * Math.sin(angle + turn)}`;
  make("path", { class: "head", d: `M${x2} ${y2}L${tip(0.4, 8)}L${tip(-0.4, 8)}Z` }, group);
}

// Flags and length of a frame: what fits beside an arrow.
function shortFrame(entry) {
  const tcp = /^(\S*) seq (\d+) ack (\d+) win \d+ len (\d+)/.exec(entry[DETAIL]);
  return tcp ? `${tcp[1]} ${tcp[4]} B` : `${entry[NAME]} ${entry[DETAIL]}`.slice(0, 18);
}

function select(index) {
  state.selected = index;
  const entry = data.entries[index], panel = byId("details");
  const line = (text, className) => {
    const p = document.createElement("p");
    if (className) p.className = className;
    p.textContent = text;
    panel.append(p);
  };
  panel.replaceChildren();
  const head = document.createElement("h2");
  head.textContent = `${entry[NAME]} (${entry[LANE]})`;
  panel.append(head);
  line(`${timeText(entry[AT])}, ${data.nodes[entry[NODE]]}`, "muted");
  if (entry[DETAIL]) line(entry[DETAIL]);
  if (entry[REFUSAL]) line("A refusal: software does the work.");
  if (entry[ARRIVAL] !== null) {
    const arrival = data.entries[entry[ARRIVAL]];
    line(`Arrives at ${data.nodes[arrival[NODE]]} after ${timeText(arrival[AT] - entry[AT])}.`);
  }
  const installed = state.offloads.filter((span) => span.from <= entry[AT]
    && entry[AT] < span.until);
  for (const span of installed) {
    const node = data.nodes[state.nodes[span.side]];
    line(`Offload at ${node}: ${span.kind === "on" ? "installed" : "asks the host"}.`, "muted");
  }
  draw();
}

function show(index) {
  const position = state.shown.indexOf(index);
  if (position < 0) return;
  box.scrollTop = Math.max(0, yOf(position, data.entries[index][AT]) - box.clientHeight / 2);
  select(index);
}

function find(jump) {
  const wanted = byId("search").value.trim().toLowerCase();
  const text = (entry) => `${entry[NAME]} ${entry[DETAIL]} ${entry[LANE]}`.toLowerCase();
  state.matches = wanted ? state.shown.filter((index) => text(data.entries[index])
    .includes(wanted)) : [];
  state.match = state.matches.length ? 0 : -1;
  byId("matches").textContent = wanted ? `${state.matches.length} found` : "";
  if (jump && state.match === 0) show(state.matches[0]);
}

function step(by) {
  if (!state.matches.length) return;
  state.match = (state.match + by + state.matches.length) % state.matches.length;
  show(state.matches[state.match]);
}

function zoom(by) {
  const middle = (box.scrollTop + box.clientHeight / 2) / state.height;
  state.scale = Math.min(64, Math.max(1 / 64, state.scale * by));
  layout();
  box.scrollTop = middle * state.height - box.clientHeight / 2;
  draw();
}

function start() {
  byId("summary").textContent = `${data.title}: ${data.entries.length} entries, `
    + `${data.connections.length} connections, ${data.nodes.length} nodes.`;
  if (data.violation) {
    const alert = byId("violation");
    alert.hidden = false;
    alert.textContent = `Failed at ${timeText(data.violation.at)}: ${data.violation.text}`;
  }
  const list = byId("connection");
  data.connections.forEach((conn, index) => {
    const name = (node) => node === null ? "a peer" : data.nodes[node];
    const text = `${name(conn.client)} to ${name(conn.server)}: ${conn.name} (${conn.entries})`;
    list.append(new Option(text, index));
  });
  // The connection with most entries is the most instructive.
  const most = data.connections.reduce((best, conn, index, all) =>
    conn.entries > all[best].entries ? index : best, 0);
  list.value = state.conn = most;
  for (const lane of LANES) {
    const label = document.createElement("label"), check = document.createElement("input");
    Object.assign(check, { type: "checkbox", checked: true });
    check.addEventListener("change", () => {
      if (check.checked) state.lanes.add(lane); else state.lanes.delete(lane);
      choose();
    });
    label.append(check, ` ${lane}`);
    byId("lanes").append(label);
  }
  list.addEventListener("change", () => { state.conn = Number(list.value); choose(); });
  byId("search").addEventListener("input", () => { find(true); draw(); });
  byId("controls").addEventListener("submit", (event) => { event.preventDefault(); step(1); });
  byId("next").addEventListener("click", () => step(1));
  byId("previous").addEventListener("click", () => step(-1));
  byId("mode").addEventListener("change", () => { state.scale = 1; layout(); });
  byId("in").addEventListener("click", () => zoom(1.5));
  byId("out").addEventListener("click", () => zoom(1 / 1.5));
  box.addEventListener("scroll", () => requestAnimationFrame(draw));
  addEventListener("resize", layout);
  box.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = state.shown.indexOf(state.selected);
    const to = state.shown[Math.min(state.shown.length - 1, Math.max(0, at + by))];
    if (to !== undefined) show(to);
  });
  choose();
}

start();
