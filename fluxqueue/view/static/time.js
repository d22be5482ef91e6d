// The chart of time: nodes or levels against time. What ran, what runs until when, what is promised.

import {html, useMemo, useRef, useState} from "./vendor/preact-htm.js";
import {Canvas, theme} from "./canvas.js";
import {lookBack, state} from "./state.js";
import {levelsInUse} from "./tree.js";
import {address, remember} from "./address.js";
import {clock, colour, onColour, plain, span} from "./words.js";

const HOUR = 3600_000, LEFT = 120, TOP = 26;
const STEPS = [1, 5, 15, 30, 60, 180, 360, 720, 1440, 2880, 10080].map((minutes) => minutes * 60_000);

/** The distance of two lines of the grid (ms), at least `least` pixels. */
export function stepOf(pixels, least) {
  let step = STEPS.find((one) => one * pixels > least) || STEPS.at(-1);
  while (step * pixels <= least && step < 1e15) step *= 2;
  return step;
}

/**
 * Rows with their bars. A bar has its share of the row's cpu as its height, and keeps its lane. A promise has no
 * amounts, so it has the whole height. It is drawn as an outline, because work may run beside it.
 */
export function rowsOf(nodes, places, level, now) {
  const nameOf = level === null ? (node) => node.name : (node) => node.path[level] || "none";
  const rows = new Map(), rowOfNode = new Map();
  for (const node of nodes) {
    const name = nameOf(node);
    if (!rows.has(name)) rows.set(name, {name, cpu: 0, bars: []});
    rows.get(name).cpu += node.resources.cpu?.[0] || 0;
    rowOfNode.set(node.name, [rows.get(name), node.resources.cpu?.[0] || 0]);
  }
  for (const place of places) {
    const shares = new Map();
    for (const [node, amounts] of [...Object.entries(place.nodes), ...place.held.filter((one) => !(one in place.nodes)).map((one) => [one, null])]) {
      const [row, whole] = rowOfNode.get(node) || [];
      if (!row) continue;
      const cpu = amounts === null || place.isExclusive ? whole : place.kind === "promised" && !amounts.cpu ? whole : amounts.cpu || 0;
      shares.set(row, (shares.get(row) || 0) + cpu);
    }
    const from = Date.parse(place.startsAt);
    const end = place.endedAt ? Date.parse(place.endedAt) : place.until ? Date.parse(place.until) : Infinity;
    for (const [row, cpu] of shares)
      row.bars.push({place, from, end: place.kind === "running" ? Math.max(end, now) : end, share: Math.min(1, cpu / (row.cpu || 1))});
  }
  for (const row of rows.values()) laneBars(row.bars);
  return [...rows.values()];
}

function laneBars(bars) {
  bars.sort((a, b) => a.from - b.from);
  let active = [];
  for (const bar of bars) {
    if (bar.place.kind === "promised") { bar.y = 0; continue; }
    // Starts are whole seconds, so a successor may seem to begin before its predecessor's end.
    active = active.filter((one) => one.end > bar.from + 2000).sort((a, b) => a.y - b.y);
    let y = 0;
    for (const one of active) {
      if (one.y - y >= bar.share - 1e-9) break;
      y = Math.max(y, one.y + one.share);
    }
    bar.y = Math.max(0, Math.min(y, 1 - bar.share));
    active.push(bar);
  }
}

