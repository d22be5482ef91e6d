// The time machine: a form for a recorded time and its changes, both charts, and the differences.

import {html, useMemo, useRef, useState} from "./vendor/preact-htm.js";
import {Canvas, theme} from "./canvas.js";
import {post} from "./api.js";
import {state} from "./state.js";
import {address, remember} from "./address.js";
import {rowsOf, stepOf} from "./time.js";
import {amount, clock, colour, plain, span} from "./words.js";

const LEFT = 84, TOP = 24, DAY_MS = 86_400_000;
const POLICIES = ["fcfs", "easy", "hybrid", "conservative"];
const USE = {cpu: "use of cores", gpu: "use of GPUs"};

// The last answer stays while the user looks at other views.
const kept = {told: null};

const local = (time) => {
  const at = new Date(time);
  return new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};

/** One node of each size, with how many there are. */
function shapesOf(nodes) {
  const shapes = new Map();
  for (const node of nodes) {
    const text = Object.entries(node.resources).filter(([name]) => name !== "pods" && name !== "ephemeral-storage")
      .map(([name, [total]]) => amount(name, total)).join(", ");
    shapes.has(text) ? shapes.get(text).count++ : shapes.set(text, {like: node.name, text, count: 1});
  }
  return [...shapes.values()].sort((a, b) => b.count - a.count).slice(0, 50);
}

/** The places of a chart, as the chart of time has them. `first` is where start, end and nodes are. */
function placesOf(told, first) {
  return told.jobs.filter((job) => job[first] !== null).map((job) => ({
    kind: "ended", jobid: job[0], namespace: job[1], name: job[2], user: job[3], queue: job[4], submitted: job[5],
    startsAt: new Date(job[first] * 1000).toISOString(),
    endedAt: new Date((job[first + 1] ?? told.until) * 1000).toISOString(),
    nodes: Object.fromEntries(job[first + 2].map(([node, cpu]) => [told.nodes[node][0], {cpu}])), held: [],
  }));
}

function Chart({title, told, first, count, view, onView, level}) {
  const [tip, setTip] = useState(null);
  const rows = useMemo(() => {
    const nodes = told.nodes.slice(0, count).map(([name, path, cpu]) => ({name, path, resources: {cpu: [cpu, 0]}}));
    return rowsOf(nodes, placesOf(told, first), level, told.until * 1000);
  }, [told, level]);
  const from = told.since * 1000, until = told.until * 1000;
  const scale = (size) => {
    const pixels = (size.width - LEFT - 8) / (until - from) * view.k;
    return {at: (time) => LEFT + view.x + (time - from) * pixels, time: (x) => from + (x - LEFT - view.x) / pixels, pixels};
  };
  const height = (size) => Math.max(9, Math.min(40, (size.height - TOP - 8) / Math.max(1, rows.length)));
  const draw = (context, view, size) => {
    // Before the page has a layout there is no width, and no step would ever reach its end.
    if (size.width <= LEFT + 40) return;
    if (!view.isMoved) Object.assign(view, {x: 0, y: 0, k: 1});
    const colours = theme(), {at, time, pixels} = scale(size), h = height(size);
    view.y = Math.min(0, Math.max(view.y, size.height - TOP - 8 - h * rows.length));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = stepOf(pixels, 90), zone = new Date().getTimezoneOffset() * 60_000;
    for (let t = Math.ceil((time(LEFT) - zone) / step) * step + zone; at(t) < size.width; t += step) {
      context.strokeStyle = colours.line;
      context.beginPath(); context.moveTo(at(t), TOP - 4); context.lineTo(at(t), size.height); context.stroke();
      context.fillStyle = colours.quiet;
      context.fillText(clock(t, from), at(t) + 3, 11);
    }
    context.save();
    context.beginPath(); context.rect(0, TOP, size.width, size.height - TOP); context.clip();
    const top = Math.max(0, Math.floor(-view.y / h)), last = Math.min(rows.length, Math.ceil((size.height - TOP - view.y) / h));
    for (let n = top; n < last; n++) {
      const row = rows[n], y = TOP + view.y + n * h;
      context.fillStyle = colours.free;
      context.fillRect(LEFT, y + 0.5, size.width - LEFT, h - 1);
      for (const bar of row.bars) {
        const x0 = Math.max(LEFT, at(bar.from)), x1 = Math.min(size.width, at(bar.end));
        if (x1 <= LEFT || x0 >= size.width) continue;
        context.fillStyle = colour(bar.place.jobid);
        context.fillRect(x0, y + 0.5 + bar.y * (h - 1), Math.max(0.6, x1 - x0 - 0.4), Math.max(1, bar.share * (h - 1) - 0.3));
      }
      context.fillStyle = colours.paper;
      context.fillRect(0, y, LEFT - 3, h);
      context.fillStyle = colours.ink;
      if (h > 9) context.fillText(plain(row.name), 4, y + h / 2, LEFT - 10);
    }
    context.strokeStyle = colours.accent;
    context.beginPath(); context.moveTo(at(until), TOP); context.lineTo(at(until), size.height); context.stroke();
    context.restore();
  };
  const hit = (x, y, view, size) => {
    const {at} = scale(size), h = height(size), row = rows[Math.floor((y - TOP - view.y) / h)];
    if (!row || x < LEFT || y < TOP) return null;
    const share = ((y - TOP - view.y) % h) / h;
    const bar = row.bars.find((one) => x >= at(one.from) && x <= at(one.end) && share >= one.y && share <= one.y + Math.max(one.share, 0.1));
    return bar ? {row, place: bar.place} : null;
  };
  const place = tip?.place;
  return html`<figure><figcaption>${title}</figcaption><div class="canvas">
    <${Canvas} ...${{draw, hit, view, onView, canZoom: "x"}} onHover=${(what, event) => setTip(what ? {...what, x: event.offsetX, y: event.offsetY} : null)}
      label=${`${title}: nodes against time. The table above has the figures.`} />
    ${tip && html`<div class="tip" style=${{left: `${Math.min(tip.x, 300) + 14}px`, top: `${tip.y + 14}px`}}>
      <b>${plain(`${place.namespace}/${place.name}`)}</b> <small>${plain(place.user)}, queue ${plain(place.queue)}</small>
      <div>${clock(place.startsAt, from)} – ${clock(place.endedAt, from)} on ${plain(tip.row.name)}</div>
      <div>waited ${span(Date.parse(place.startsAt) / 1000 - place.submitted)}</div></div>`}
  </div></figure>`;
}

