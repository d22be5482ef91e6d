// The map: the tree of levels down to nodes, and in each node what runs there.

import {html, useMemo, useRef, useState} from "./vendor/preact-htm.js";
import {Canvas, theme} from "./canvas.js";
import {lookBack, state} from "./state.js";
import {byNode, tree} from "./tree.js";
import {address, remember} from "./address.js";
import {amount, clock, colour, isGpu, onColour, plain, since, span} from "./words.js";

const CELL = {width: 44, height: 30, gap: 4}, PAD = 8, TITLE = 14;
const AHEAD_MS = 6 * 3600_000;

const RATIOS = [0.8, 1.2, 1.9, 2.6, 3.6], MANY = 2000;

/** Boxes for a tree in the form that a picture of this size shows the largest. */
export function layout(root, width, height) {
  const scale = (plan) => Math.min(width / plan.width, height / plan.height);
  // All forms of a large tree would take too long, and differ little.
  return (root.nodes.length > MANY ? [1.9] : RATIOS).map((ratio) => layoutAs(root, ratio))
    .reduce((best, plan) => (scale(plan) > scale(best) ? plan : best));
}

/** Boxes for a tree, in units of its own: leaves in a grid, groups in shelves of about this ratio. */
function layoutAs(root, ratio) {
  const boxes = [];
  const size = (group) => {
    if (group.node) return {group, width: CELL.width + CELL.gap, height: CELL.height + CELL.gap};
    const parts = group.children.map(size);
    const area = parts.reduce((sum, one) => sum + one.width * one.height, 0);
    const most = Math.max(Math.sqrt(area * ratio), ...parts.map((one) => one.width));
    let x = 0, y = 0, shelf = 0, width = 0;
    for (const one of parts) {
      if (x && x + one.width > most) { x = 0; y += shelf; shelf = 0; }
      one.x = x; one.y = y;
      x += one.width;
      shelf = Math.max(shelf, one.height);
      width = Math.max(width, x);
    }
    return {group, parts, width: width + 2 * PAD, height: y + shelf + PAD + TITLE + PAD};
  };
  const place = (box, x, y, depth) => {
    boxes.push({group: box.group, x, y, width: box.width, height: box.height, depth});
    for (const one of box.parts || []) place(one, x + PAD + one.x, y + PAD + TITLE + one.y, depth + 1);
  };
  const whole = size(root);
  place(whole, 0, 0, 0);
  return {boxes, width: whole.width, height: whole.height};
}

/** What a node's cell shows: shares of its cpu and its GPUs, by job. */
export function fillOf(node, inside) {
  const cpu = node.resources.cpu?.[0] || 0;
  const parts = [], gpus = [];
  let from = 0;
  const [gpu, pair] = Object.entries(node.resources).find(([name, [total]]) => isGpu(name) && total) || [];
  for (const [place, amounts] of inside) {
    const share = amounts === null || place.isExclusive ? 1
      : place.kind === "promised" && !amounts.cpu ? 0.25 : (amounts.cpu || 0) / (cpu || 1);
    parts.push({place, from, to: Math.min(1, from + share)});
    from = Math.min(1, from + share);
    if (gpu) for (let n = 0; n < (amounts?.[gpu] || 0); n++) gpus.push(place);
  }
  const foreign = Math.min(1 - from, (node.resources.cpu?.[1] || 0) / (cpu || 1));
  if (foreign > 0) parts.push({place: null, from, to: from + foreign});
  return {parts, gpus, gpuTotal: pair?.[0] || 0, gpuForeign: pair?.[1] || 0, used: from};
}

let hatch = null;
function hatched(context, colours) {
  if (!hatch || hatch.ink !== colours.quiet) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colours.quiet; pen.lineWidth = 1.4;
    pen.beginPath(); pen.moveTo(-1, 7); pen.lineTo(7, -1); pen.stroke();
    hatch = {ink: colours.quiet, pattern: context.createPattern(tile, "repeat")};
  }
  return hatch.pattern;
}

/** The state of a node, as the list of nodes has it. `isBusy`: jobs have some of it. */
export const stateOf = (node, isBusy) => node.pool ? "provisioning" : !node.isUp ? "down" : !node.isOpen ? (isBusy ? "draining" : "drained")
  : node.taints ? "tainted" : "open";