export function TimeChart() {
  const [tip, setTip] = useState(null);
  const [, redraw] = useState(0);
  const inUse = levelsInUse(state.levels, state.nodes);
  const wanted = address().parameters.get("by") || (state.nodes.length > 200 && inUse.length ? inUse.at(-1).name : "node");
  const level = inUse.find((one) => one.name === wanted)?.index ?? null;
  const view = useRef({x: 0, y: 0, k: 1, isMoved: false}).current;
  const now = Date.now();
  const rows = useMemo(() => rowsOf(state.nodes, state.places, level, now), [state.nodes, state.places, level]);
  const promisedIds = useMemo(() => new Set(state.places.filter((one) => one.kind === "promised").map((one) => one.jobid)), [state.places]);
  const estimates = [...state.starts.values()].filter((one) => !promisedIds.has(one.jobid));
  if (!state.me.seesNodes)
    return html`<p class="quiet">You may not list nodes, so there is no chart. The queue shows expected starts.</p>`;
  const by = (name) => { remember({by: name === "node" ? "" : name}); view.isMoved = false; redraw((n) => n + 1); };

  // view.k 1 is three hours for the width; view.x 0 has now at a third of it.
  const scale = (size) => {
    const pixels = (size.width - LEFT) / (3 * HOUR) * view.k;
    const origin = LEFT + view.x + (view.isMoved ? 0 : (size.width - LEFT) / 3);
    return {at: (time) => origin + (time - now) * pixels, time: (x) => now + (x - origin) / pixels, pixels};
  };
  const fix = (size) => {
    if (!view.isMoved) { view.x = 0; view.y = 0; view.k = 1; }
    else if (!view.isFixed) { view.x += (size.width - LEFT) / 3; view.isFixed = true; }
    if (!view.isMoved) view.isFixed = false;
  };
  const rowHeight = (size) => Math.max(level === null ? 14 : 26, Math.min(64, (size.height - TOP - 30) / Math.max(1, rows.length)));
  const draw = (context, view, size) => {
    // Before the page has a layout there is no width, and no step would ever reach its end.
    if (size.width <= LEFT + 40) return;
    fix(size);
    const colours = theme(), {at, time, pixels} = scale(size), h = rowHeight(size);
    lookBack((now - time(LEFT)) / 1000);
    view.y = Math.min(0, Math.max(view.y, size.height - TOP - 30 - h * rows.length));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = stepOf(pixels, 80);
    const zone = new Date().getTimezoneOffset() * 60_000;
    for (let t = Math.ceil((time(LEFT) - zone) / step) * step + zone; at(t) < size.width; t += step) {
      context.strokeStyle = colours.line;
      context.beginPath(); context.moveTo(at(t), TOP - 4); context.lineTo(at(t), size.height); context.stroke();
      context.fillStyle = colours.quiet;
      context.fillText(clock(t, now), at(t) + 3, 12);
    }
    context.save();
    context.beginPath(); context.rect(0, TOP, size.width, size.height - TOP); context.clip();
    const first = Math.max(0, Math.floor(-view.y / h)), last = Math.min(rows.length, Math.ceil((size.height - TOP - view.y) / h));
    for (let n = first; n < last; n++) {
      const row = rows[n], y = TOP + view.y + n * h;
      context.fillStyle = colours.free;
      context.fillRect(LEFT, y + 1, size.width - LEFT, h - 2);
      for (const bar of row.bars) {
        const x0 = Math.max(LEFT, at(bar.from)), x1 = Math.min(size.width, bar.end === Infinity ? size.width : at(bar.end));
        if (x1 <= LEFT || x0 >= size.width) continue;
        const y0 = y + 1 + bar.y * (h - 2), height = Math.max(1.5, bar.share * (h - 2) - 0.5), {kind, jobid} = bar.place;
        const split = kind === "running" ? Math.min(x1, Math.max(x0, at(now))) : x1;
        context.fillStyle = colour(jobid, kind === "ended" ? 0.45 : kind === "promised" ? 0.18 : 1);
        context.fillRect(x0, y0, Math.max(1, split - x0), height);
        if (kind === "running" && x1 > split) {
          context.fillStyle = colour(jobid, bar.end === Infinity ? 0.2 : 0.5);
          context.fillRect(split, y0, x1 - split, height);
        }
        if (kind === "promised") {
          context.strokeStyle = colour(jobid);
          context.setLineDash([4, 3]);
          context.strokeRect(x0 + 0.5, y0 + 0.5, Math.max(1, x1 - x0 - 1), Math.max(1, height - 1));
          context.setLineDash([]);
        }
        if (height > 11 && x1 - x0 > 40 && bar.place.name) {
          context.fillStyle = kind === "running" && split - x0 > 30 ? onColour(jobid) : colours.ink;
          context.fillText(plain(bar.place.name), x0 + 4, y0 + height / 2, x1 - x0 - 8);
        }
      }
      context.fillStyle = colours.paper;
      context.fillRect(0, y, LEFT - 4, h);
      context.fillStyle = colours.ink;
      if (h > 9) context.fillText(plain(row.name), 6, y + h / 2, LEFT - 14);
    }
    context.restore();
    for (const one of estimates) {
      const x = at(Date.parse(one.expectedStart));
      if (x < LEFT || x > size.width) continue;
      context.fillStyle = colour(one.jobid);
      context.beginPath(); context.moveTo(x, TOP - 6); context.lineTo(x + 4, TOP - 1); context.lineTo(x, TOP + 4); context.lineTo(x - 4, TOP - 1); context.fill();
    }
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    context.beginPath(); context.moveTo(at(now), 4); context.lineTo(at(now), size.height); context.stroke();
    context.lineWidth = 1;
  };
  const hit = (x, y, view, size) => {
    const {at} = scale(size), h = rowHeight(size);
    if (Math.abs(y - (TOP - 1)) < 6) {
      const near = estimates.find((one) => Math.abs(at(Date.parse(one.expectedStart)) - x) < 5);
      return near ? {estimate: near} : null;
    }
    const row = rows[Math.floor((y - TOP - view.y) / h)];
    if (!row || x < LEFT || y < TOP) return null;
    const share = ((y - TOP - view.y) % h) / h;
    const bar = row.bars.find((one) => x >= at(one.from) && x <= (one.end === Infinity ? size.width : at(one.end)) && share >= one.y && share <= one.y + Math.max(one.share, 0.1));
    return bar ? {row, bar} : null;
  };
  const onHover = (what, event) => setTip(what ? {...what, x: event.offsetX, y: event.offsetY} : null);
  const onClick = (what) => { const id = what?.bar?.place.jobid ?? what?.estimate?.jobid; if (id) location.hash = `#/job/${id}`; };
  const place = tip?.bar?.place;
  return html`
    <div class="bar">
      <label>Rows <select value=${level === null ? "node" : wanted} onChange=${(event) => by(event.target.value)}>
        ${[{name: "node"}, ...inUse].map(({name}) => html`<option value=${name}>${name}</option>`)}</select></label>
      <button onClick=${() => { view.isMoved = false; redraw((n) => n + 1); }}>now</button>
      <span class="quiet">wheel zooms, drag moves</span>
      <span class="legend"><i class="chip job"></i>runs <i class="chip limit"></i>until its limit <i class="chip promise"></i>promise
        <i class="chip ended"></i>ended ◆ estimate</span>
    </div>
    <div class="canvas"><${Canvas} ...${{draw, hit, onHover, onClick, view, canZoom: "x"}}
      label="Nodes against time: running jobs until their limits, and promised starts" />
      ${tip && html`<div class="tip" style=${{left: `${tip.x + 14}px`, top: `${tip.y + 14}px`}}>
        ${tip.estimate ? html`<b>${plain(tip.estimate.name)}</b><div>expected start ${clock(tip.estimate.expectedStart)}, an estimate</div><small>${plain(tip.estimate.reason)}</small>`
        : html`<b>${place.name ? plain(`${place.namespace}/${place.name}`) : "a job of another namespace"}</b>
          <div>${place.kind} on ${plain(tip.row.name)}${place.kind === "promised" ? "" : ` · ${Math.round(tip.bar.share * 100)} % cpu`}</div>
          <div>${clock(place.startsAt)} – ${place.endedAt ? clock(place.endedAt) : place.until ? `${clock(place.until)} at the latest` : "no limit"}
            ${place.until && !place.endedAt && place.kind === "running" ? ` (${span((Date.parse(place.until) - now) / 1000)} left)` : ""}</div>
          ${place.user && html`<small>${plain(place.user)}, queue ${plain(place.queue)}</small>`}`}
      </div>`}</div>`;
}
