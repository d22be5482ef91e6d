// The queue as a table: filters as you type, sorted and chosen columns, and only visible rows drawn.

import {html, useEffect, useMemo, useRef, useState} from "./vendor/preact-htm.js";
import {state} from "./state.js";
import {address, remember} from "./address.js";
import {clock, colour, plain, since, span} from "./words.js";

const ROW = 30, KEPT = "fluxqueue-columns";
const waits = (job) => ["Pending", "Provisioning", "Reserved", "Held"].includes(job.state);

/** When a job starts, and how sure that is. */
export function startOf(job, now = Date.now()) {
  const found = state.starts.get(job.jobid);
  if (!waits(job) || !found) return {text: "", kind: "", at: Infinity};
  const at = found.promisedStart || found.expectedStart, promised = Boolean(found.promisedStart);
  const left = (Date.parse(at) - now) / 1000;
  const latest = !promised && found.expectedBy ? `, 9 of 10 by ${clock(found.expectedBy)}` : "";
  return {text: `${clock(at)} (in ${span(left)})${latest}`, kind: promised ? "promise" : "estimate", at: Date.parse(at)};
}

/** A reason, in which each job that it names is a link. */
export const linked = (text) => plain(text).split(/\b(job \d+)\b/).map((part, n) => n % 2
  ? html`<a href=${`#/job/${part.slice(4)}`}>${part}</a>` : part);

/** What a priority is the sum of. What is 0 is left out. */
export const partsOf = ({priorityParts: parts}) => parts
  ? [["bounded", "asked"], ["queue", "queue"], ["fairShare", "fair share"]].filter(([key]) => parts[key])
    .map(([key, name]) => `${name} ${parts[key]}`).join(" + ") : "";

const COLUMNS = {
  position: ["#", (job) => job.position ?? "", (job) => job.position ?? 1e9, "number"],
  jobid: ["Job", (job) => job.jobid, (job) => job.jobid, "number"],
  name: ["Name", (job) => html`<i class="chip" style=${{background: colour(job.jobid)}}></i><a href=${`#/job/${job.jobid}`}>${plain(job.name)}</a>`, (job) => job.name],
  namespace: ["Namespace", (job) => plain(job.namespace), (job) => job.namespace],
  user: ["User", (job) => plain(job.user), (job) => job.user],
  queue: ["Queue", (job) => plain(job.queue), (job) => job.queue],
  state: ["State", (job) => html`<span class=${`state ${job.state}`}>${job.state}</span>`, (job) => job.state],
  size: ["Pods", (job) => job.size, (job) => job.size, "number"],
  shape: ["Shape", (job) => html`<span title=${plain(job.shape)}>${plain(job.shape)}</span>`, (job) => job.shape],
  priority: ["Priority", (job) => html`<span title=${partsOf(job)}>${job.priority}</span>`, (job) => job.priority, "number"],
  parts: ["Priority parts", (job) => partsOf(job), (job) => job.priority],
  waited: ["Waits or runs", (job) => since(job.startedAt || job.submittedAt), (job) => -Date.parse(job.startedAt || job.submittedAt), "number"],
  start: ["Expected start", (job) => { const start = startOf(job); return start.text && html`${start.text} <small>${start.kind}</small>`; }, (job) => startOf(job).at],
  nodes: ["Nodes", (job) => plain(job.nodes), (job) => job.nodes || ""],
  reason: ["Reason", (job) => html`<span title=${plain(job.reason)}>${linked(job.reason)}</span>`, (job) => job.reason],
};
const USUAL = ["position", "name", "user", "queue", "state", "shape", "priority", "waited", "start", "reason"];
/** On a telephone, what a user asks first comes first. */
const NARROW = ["name", "start", "reason", "state", "waited", "queue", "user"];

function savedColumns() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT)).filter((one) => one in COLUMNS);
    if (kept.length) return kept;
  } catch { /* none are kept */ }
  return matchMedia("(max-width: 40rem)").matches ? NARROW : USUAL;
}