/** Each state has a colour and a shape of its own: no two differ by the colour alone. */
function drawState(context, state, x, y, w, h, colours) {
  if (state === "open") return;
  context.save();
  context.beginPath(); context.rect(x, y, w, h); context.clip();
  context.lineWidth = 2;
  context.strokeStyle = context.fillStyle = {down: colours.bad, drained: colours.warn, draining: colours.warn, tainted: colours.taint, provisioning: colours.accent}[state];
  context.beginPath();
  if (state === "down") {
    context.globalAlpha = 0.3; context.fillRect(x, y, w, h); context.globalAlpha = 1;
    context.moveTo(x, y); context.lineTo(x + w, y + h); context.moveTo(x + w, y); context.lineTo(x, y + h);
  } else if (state === "drained") {
    for (let at = y + 3; at < y + h; at += 6) { context.moveTo(x, at); context.lineTo(x + w, at); }
  } else if (state === "tainted") {
    const size = Math.min(9, w / 3, h / 2);
    context.moveTo(x + w, y); context.lineTo(x + w - size, y); context.lineTo(x + w, y + size); context.fill();
    context.setLineDash([3, 3]);
  }
  if (state === "provisioning") {
    const size = Math.min(6, w / 6, h / 4), x0 = x + w / 2, y0 = y + h / 2;
    context.moveTo(x0 - size, y0); context.lineTo(x0 + size, y0); context.moveTo(x0, y0 - size); context.lineTo(x0, y0 + size);
    context.stroke(); context.beginPath();
    context.setLineDash([2, 4]);
  }
  if (state === "draining") context.setLineDash([6, 3]);
  context.stroke();
  if (w > 6) context.strokeRect(x + 1, y + 1, w - 2, h - 2);
  context.restore();
}

/** The name of each job on its part of a node, if there is room for some of it. */
function drawNames(context, parts, x, y, w, colours, chosen) {
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  for (const {place, from, to} of parts) {
    const room = (to - from) * w - 6;
    if (!place?.name || room < 24 || (chosen && place.jobid !== chosen)) continue;
    let text = plain(place.name);
    while (text.length > 1 && context.measureText(text).width > room) text = `${text.slice(0, -2)}…`;
    context.fillStyle = place.kind === "promised" ? colours.ink : onColour(place.jobid);
    context.fillText(text, x + from * w + 3, y);
  }
}

function drawNode(context, node, fill, x, y, w, h, colours, chosen, promise) {
  const withGpus = fill.gpuTotal > 0 && h >= 10, bar = withGpus ? h * 0.68 : h;
  context.fillStyle = colours.free;
  context.fillRect(x, y, w, bar);
  for (const {place, from, to} of fill.parts) {
    const dimmed = chosen && (!place || place.jobid !== chosen);
    context.fillStyle = place === null ? hatched(context, colours)
      : colour(place.jobid, place.kind === "promised" ? 0.4 : dimmed ? 0.22 : 1);
    context.fillRect(x + from * w, y, Math.max(1, (to - from) * w), bar);
  }
  if (withGpus) {
    const each = w / fill.gpuTotal;
    for (let n = 0; n < fill.gpuTotal; n++) {
      const place = fill.gpus[n];
      context.fillStyle = place ? colour(place.jobid)
        : n >= fill.gpuTotal - fill.gpuForeign ? hatched(context, colours) : colours.free;
      context.fillRect(x + n * each + 0.5, y + bar + 1, Math.max(1, each - 1), h - bar - 1);
    }
  }
  drawState(context, stateOf(node, fill.parts.some(({place}) => place)), x, y, w, h, colours);
  if (promise && w > 10 && (!chosen || promise.jobid === chosen)) {
    context.setLineDash([4, 3]);
    context.lineWidth = 2;
    context.strokeStyle = colours.paper;
    context.strokeRect(x + 2.5, y + 2.5, w - 5, h - 5);
    context.lineDashOffset = 3;
    context.strokeStyle = colours.ink;
    context.strokeRect(x + 2.5, y + 2.5, w - 5, h - 5);
    context.lineDashOffset = 0;
    context.setLineDash([]);
  }
  if (w > 58 && bar > 32) drawNames(context, fill.parts, x, y + bar - 15, w, colours, chosen);
  if (w > 58) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    const text = plain(node.name), long = Math.min(w - 6, context.measureText(text).width + 6);
    context.globalAlpha = 0.85;
    context.fillStyle = colours.paper;
    context.fillRect(x + 2, y + 2, long, 14);
    context.globalAlpha = 1;
    context.fillStyle = colours.ink;
    context.fillText(text, x + 5, y + 4, long - 6);
  }
}

const STATES = {
  open: "open", down: "down", drained: "drained: takes no new work", draining: "draining: takes no new work, and jobs still run",
  tainted: "tainted: for jobs that tolerate its taints", provisioning: "provisioning: asked for, and yet to come",
};

/** Nodes under way in words, by pool: 4 nodes of pool gpu, expected 17:09. */
export function comingWords(coming) {
  const pools = new Map();
  for (const one of coming) pools.has(one.pool) ? pools.get(one.pool).push(one) : pools.set(one.pool, [one]);
  return [...pools].map(([pool, some]) => `${some.length} ${some.length === 1 ? "node" : "nodes"} of pool ${plain(pool)}, expected ${
    clock(some.map((one) => one.expectedAt).sort().at(-1))}`).join(", ");
}

