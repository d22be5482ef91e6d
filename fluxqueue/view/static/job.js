// One job: its states with the actors, its places, its pods with logs, Events, and what to do with it.

import {html, useEffect, useRef, useState} from "./vendor/preact-htm.js";
import {get, list, post} from "./api.js";
import {refresh, state, subscribe} from "./state.js";
import {amount, clock, colour, plain, since, span} from "./words.js";
import {SmallMap} from "./map.js";
import {linked, partsOf, startOf} from "./queue.js";

const ENDED = new Set(["Completed", "Failed", "Cancelled"]), HAS_NODES = new Set(["Allocated", "Running"]);
const VERBS = [
  ["hold", "Hold", (job) => ["Pending", "Provisioning", "Reserved"].includes(job.state), "keeps it from starting until it is released"],
  ["release", "Release", (job) => job.state === "Held", "returns it to its place in the queue"],
  ["requeue", "Requeue", (job) => HAS_NODES.has(job.state), "ends its pods and returns it to the queue. What it has not stored is lost"],
  ["priority", "Priority …", (job) => ["Pending", "Provisioning", "Reserved", "Held"].includes(job.state), "changes its place in the queue"],
  ["cancel", "Cancel", (job) => !ENDED.has(job.state), "deletes the workload and its pods"],
];

function Actions({job, onDone}) {
  const dialog = useRef();
  const [asked, setAsked] = useState(null), [value, setValue] = useState(""), [said, setSaid] = useState(null);
  const open = (verb) => { setAsked(verb); setValue(String(job.priority)); setSaid(null); dialog.current.showModal(); };
  const act = async (event) => {
    event.preventDefault();
    dialog.current.close();
    const [verb] = asked;
    try {
      await post(`/jobs/${job.jobid}/${verb}`, verb === "priority" ? {value: Number(value)} : {});
      setSaid({text: `${verb} requested`});
      onDone();
    } catch (refused) {
      setSaid({text: refused.message, isError: true});
    }
  };
  return html`<div class="actions">
    ${VERBS.filter(([, , isFit]) => isFit(job)).map((verb) => html`<button class=${verb[0]} onClick=${() => open(verb)}>${verb[1]}</button>`)}
    ${said && html`<span class=${said.isError ? "error" : "done"} role="status">${plain(said.text)}</span>`}
    <dialog ref=${dialog} aria-labelledby="asked">${asked && html`<form onSubmit=${act}>
      <h2 id="asked">${asked[1].replace(" …", "")} job ${job.jobid}?</h2>
      <p><b>${plain(job.namespace)}/${plain(job.name)}</b>: this ${asked[3]}.</p>
      ${asked[0] === "priority" && html`<label>Priority <input type="number" step="1" value=${value} onInput=${(event) => setValue(event.target.value)} required /></label>`}
      <div class="choices"><button type="submit" class=${asked[0]}>${asked[1].replace(" …", "")}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Back</button></div></form>`}</dialog>
  </div>`;
}

