// Queues and people: rules, limits and fair shares against use, and waits and use over time.

import {html, useEffect, useMemo, useRef, useState} from "./vendor/preact-htm.js";
import uPlot from "./vendor/uplot.js";
import {list} from "./api.js";
import {state} from "./state.js";
import {address, remember} from "./address.js";
import {clock, isGpu, plain, span, trim} from "./words.js";
import {theme} from "./canvas.js";

const PERIODS = {day: ["1d", "hour"], week: ["7d", "hour"], month: ["30d", "day"]};
const LENGTHS = {day: 86_400, week: 7 * 86_400, month: 30 * 86_400};
const CLASSES = ["1 node", "2 to 4 nodes", "5 to 16 nodes", "over 16 nodes"];
const HUES = ["#2f7fb5", "#c98421", "#7a58b0", "#2f9277"];

function Chart({title, data, series, format, range, empty = "No run ended in this time."}) {
  const box = useRef();
  useEffect(() => {
    if (!data[0].length) return undefined;
    const colours = theme();
    const axis = {stroke: colours.quiet, grid: {stroke: colours.line, width: 1}, ticks: {stroke: colours.line}};
    const plot = new uPlot({
      width: box.current.clientWidth, height: 190, cursor: {y: false},
      series: [{value: (_, at) => at === null ? "–" : clock(at * 1000)}, ...series.map((one) => ({...one, value: (_, value) => value === null || value === undefined ? "–" : format(value)}))],
      axes: [{...axis, space: 96, values: (_, ticks) => ticks.map((at) => clock(at * 1000))}, {...axis, size: 64, values: (_, ticks) => ticks.map(format)}],
      scales: {x: {range: () => range}, y: {range: (_, low, high) => [0, Math.max(high * 1.1, 1e-9)]}},
    }, data, box.current);
    const resize = new ResizeObserver(() => plot.setSize({width: box.current.clientWidth, height: 190}));
    resize.observe(box.current);
    return () => { resize.disconnect(); plot.destroy(); };
  }, [data]);
  return html`<figure><figcaption>${title}</figcaption><div ref=${box}></div>${!data[0].length && html`<p class="quiet">${empty}</p>`}</figure>`;
}

function Bar({value, most, label}) {
  const share = most ? Math.min(1, value / most) : 0;
  return html`<div class="meter" role="meter" aria-valuenow=${value} aria-valuemax=${most} aria-label=${label}>
    <i style=${{width: `${share * 100}%`}} class=${share >= 1 ? "full" : ""}></i><span>${label}: ${trim(value)} of ${trim(most)} (${Math.round(share * 100)} %)</span></div>`;
}

const cpuOf = (text) => /m$/.test(text) ? parseFloat(text) / 1000 : Number(text);

function QueueCard({queue, use}) {
  const sum = (key) => use.reduce((all, one) => all + one[key], 0);
  const {total = {}, perUser = {}, perJob = {}} = queue.spec.limits || {};
  const shared = use.filter((one) => one.factor !== null);
  return html`<section class="card"><h2>${plain(queue.name)}</h2>
    <p>${sum("running")} run, ${sum("waiting")} wait${sum("held") ? `, ${sum("held")} held` : ""} · ${trim(sum("cpu") / 1000)} cpu
      ${queue.spec.policy ? ` · policy ${plain(queue.spec.policy)}` : ""}
      ${queue.priority ? ` · priority ${queue.priority}` : ""}</p>
    ${queue.fault && html`<p class="error">${plain(queue.fault)}</p>`}
    ${total.jobs && html`<${Bar} label="running jobs" value=${sum("running")} most=${total.jobs} />`}
    ${total.nodes && html`<${Bar} label="nodes" value=${sum("nodes")} most=${total.nodes} />`}
    ${total.cpu && html`<${Bar} label="cpu" value=${sum("cpu") / 1000} most=${cpuOf(String(total.cpu))} />`}
    <table><thead><tr><th>User</th><th class="number">Runs</th><th class="number">Waits</th><th class="number">cpu</th>${shared.length > 0 && html`<th>Fair share</th>`}</tr></thead><tbody>
      ${use.map((one) => html`<tr><td><a href=${`#/queue?find=${encodeURIComponent(one.user)}`}>${plain(one.user)}</a></td><td class="number">${one.running}</td><td class="number">${one.waiting}</td><td class="number">${trim(one.cpu / 1000)}</td>
        ${shared.length > 0 && html`<td>${one.factor !== null && html`<div class="share" title=${`factor ${one.factor.toFixed(2)}: 1 is nothing used, 0.5 exactly the share`}><i style=${{width: `${Math.min(1, one.factor) * 100}%`}}></i><span>${one.factor.toFixed(2)} · ${trim(one.usedHours)} h used</span></div>`}</td>`}</tr>`)}
      </tbody></table>
    ${[["user", perUser], ["job", perJob]].map(([what, limit]) => Object.keys(limit).length > 0 && html`
      <p class="quiet">Limits of each ${what}: ${Object.entries(limit).map(([name, value]) => `${name} ${plain(value)}`).join(", ")}</p>`)}</section>`;
}