/** A difference in words and in a colour. `isLess` tells whether less is better. */
function Change({value, text, isLess}) {
  const kind = Math.abs(value) < 0.0005 ? "" : (value < 0) === isLess ? "done" : "error";
  return html`<td class=${`number ${kind}`}>${value < 0 ? "−" : "+"}${text(Math.abs(value))}</td>`;
}

function Differences({told}) {
  const {recorded, replayed} = told, percent = (value) => `${(value * 100).toFixed(1)} %`;
  const none = {median: 0, p95: 0};
  return html`<table class="differences"><caption>${plain(told.changes)}</caption>
    <thead><tr><th scope="col">Wait by size</th><th class="number" scope="col">Jobs</th>
      ${["Median", "95th percentile"].map((name) => html`<th class="number" scope="col">${name}, recorded</th><th class="number" scope="col">replayed</th><th class="number" scope="col">difference</th>`)}</tr></thead>
    <tbody>${Object.entries(recorded.waits).map(([name, was]) => {
      const now = replayed.waits[name] || none;
      return html`<tr><th scope="row">${name}</th><td class="number">${was.jobs}</td>
        ${["median", "p95"].map((key) => html`<td class="number">${span(was[key])}</td><td class="number">${span(now[key])}</td>
          <${Change} value=${now[key] - was[key]} text=${span} isLess=${true} />`)}</tr>`;
    })}
    ${Object.entries(recorded.utilisation).map(([name, was]) => html`<tr><th scope="row">${USE[name]}</th><td></td>
      <td class="number">${percent(was)}</td><td class="number">${percent(replayed.utilisation[name] || 0)}</td>
      <${Change} value=${(replayed.utilisation[name] || 0) - was} text=${percent} isLess=${false} /><td></td><td></td><td></td></tr>`)}
    </tbody></table>
    ${[...told.notes, ...(replayed.unstarted ? [`${replayed.unstarted} jobs of the record cannot start in this replay`] : [])]
      .map((note) => html`<p class="note">${plain(note)}</p>`)}`;
}