function Tip({tip, at}) {
  if (!tip) return null;
  const {node, fill, promise} = tip;
  return html`<div class="tip" style=${{left: `${tip.x + 14}px`, top: `${tip.y + 14}px`}}>
    <b>${plain(node.name)}</b> <small>${STATES[stateOf(node, fill.parts.some(({place}) => place))]}${node.path.filter(Boolean).map((one) => ` · ${plain(one)}`)}</small>
    <div>${Object.entries(node.resources).filter(([name]) => name !== "pods" && name !== "ephemeral-storage")
      .map(([name, [total]]) => amount(name, total)).join(" · ")}</div>
    ${fill.parts.map(({place, from, to}) => html`<div>
      <i class="chip" style=${{background: place ? colour(place.jobid) : "var(--quiet)"}}></i>
      ${place === null ? "unmanaged pods" : place.name ? plain(`${place.namespace}/${place.name}`) : "a job of another namespace"}
      <small> ${Math.round((to - from) * 100)} % cpu${place?.until
        ? `, until ${clock(place.until)}${Date.parse(place.until) > at ? ` (${span((Date.parse(place.until) - at) / 1000)})` : ""}`
        : place ? `, since ${since(place.startsAt, at)}, no limit` : ""}</small></div>`)}
    ${promise && html`<div>promised to ${promise.name ? plain(`${promise.namespace}/${promise.name}`) : "a job of another namespace"}
      <small> from ${clock(promise.startsAt)}</small></div>`}
    ${node.pool ? html`<div>pool ${plain(node.pool)}, expected ${clock(node.expectedAt)}${Date.parse(node.expectedAt) > Date.now()
        ? ` (in ${span((Date.parse(node.expectedAt) - Date.now()) / 1000)})` : " and late"}</div>`
      : !fill.parts.length && html`<div>free</div>`}
  </div>`;
}

/** By node name, the first promise that begins after a time. */
function promisesAfter(places, at) {
  const found = new Map();
  for (const place of places)
    if (place.kind === "promised" && Date.parse(place.startsAt) > at)
      for (const name of Object.keys(place.nodes))
        if (!found.has(name) || place.startsAt < found.get(name).startsAt) found.set(name, place);
  return found;
}

/** Draw all boxes of a plan that are in the picture. */
function drawPlan(context, plan, view, size, colours, drawOne) {
  if (!view.isMoved) {
    view.k = Math.min(size.width / plan.width, size.height / plan.height, 4);
    view.x = (size.width - plan.width * view.k) / 2; view.y = (size.height - plan.height * view.k) / 2;
  }
  for (const box of plan.boxes) {
    const x = view.x + box.x * view.k, y = view.y + box.y * view.k;
    const w = box.width * view.k, h = box.height * view.k;
    if (x > size.width || y > size.height || x + w < 0 || y + h < 0) continue;
    if (box.group.node) {
      const gap = CELL.gap * view.k;
      drawOne(box.group.node, x, y, w - gap, h - gap);
      continue;
    }
    if (h < 12) continue;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(x + 2.5, y + 2.5, w - 5, h - 5);
    if (TITLE * view.k > 7) {
      context.fillStyle = colours.quiet;
      context.font = `${Math.min(14, 11 * view.k)}px system-ui, sans-serif`;
      context.textBaseline = "top";
      const name = plain(box.group.name), kind = box.group.kind && box.group.kind !== "cluster" && !name.startsWith(box.group.kind) ? `${box.group.kind} ` : "";
      context.fillText(`${kind}${name} · ${box.group.nodes.length}`, x + 8 * view.k, y + 5 * view.k, w - 10);
    }
  }
}

/** A small map of the cluster with one job on it, as it runs, ran, or is promised. */
export function SmallMap({place}) {
  const view = useRef({x: 0, y: 0, k: 1, isMoved: false}).current;
  const plan = useMemo(() => layout(tree(state.levels, state.nodes), 600, 200), [state.nodes]);
  const fills = useMemo(() => {
    const inside = byNode([{...place, kind: "running", endedAt: null, until: null}], Date.parse(place.startsAt), Date.now());
    return new Map(state.nodes.map((node) => [node.name, fillOf(node, (inside.get(node.name) || [])
      .map(([one, amounts]) => [one, place.kind === "promised" ? null : amounts]))]));
  }, [state.nodes, place.id, place.kind]);
  const draw = (context, view, size) => {
    const colours = theme();
    drawPlan(context, plan, view, size, colours,
      (node, x, y, w, h) => drawNode(context, node, fills.get(node.name), x, y, w, h, colours, place.jobid));
  };
  const count = Object.keys(place.nodes).length;
  return html`<div class="small"><${Canvas} ...${{draw, hit: () => null, view}}
    label=${`Map of ${state.nodes.length} nodes with ${count} of this job. The list of them follows.`} /></div>`;
}