export function People() {
  const [period, setPeriod] = useState(address().parameters.get("over") in PERIODS ? address().parameters.get("over") : "day");
  const [rows, setRows] = useState([]), [promises, setPromises] = useState([]), [used, setUsed] = useState([]), [error, setError] = useState("");
  useEffect(() => {
    const [since, step] = PERIODS[period];
    list("/accounting/waits", {since, step}).then((found) => { setRows(found); setError(""); }, (refused) => setError(refused.message));
    list("/accounting/utilisation", {since, step}).then(setUsed, (refused) => setError(refused.message));
    list("/accounting/promises", {since, step}).then(setPromises, (refused) => setError(refused.message));
  }, [period, Math.floor(state.readAt / 30_000)]);
  const {times, at} = useMemo(() => {
    const times = [...new Set(rows.map((one) => Date.parse(one.at) / 1000))].sort((a, b) => a - b);
    const found = new Map(rows.map((one) => [`${Date.parse(one.at) / 1000} ${one.sizeClass}`, one]));
    return {times, at: (time, size) => found.get(`${time} ${size}`)};
  }, [rows]);
  const sizes = CLASSES.filter((size) => rows.some((one) => one.sizeClass === size));
  const hue = (size) => HUES[CLASSES.indexOf(size)];
  const now = Date.now() / 1000, range = [now - LENGTHS[period], now];
  const gpuOf = (node) => Object.entries(node.resources).reduce((sum, [name, [total]]) => sum + (isGpu(name) ? total : 0), 0);
  const cores = state.nodes.reduce((sum, node) => sum + (node.resources.cpu?.[0] || 0), 0) / 1000;
  const gpus = state.nodes.reduce((sum, node) => sum + gpuOf(node), 0);
  const waits = useMemo(() => [times, ...sizes.flatMap((size) => [times.map((t) => at(t, size)?.waitSeconds ?? null), times.map((t) => at(t, size)?.waitP95Seconds ?? null)])], [rows]);
  const through = useMemo(() => [times, ...sizes.map((size) => times.map((t) => at(t, size)?.runs || 0))], [rows]);
  // A step counts for the part of it that lies within the time: the first and the last one are cut.
  const work = useMemo(() => {
    const seconds = PERIODS[period][1] === "hour" ? 3600 : 86400;
    const shares = (key, all) => used.map((one) => {
      const at = Date.parse(one.at) / 1000, hours = (Math.min(at + seconds, now) - Math.max(at, range[0])) / 3600;
      return all && hours > 0 ? Math.min(100, one[key] / (all * hours) * 100) : one[key];
    });
    return [used.map((one) => Date.parse(one.at) / 1000), shares("cpuHours", cores), ...(gpus ? [shares("gpuHours", gpus)] : [])];
  }, [used, cores, gpus]);
  const promised = useMemo(() => [promises.map((one) => Date.parse(one.at) / 1000), ...[(one) => one.kept, (one) => one.excused, (one) => one.promised - one.kept - one.excused]
    .map((count) => promises.map(count))], [promises]);
  const total = (key) => promises.reduce((all, one) => all + one[key], 0);
  const queues = state.queues.map((queue) => [queue, state.use.filter((one) => one.queue === queue.name)]);
  return html`
    <div class="bar"><label>Over <select value=${period} onChange=${(event) => { setPeriod(event.target.value); remember({over: event.target.value === "day" ? "" : event.target.value}); }}>
      ${Object.keys(PERIODS).map((name) => html`<option value=${name}>a ${name}</option>`)}</select></label>
      ${error && html`<span class="error">${plain(error)}</span>`}</div>
    <div class="charts">
      <${Chart} title="Wait by size: median (line) and 95th percentile (dashed)" data=${waits} format=${span} range=${range}
        series=${sizes.flatMap((size) => [{label: size, stroke: hue(size), width: 2, points: {size: 5}}, {label: `${size}, p95`, stroke: hue(size), dash: [5, 4], points: {size: 3}}])} />
      <${Chart} title=${`Runs that ended, per ${PERIODS[period][1]}`} data=${through} format=${trim} range=${range} series=${sizes.map((size) => ({label: size, stroke: hue(size), width: 2, points: {size: 5}}))} />
      <${Chart} title=${cores ? `Use of all cores${gpus ? " and GPUs" : ""} by jobs` : "Core-hours of jobs"} data=${work} empty="No job ran in this time." range=${range} format=${(value) => cores ? `${trim(value)} %` : trim(value)} series=${[{label: "cores", stroke: HUES[0], width: 2, fill: "rgb(47 127 181 / .15)", points: {size: 5}}, ...(gpus ? [{label: "GPUs", stroke: HUES[1], width: 2, points: {size: 5}}] : [])]} />
      <${Chart} title=${total("promised") ? `Promised starts: ${trim(total("kept") / total("promised") * 100)} % of ${total("promised")} kept` : "Promised starts"} data=${promised} format=${trim} range=${range} empty="No run with a promised start ended in this time."
        series=${[["kept", HUES[3]], ["later, with a reason", HUES[1]], ["later, without a reason", "#c23b3b"]].map(([label, stroke]) => ({label, stroke, width: 2, points: {size: 5}}))} />
    </div>
    <div class="cards">${queues.map(([queue, use]) => html`<${QueueCard} queue=${queue} use=${use} key=${queue.name} />`)}</div>`;
}