function Explain({job}) {
  const [answer, setAnswer] = useState(null);
  const ask = async () => {
    setAnswer({text: "asks …"});
    try {
      setAnswer({status: (await post(`/jobs/${job.jobid}/explain`)).item.status});
    } catch (refused) { setAnswer({text: refused.message}); }
  };
  const status = answer?.status;
  return html`<section><h2>Why, and when</h2>
    <p>${job.reason ? linked(job.reason) : "–"}</p>
    <p>${startOf(job).text && html`Expected start ${startOf(job).text}, <b>${startOf(job).kind}</b>.`}</p>
    <button onClick=${ask}>Explain</button>
    ${answer && !status && html`<p>${plain(answer.text)}</p>`}
    ${status && html`<p><b>${plain(status.verdict || status.reason)}</b>${status.expectedStart ? ` · ${clock(status.expectedStart)}` : ""}${status.certainty ? ` · ${plain(status.certainty)}` : ""}: ${linked(status.message)}</p>
      ${status.variants?.length > 0 && html`<table><thead><tr><th>With</th><th>it starts</th></tr></thead><tbody>
        ${status.variants.map((one) => html`<tr><td>${plain(one.text)}</td><td>${one.expectedStart ? clock(one.expectedStart) : plain(one.verdict)}</td></tr>`)}</tbody></table>`}
      ${status.blockers?.length > 0 && html`<p>In the way: ${status.blockers.map((one, n) => html`${n ? "; " : ""}${!one.name ? "a job of another namespace"
        : one.jobid ? html`<a href=${`#/job/${one.jobid}`}>${plain(one.name)}</a>` : plain(one.name)} on ${plain(one.nodes)}${one.until ? ` until ${clock(one.until)}` : ""}`)}</p>`}`}
  </section>`;
}

function Pods({job}) {
  const [pods, setPods] = useState(null), [log, setLog] = useState(null), [error, setError] = useState("");
  useEffect(() => {
    get(`/jobs/${job.jobid}/pods`).then((found) => { setPods(found.item); setError(""); }, (refused) => setError(refused.message));
  }, [job.jobid, job.state, state.readAt]);
  const read = async (pod, container) => {
    setLog({pod, container, text: "reads …"});
    try { setLog({pod, container, text: (await get(`/jobs/${job.jobid}/log`, {pod, container})).item}); }
    catch (refused) { setLog({pod, container, text: refused.message}); }
  };
  return html`<section><h2>Pods</h2>
    ${error && html`<p class="error">${plain(error)}</p>`}
    ${pods && !pods.length && html`<p class="quiet">It has no pods now.</p>`}
    ${pods?.length > 0 && html`<table><thead><tr><th>Pod</th><th>Phase</th><th>Node</th><th>Since</th><th></th></tr></thead><tbody>
      ${pods.map((pod) => html`<tr><td>${plain(pod.name)}</td><td><span class=${`state ${pod.phase}`}>${pod.isGated ? "Gated" : pod.phase}</span></td>
        <td>${plain(pod.node || "")}</td><td>${since(pod.startedAt)}</td>
        <td>${pod.containers.map((one) => html`<button onClick=${() => read(pod.name, one)}>log${pod.containers.length > 1 ? ` ${plain(one)}` : ""}</button>`)}
          ${pod.phase === "Pending" && html`<small>${plain(pod.why)}</small>`}</td></tr>`)}</tbody></table>`}
    ${log && html`<h3>Log of ${plain(log.pod)} <button onClick=${() => setLog(null)} aria-label="close the log">×</button></h3><pre class="log" tabindex="0">${plain(log.text).replaceAll("\\u000a", "\n").replaceAll("\\u0009", "\t") || "(empty)"}</pre>`}
  </section>`;
}

function Slots({job}) {
  const mine = state.places.filter((one) => one.jobid === job.jobid && one.kind !== "ended");
  const last = mine.length ? mine : state.places.filter((one) => one.jobid === job.jobid).slice(-1);
  if (!last.length) return null;
  return html`<section><h2>${last[0].kind === "promised" ? "Promised nodes" : last[0].kind === "ended" ? "Nodes it had" : "Nodes"} <small><a href=${`#/map?job=${job.jobid}`}>on the map</a></small></h2>
    ${state.me.seesNodes && state.nodes.length > 0 && html`<${SmallMap} place=${last[0]} />`}
    <div class="slots">${last.flatMap((place) => Object.entries(place.nodes).map(([node, amounts]) => html`<div class="slot" style=${{borderColor: colour(job.jobid)}}>
      <b>${plain(node)}</b>${Object.entries(amounts).filter(([name]) => name !== "pods").map(([name, value]) => html`<small>${amount(name, value)}</small>`)}</div>`))}</div></section>`;
}

export function JobPage({id}) {
  const [job, setJob] = useState(null), [lines, setLines] = useState([]), [events, setEvents] = useState([]);
  const [object, setObject] = useState(null), [error, setError] = useState("");
  const read = async () => {
    try {
      const found = await get(`/jobs/${id}`);
      setJob(found);
      setError("");
      const [history, told, whole] = await Promise.allSettled([
        list("/history", {namespace: found.namespace, job: String(found.jobid)}, 500), get(`/jobs/${id}/events`), get(`/jobs/${id}/object`)]);
      setLines(history.value || []);
      setEvents(told.value?.item || []);
      setObject(whole.value?.item || null);
    } catch (refused) { setError(refused.message); }
  };
  useEffect(() => {
    read();
    let readAt = state.readAt;
    return subscribe(() => { if (state.readAt !== readAt) { readAt = state.readAt; read(); } });
  }, [id]);
  if (error) return html`<p class="error">${plain(error)}</p>`;
  if (!job) return html`<p class="quiet">Loading …</p>`;
  const parts = partsOf(job);
  return html`<article class="job">
    <h1><i class="chip" style=${{background: colour(job.jobid)}}></i>${plain(job.name)} <small>job ${job.jobid} · ${plain(job.kind)} in ${plain(job.namespace)}</small></h1>
    <p><span class=${`state ${job.state}`}>${job.state}</span> ${plain(job.user)} · queue <a href=${`#/queue?find=${encodeURIComponent(job.queue)}`}>${plain(job.queue)}</a> ·
      ${" "}${plain(job.shape) || `${job.size} ${job.size === 1 ? "pod" : "pods"}`} · priority ${job.priority}${parts ? ` (${parts})` : ""}
      ${job.nodes && html` · on ${plain(job.nodes)}`} · submitted ${clock(job.submittedAt)}${job.requeues ? ` · requeued ${job.requeues} times` : ""}</p>
    <${Actions} job=${job} onDone=${() => { refresh(); read(); }} />
    ${!ENDED.has(job.state) && !HAS_NODES.has(job.state) && html`<${Explain} job=${job} />`}
    <${Slots} job=${job} />
    <section><h2>History</h2><ol class="timeline">${lines.map((line, n) => html`<li>
      <time datetime=${line.at} title=${line.at}>${clock(line.at)}</time> <span class=${`state ${line.event}`}>${plain(line.event)}</span>
      ${n > 0 && html`<small> after ${span((Date.parse(line.at) - Date.parse(lines[n - 1].at)) / 1000)}</small>`}
      <span> by ${plain(line.actor)}</span> <span class="quiet">${plain(line.detail?.reason || "")}</span></li>`)}</ol></section>
    <${Pods} job=${job} />
    ${events.length > 0 && html`<section><h2>Events</h2><table><tbody>${events.map((one) => html`<tr><td>${clock(one.at)}</td><td>${plain(one.reason)}</td><td>${plain(one.message)}</td></tr>`)}</tbody></table></section>`}
    ${(object?.spec?.jobspec || object?.status?.R) && html`<section><h2>Documents</h2>
      ${[["Jobspec", object.spec?.jobspec], ["R", object.status?.R]].map(([name, text]) => text && html`<details><summary>${name}</summary><pre tabindex="0">${plain(pretty(text)).replaceAll("\\u000a", "\n")}</pre></details>`)}</section>`}
  </article>`;
}

function pretty(text) {
  if (typeof text !== "string") return JSON.stringify(text, null, 2);
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