export function ClusterMap() {
  const [tip, setTip] = useState(null);
  const [offset, setOffset] = useState(Number(address().parameters.get("at")) || 0);
  const chosen = Number(address().parameters.get("job")) || null;
  const view = useRef({x: 0, y: 0, k: 1, isMoved: false}).current;
  // Nodes under way have their place in the tree. Once they have come, they are nodes like any other.
  const nodes = useMemo(() => [...state.nodes, ...state.coming], [state.nodes, state.coming]);
  const plan = useMemo(() => layout(tree(state.levels, nodes), innerWidth, innerHeight - 130), [nodes]);
  const now = Date.now(), at = now + offset * 60_000;
  const inside = useMemo(() => byNode(state.places, at, now), [state.places, offset]);
  const promises = useMemo(() => promisesAfter(state.places, at), [state.places, offset]);
  const fills = useMemo(() => new Map(nodes.map((node) => [node.name, fillOf(node, inside.get(node.name) || [])])),
    [nodes, inside]);
  if (!state.me.seesNodes)
    return html`<p class="quiet">You may not list nodes, so there is no map. The right to list nodes shows it.</p>`;
  if (!nodes.length) return html`<p class="quiet">The queue knows no nodes yet.</p>`;

  const draw = (context, view, size) => {
    const colours = theme();
    drawPlan(context, plan, view, size, colours, (node, x, y, w, h) =>
      drawNode(context, node, fills.get(node.name), x, y, w, h, colours, chosen, promises.get(node.name)));
  };
  const hit = (x, y, view) => {
    const wx = (x - view.x) / view.k, wy = (y - view.y) / view.k;
    const box = plan.boxes.find((one) => one.group.node && wx >= one.x && wx < one.x + CELL.width
      && wy >= one.y && wy < one.y + CELL.height);
    if (!box) return null;
    const fill = fills.get(box.group.node.name);
    const share = (wx - box.x) / CELL.width;
    return {node: box.group.node, fill, promise: promises.get(box.group.node.name), part: fill.parts.find(({from, to}) => share >= from && share < to)};
  };
  const onHover = (what, event) => setTip(what ? {...what, x: event.offsetX, y: event.offsetY} : null);
  const onClick = (what) => { if (what?.part?.place?.jobid ?? what?.promise?.jobid) location.hash = `#/job/${what.part?.place?.jobid ?? what.promise.jobid}`; };
  const counts = {};
  for (const node of nodes) {
    const name = stateOf(node, fills.get(node.name).parts.some(({place}) => place));
    counts[name] = (counts[name] || 0) + 1;
  }
  const busy = [...fills.values()].filter((fill) => fill.used > 0).length;
  const back = Math.round(state.historyS / 60);
  const move = (minutes) => { setOffset(minutes); remember({at: minutes || ""}); };
  return html`
    <div class="bar">
      <span>${state.nodes.length} nodes, ${busy} with our work,
        ${" "}${["down", "draining", "drained", "tainted", "provisioning"].map((name) => [name, counts[name] || 0]).filter(([name, count]) => count || name === "down").map(([name, count]) => `${count} ${name}`).join(", ")}</span>
      <label>at <input type="range" min=${-back} max=${AHEAD_MS / 60_000} step="1" value=${offset}
        aria-label="time of the map" onInput=${(event) => move(Number(event.target.value))} />
        <output>${offset === 0 ? "now" : `${clock(at)} (${offset > 0 ? "in " : ""}${span(Math.abs(offset) * 60)}${offset < 0 ? " ago" : ""})`}</output></label>
      ${offset !== 0 && html`<button onClick=${() => move(0)}>now</button>`}
      ${offset < -back / 2 && html`<button onClick=${() => lookBack(state.historyS + 1)}>further back</button>`}
      ${chosen && html`<button onClick=${() => { remember({job: ""}); setTip(null); setOffset(offset); dispatchEvent(new HashChangeEvent("hashchange")); }}>all jobs</button>`}
      <span class="legend"><i class="chip free"></i>free <i class="chip job"></i>job
        <i class="chip promised"></i>promised <i class="chip hatch"></i>unmanaged <i class="chip down"></i>down <i class="chip draining"></i>draining
        <i class="chip drained"></i>drained <i class="chip tainted"></i>tainted
        <i class="chip provisioning"></i>provisioning</span>
      ${state.coming.length > 0 && html`<span class="coming">${comingWords(state.coming)}</span>`}
    </div>
    <div class="canvas"><${Canvas} ...${{draw, hit, onHover, onClick, view}}
      label=${`Map of ${state.nodes.length} nodes. The queue lists the same jobs as text.`} />
      <${Tip} tip=${tip} at=${at} /></div>`;
}