function Result({told}) {
  const [, redraw] = useState(0);
  const view = useRef({x: 0, y: 0, k: 1, isMoved: false}).current;
  const inUse = told.levels.map((name, index) => ({name, index})).filter(({index}) => told.nodes.some(([, path]) => path[index]));
  const [by, setBy] = useState(told.nodes.length > 100 && inUse.length ? inUse.at(-1).index : null);
  const shared = {told, view, level: by, onView: () => redraw((n) => n + 1)};
  return html`
    <${Differences} told=${told} />
    <div class="bar"><label>Rows <select value=${by ?? ""} onChange=${(event) => setBy(event.target.value === "" ? null : Number(event.target.value))}>
      <option value="">node</option>${inUse.map(({name, index}) => html`<option value=${index}>${name}</option>`)}</select></label>
      <button type="button" onClick=${() => { view.isMoved = false; redraw((n) => n + 1); }}>whole time</button>
      <span class="quiet">wheel zooms both, drag moves both</span></div>
    <div class="both">
      <${Chart} title="As recorded" first=${6} count=${told.nodes.length - told.added} ...${shared} />
      <${Chart} title="As replayed" first=${9} count=${told.nodes.length} ...${shared} />
    </div>`;
}

/** A time of the form in UTC. Empty for none, which an address may have. */
const zoned = (text) => Number.isNaN(Date.parse(text)) ? "" : new Date(text).toISOString();

/** When a recorded time ends. Empty: now. */
const endOf = (form) => Date.parse(form.until) > Date.now() - 60_000 ? "" : zoned(form.until);

/** The address of a recorded time as a workload log. */
function logOf(form) {
  const given = Object.entries({from: zoned(form.since), until: endOf(form)}).filter(([, value]) => value);
  return "/api/v1/swf?" + new URLSearchParams(given);
}

export function TimeMachine() {
  const given = address().parameters;
  const now = Date.now();
  const shapes = useMemo(() => shapesOf(state.nodes), [state.nodes]);
  const [form, setForm] = useState({
    since: given.get("since") || local(now - DAY_MS), until: given.get("until") || local(now),
    policy: given.get("policy") || "", count: given.get("count") || "0", like: given.get("like") || "", queue: given.get("queue") || "",
    factor: given.get("factor") || "2",
  });
  const [told, setTold] = useState(kept.told), [error, setError] = useState(""), [isBusy, setBusy] = useState(false);
  if (!(state.me.seesAllNamespaces && state.me.seesNodes))
    return html`<p class="quiet">A replay shows the jobs of all namespaces and the nodes. It needs the rights to list both.</p>`;
  const change = (changes) => { setForm((form) => ({...form, ...changes})); remember(changes); };
  const set = (name) => (event) => change({[name]: event.target.value});
  const like = form.like || shapes[0]?.like;
  const run = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      kept.told = await post("/replays", {
        from: zoned(form.since), until: endOf(form), policy: form.policy,
        addNodes: Number(form.count) > 0 && like ? [`${form.count}:${like}`] : [],
        queueWeights: form.queue ? [`${form.queue}=x${form.factor}`] : [],
      });
      setTold(kept.told);
    } catch (refused) {
      setError(refused.message);
    }
    setBusy(false);
  };
  const options = (list) => list.map(([value, text]) => html`<option value=${value}>${plain(text)}</option>`);
  return html`
    <form class="bar" onSubmit=${run}>
      <label>from <input type="datetime-local" required value=${form.since} onInput=${set("since")} /></label>
      <label>until <input type="datetime-local" required value=${form.until} onInput=${set("until")} /></label>
      <label>with policy <select value=${form.policy} onChange=${set("policy")}>${options([["", "as it is"], ...POLICIES.map((one) => [one, one])])}</select></label>
      <label>with <input type="number" min="0" max="2000" class="short more" value=${form.count} onInput=${set("count")} aria-label="number of further nodes" /> more nodes of</label>
      <label><span class="sr">size of further nodes</span><select value=${like} onChange=${set("like")}>${options(shapes.map((one) => [one.like, one.text]))}</select></label>
      <label>weight of <select value=${form.queue} onChange=${set("queue")}>${options([["", "no queue"], ...state.queues.map((one) => [one.name, one.name])])}</select></label>
      ${form.queue && html`<label>times <input type="number" min="1" max="1000" class="short" value=${form.factor} onInput=${set("factor")} /></label>`}
      <button disabled=${isBusy}>${isBusy ? "replays …" : "Replay"}</button>
      <a class="button" href=${logOf(form)} download title="the recorded time, for other simulators">Save as SWF</a>
      ${error && html`<span class="error" role="alert">${plain(error)}</span>`}
    </form>
    ${told ? html`<${Result} told=${told} key=${told.since + told.changes} />`
      : html`<p class="quiet">What would have been with another policy, more nodes, or another weight of a queue? The production
        scheduler runs once more over what was recorded.</p>`}`;
}