const textOf = (job) => [job.jobid, job.name, job.namespace, job.user, job.queue, job.state, job.reason, job.kind, job.nodes, job.shape]
  .join(" ").toLowerCase();

export function QueueTable() {
  const given = address().parameters;
  const [filter, setFilter] = useState(given.get("find") || "");
  const [[sort, isDown], setSort] = useState([given.get("sort") || "position", given.get("down") === "1"]);
  const [columns, setColumns] = useState(savedColumns());
  const [top, setTop] = useState(0), box = useRef(), [height, setHeight] = useState(600);
  useEffect(() => {
    const watch = new ResizeObserver(() => setHeight(box.current.clientHeight));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = useMemo(() => {
    const found = state.queue.filter((job) => words.every((word) => textOf(job).includes(word)));
    const [, , key] = COLUMNS[sort] || COLUMNS.position;
    found.sort((a, b) => {
      const x = key(a), y = key(b);
      return (x < y ? -1 : x > y ? 1 : a.jobid - b.jobid) * (isDown ? -1 : 1);
    });
    return found;
  }, [state.queue, state.starts, filter, sort, isDown]);
  const from = Math.max(0, Math.floor(top / ROW) - 10), to = Math.min(rows.length, from + Math.ceil(height / ROW) + 20);
  const choose = (name) => {
    const next = columns.includes(name) ? columns.filter((one) => one !== name) : Object.keys(COLUMNS).filter((one) => one === name || columns.includes(one));
    setColumns(next);
    try { localStorage.setItem(KEPT, JSON.stringify(next)); } catch { /* a private window keeps nothing */ }
  };
  const by = (name) => {
    const next = [name, sort === name && !isDown];
    setSort(next);
    remember({sort: name === "position" ? "" : name, down: next[1] ? "1" : ""});
  };
  const waiting = state.queue.filter(waits).length;
  return html`
    <div class="bar">
      <input type="search" placeholder="Filter: user, queue, state, reason …  ( / )" aria-label="Filter" value=${filter}
        onInput=${(event) => { setFilter(event.target.value); remember({find: event.target.value}); }} />
      <span>${rows.length === state.queue.length ? "" : `${rows.length} of `}${state.queue.length}${state.isCut ? " or more" : ""} jobs,
        ${" "}${waiting} wait</span>
      <details class="columns"><summary>Columns</summary><div>${Object.entries(COLUMNS).map(([name, [title]]) => html`
        <label><input type="checkbox" checked=${columns.includes(name)} onChange=${() => choose(name)} /> ${title === "#" ? "Position" : title}</label>`)}</div></details>
    </div>
    <div class="table" ref=${box} tabindex="0" role="region" aria-label="Jobs" onScroll=${(event) => setTop(event.target.scrollTop)}>
      <table>
        <thead><tr>${columns.map((name) => html`<th class=${`${name} ${COLUMNS[name][3] || ""}`} aria-sort=${sort === name ? (isDown ? "descending" : "ascending") : null}>
          <button onClick=${() => by(name)} aria-label=${name === "position" ? "Position" : null}>${COLUMNS[name][0]}${sort === name ? (isDown ? " ↓" : " ↑") : ""}</button></th>`)}</tr></thead>
        <tbody>
          ${from > 0 && html`<tr aria-hidden="true"><td colspan=${columns.length} style=${{height: `${from * ROW}px`}}></td></tr>`}
          ${rows.slice(from, to).map((job) => html`<tr key=${job.jobid}>${columns.map((name) => html`
            <td class=${`${name} ${COLUMNS[name][3] || ""}`}>${COLUMNS[name][1](job)}</td>`)}</tr>`)}
          ${to < rows.length && html`<tr aria-hidden="true"><td colspan=${columns.length} style=${{height: `${(rows.length - to) * ROW}px`}}></td></tr>`}
        </tbody>
      </table>
      ${!rows.length && html`<p class="quiet">${state.queue.length ? "No job matches the filter." : "No job waits or runs."}</p>`}
    </div>`;
}
