// Shows the events of the server. Values become text nodes only.
"use strict";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const HISTORY = 300; // seconds of the small plots
const STALE_MS = 3500;
const FIGURES = [
  ["sent_bytes_per_s", "sent", (v) => bits(v * 8)],
  ["received_bytes_per_s", "received", (v) => bits(v * 8)],
  ["requests_per_s", "requests", (v) => `${count(v)}/s`],
  ["retransmissions_per_s", "retransmissions", (v) => `${count(v)}/s`],
];
const COLUMNS = [["remote", "remote"], ["local", "local"], ["protocol", "protocol"],
  ["state", "state"], ["srtt_us", "round trip (us)"], ["cwnd_bytes", "window (bytes)"],
  ["offloads", "offloads"], ["queue", "queue"]];
const NUMBERS = new Set(["srtt_us", "cwnd_bytes", "queue"]);
const history = Object.fromEntries(FIGURES.map(([key]) => [key, []]));
let last = null, lastAt = 0, sortBy = "remote", ascending = true;

function count(value) {
  for (const [limit, prefix] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= limit) return (value / (prefix === "k" ? 1e3 : limit)).toFixed(1) + " " + prefix;
  }
  return value >= 100 ? value.toFixed(0) : String(Math.round(value * 10) / 10);
}
const bits = (value) => `${count(value)}bit/s`.replace(/(\d)bit/, "$1 bit");

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function svgElement(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function showFigures(event) {
  // Null: another process has the link.
  const parts = FIGURES.filter(([key]) => event[key] !== null).map(([key, name, text]) => {
    const values = history[key];
    values.push(event[key]);
    if (values.length > HISTORY) values.shift();
    const box = element("div", undefined, "figure");
    box.append(element("span", name, "muted"), element("strong", text(event[key])));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${HISTORY} 36`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${name}, last five minutes`);
    const most = Math.max(...values, 1e-9), from = HISTORY - values.length;
    const points = values.map((v, i) => `${from + i} ${(34 - v / most * 32).toFixed(1)}`);
    svgElement("path", { d: "M" + points.join("L"), "vector-effect": "non-scaling-stroke" }, svg);
    box.append(svg);
    return box;
  });
  byId("figures").replaceChildren(...parts);
}

function showLoad(event) {
  const rows = event.load.map(({ thread, share }) => {
    const row = element("div"), meter = element("meter");
    Object.assign(meter, { min: 0, max: 1, value: share });
    meter.setAttribute("aria-label", `load of ${thread}`);
    row.append(element("span", thread), meter, element("span", `${Math.round(share * 100)} %`));
    return row;
  });
  byId("load").replaceChildren(...rows);
}

function shareBar(share) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "share");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const rect = (x, width, kind) =>
    svgElement("rect", { x, y: 0, width, height: 10, class: kind }, svg);
  if (share === null) rect(0, 100, "none");
  else { rect(0, share * 100, "device"); rect(share * 100, 100 - share * 100, "software"); }
  return svg;
}

function showOffloads(event) {
  const rows = event.offloads.map((one) => {
    const row = element("tr"), bar = element("td");
    const text = one.share === null ? "-" : `${(one.share * 100).toFixed(1)} %`;
    bar.append(shareBar(one.share), text);
    const reasons = Object.entries(one.reasons).map(([name, n]) => `${name} ${n}`).join(", ");
    row.append(element("td", one.name), bar, element("td", count(one.device), "n"),
      element("td", count(one.software), "n"), element("td", one.unit),
      element("td", reasons, "reasons"));
    return row;
  });
  byId("offloads").tBodies[0].replaceChildren(...rows);
  const alarms = Object.entries(event.alarms).map(([name, n]) => `${name} ${n}`);
  byId("alarms").textContent = alarms.join(", ") || "none";
  byId("alarms").className = alarms.length ? "bad" : "muted";
}

function showConnections() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const text = (one) => COLUMNS.map(([key]) => one[key] ?? "").join(" ").toLowerCase();
  const shown = last.connections.filter((one) => text(one).includes(wanted));
  const order = (a, b) => {
    const [x, y] = [a[sortBy] ?? "", b[sortBy] ?? ""];
    const less = typeof x === "number" && typeof y === "number" ? x - y
      : String(x).localeCompare(String(y));
    return ascending ? less : -less;
  };
  const rows = shown.sort(order).map((one) => {
    const row = element("tr");
    row.append(...COLUMNS.map(([key]) =>
      element("td", one[key] ?? "-", NUMBERS.has(key) ? "n" : undefined)));
    return row;
  });
  byId("connections").tBodies[0].replaceChildren(...rows);
  byId("count").textContent = `${shown.length} shown, ${last.connections_total} in all`;
}

function heads() {
  const cells = COLUMNS.map(([key, name]) => {
    const head = element("th", undefined, NUMBERS.has(key) ? "n" : undefined);
    const button = element("button", name);
    button.addEventListener("click", () => {
      [sortBy, ascending] = [key, key === sortBy ? !ascending : true];
      if (last) showConnections();
    });
    head.append(button);
    return head;
  });
  byId("connections").tHead.rows[0].replaceChildren(...cells);
}

function age() {
  const status = byId("status"), old = Date.now() - lastAt;
  const stale = !last || old > STALE_MS;
  status.className = stale ? "bad" : "muted";
  status.textContent = !last ? "connecting" : stale
    ? `no data for ${Math.round(old / 1000)} s; reconnecting` : "live";
}

heads();
byId("filter").addEventListener("input", () => last && showConnections());
// The browser reconnects by itself.
new EventSource("/events").addEventListener("message", (message) => {
  [last, lastAt] = [JSON.parse(message.data), Date.now()];
  showFigures(last);
  showLoad(last);
  showOffloads(last);
  showConnections();
  age();
});
setInterval(age, 1000);
