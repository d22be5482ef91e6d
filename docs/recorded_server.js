// Stands in for server.js of the window: a recorded day, played in minutes, answers all requests.
// recorded_window.py serves it with the recording, so the views are those of a cluster.

const SPEED = 60, TICK_MS = 2000;

export class Refused extends Error {}

/** {nodes, jobs: [{jobid, name, user, queue, size, submitted, started, ended, until, nodes}]}. */
const day = await (await fetch("/window/day.json")).json();
const began = Date.now();
const first = day.playFrom * 1000, length = (day.playTo - day.playFrom) * 1000;
// The day is shown as if it were today: its time now is the time of the clock.
const position = () => first + ((Date.now() - began) * SPEED) % length;
const iso = (seconds) => new Date(Date.now() + seconds * 1000 - position()).toISOString();

export async function ask(path, options = {}) {
  if (path.endsWith("/replays")) return replay(position() / 1000);
  if ((options.method || "GET") !== "GET" && !path.endsWith("/explain")) throw new Refused("This is a recording: nothing can be changed.");
  const url = new URL(path, location.href);
  return view(day, position() / 1000, iso, url.pathname.replace("/api/v1", ""), url.searchParams);
}

export function follow(onChange, onState) {
  onState(true);
  const timer = setInterval(() => onChange(null), TICK_MS);
  return () => clearInterval(timer);
}

/** The recorded replay, with its times as if it were today. */
async function replay(now) {
  const told = await (await fetch("/window/replay.json")).json();
  const shift = Math.round(Date.now() / 1000 - now), later = (time) => time === null ? null : time + shift;
  const jobs = told.jobs.map((job) => job.map((one, n) => [5, 6, 7, 9, 10].includes(n) ? later(one) : one));
  return {...told, since: later(told.since), until: later(told.until), jobs};
}

/** The last entry of a list of [time, …] that was made before `now`. */
const lastAt = (list, now) => list.findLast(([at]) => at <= now);

/** Why a job waits, as the scheduler said it. Times in it are seconds of the recording. */
const reasonAt = (job, now, iso) => (lastAt(job.outlooks, now)?.[2] || "waits for its turn")
  .replace(/@(\d+)@/g, (_, seconds) => `${iso(Number(seconds)).slice(11, 16)} UTC`);

/** The start that is promised to a job: its nodes, and from when until when. */
function promiseAt(job, now) {
  const [, from, until, nodes] = now < job.started && lastAt(job.promises, now) || [];
  return nodes?.length ? {from: Math.max(from, now), until, nodes} : null;
}

const startAt = (job, now) => promiseAt(job, now)?.from ?? lastAt(job.outlooks, now)?.[1] ?? null;

function jobAt(job, now, iso, position) {
  const state = now >= job.ended ? "Completed" : now >= job.started ? "Running" : promiseAt(job, now) ? "Reserved" : "Pending";
  const waits = now < job.started, start = waits ? startAt(job, now) : null;
  return {
    jobid: job.jobid, namespace: job.user, name: job.name, kind: "Job", fluxJob: `${job.name}-job`, user: job.user,
    queue: job.queue, state, size: job.size, shape: job.shape, priority: 0, priorityParts: null, requeues: 0, position,
    reason: waits ? reasonAt(job, now, iso) : "", nodes: waits ? null : Object.keys(job.nodes).join(","),
    expectedStart: start && iso(start), heldBy: null, blockedBy: null,
    submittedAt: iso(job.submitted), allocatedAt: waits ? null : iso(job.started),
    startedAt: waits ? null : iso(job.started), endedAt: now >= job.ended ? iso(job.ended) : null,
  };
}

const placeAt = (job, now, iso) => ({
  id: job.jobid, jobid: job.jobid, namespace: job.user, name: job.name, user: job.user, queue: job.queue, state: "Running",
  kind: now >= job.ended ? "ended" : "running", startsAt: iso(job.started), until: iso(job.until),
  endedAt: now >= job.ended ? iso(job.ended) : null, isExclusive: false, held: [], nodes: job.nodes,
});

const promiseOf = (job, now, iso) => {
  const {from, until, nodes} = promiseAt(job, now);
  return {...placeAt(job, now, iso), id: 1e6 + job.jobid, state: "Reserved", kind: "promised", startsAt: iso(from), until: iso(until),
          nodes: Object.fromEntries(nodes.map((name) => [name, {}]))};
};

/** What the scheduler did for a job, and who else. */
function historyOf(job, now) {
  const lines = [["Pending", job.submitted, job.user, ""], ["Running", job.started, "fluxqueue", ""], ["Completed", job.ended, "fluxqueue", ""]];
  const first = job.promises.find(([, , , nodes]) => nodes.length);
  if (first) lines.push(["Promised", first[0], "fluxqueue", `on ${first[3].length} nodes`]);
  return lines.filter(([, at]) => at <= now).sort((a, b) => a[1] - b[1]);
}

const podsOf = (job, now, iso) => now < job.started || now >= job.ended ? [] : Array.from({length: Math.min(job.size, 32)}, (_, n) => ({
  name: `${job.name}-${n}`, phase: "Running", isGated: false, why: "", node: Object.keys(job.nodes)[n % Object.keys(job.nodes).length],
  startedAt: iso(job.started), containers: ["main"],
}));

const cpuOf = (job) => Object.values(job.nodes).reduce((sum, one) => sum + (one.cpu || 0), 0) / 1000;
const gpuOf = (job) => Object.values(job.nodes).reduce((sum, one) => sum + (one["nvidia.com/gpu"] || 0), 0);

function view(day, now, iso, path, parameters) {
  const here = day.jobs.filter((job) => job.submitted <= now);
  const waiting = here.filter((job) => now < job.started), running = here.filter((job) => now >= job.started && now < job.ended);
  const ended = here.filter((job) => job.ended <= now);
  const items = (found) => ({items: found});
  if (path === "/whoami") return {user: "recorded day", groups: [], seesAllNamespaces: true, seesNodes: true};
  if (path === "/map") return {levels: day.levels, nodes: day.nodes, coming: []};
  if (path === "/queue") return items([...running.map((job) => jobAt(job, now, iso, null)),
    ...waiting.map((job, n) => jobAt(job, now, iso, n + 1))]);
  if (path === "/forecast") return items(waiting.filter((job) => startAt(job, now)).map((job) => ({
    jobid: job.jobid, name: job.name, expectedStart: iso(startAt(job, now)), reason: reasonAt(job, now, iso),
    promisedStart: promiseAt(job, now) ? iso(promiseAt(job, now).from) : null})));
  if (path === "/places") {
    const since = parameters.get("since") || "6h", from = /^\d+s$/.test(since) ? now - parseInt(since, 10) : now - 6 * 3600;
    return items([...here.filter((job) => now >= job.started && job.ended > from).map((job) => placeAt(job, now, iso)),
      ...waiting.filter((job) => promiseAt(job, now)).map((job) => promiseOf(job, now, iso))]);
  }
  if (path === "/queues") return items(day.queues.map((queue) => ({...queue, priority: 0, fault: null})));
  if (path === "/queues/use") return items(day.queues.flatMap(({name}) => useOf(name, running, waiting)));
  if (path === "/accounting/waits") return items(waits(ended, iso));
  if (path === "/accounting/utilisation") return items(utilisation([...ended, ...running], now, iso));
  if (path === "/accounting/promises") return items(promises(ended.filter((job) => job.promised), iso));
  const one = path.match(/^\/jobs\/(\d+)(\/\w+)?$/), job = one && here.find((job) => job.jobid === Number(one[1]));
  if (job && !one[2]) return jobAt(job, now, iso, null);
  if (job && one[2] === "/pods") return {item: podsOf(job, now, iso)};
  if (job && one[2] === "/explain") {
    const start = startAt(job, now), promised = promiseAt(job, now);
    return {item: {status: {verdict: start ? "Later" : "Unknown", expectedStart: start && iso(start), message: reasonAt(job, now, iso),
                            certainty: promised ? "a promise" : start ? "an estimate" : ""}}};
  }
  if (path === "/history") {
    const asked = here.find((job) => String(job.jobid) === parameters.get("job"));
    return items((asked ? historyOf(asked, now) : []).map(([event, at, actor, reason], id) => ({id, at: iso(at), event, actor, detail: {reason}})));
  }
  return {item: path.endsWith("/log") ? "The recording has no logs. On a cluster, they are read with your own rights."
    : path.endsWith("/object") ? {spec: {}, status: {}} : []};
}

function useOf(queue, running, waiting) {
  const here = [...running, ...waiting].filter((job) => job.queue === queue);
  return [...new Set(here.map((job) => job.user))].sort().map((user) => {
    const mine = running.filter((job) => job.user === user && job.queue === queue);
    return {queue, user, running: mine.length, held: 0, waiting: here.filter((job) => job.user === user).length - mine.length,
      cpu: mine.reduce((sum, job) => sum + cpuOf(job), 0) * 1000, nodes: new Set(mine.flatMap((job) => Object.keys(job.nodes))).size,
      factor: null, points: null, usedHours: null};
  });
}

function utilisation(jobs, now, iso) {
  const sums = new Map();
  for (const job of jobs)
    for (let at = Math.floor(job.started / 3600) * 3600; at < Math.min(job.ended, now); at += 3600) {
      const hours = (Math.min(job.ended, now, at + 3600) - Math.max(job.started, at)) / 3600, [cpu, gpu] = sums.get(at) || [0, 0];
      sums.set(at, [cpu + cpuOf(job) * hours, gpu + gpuOf(job) * hours]);
    }
  return [...sums].sort(([a], [b]) => a - b).map(([at, [cpuHours, gpuHours]]) => ({at: iso(at), cpuHours, gpuHours}));
}

function waits(ended, iso) {
  const sums = new Map();
  for (const job of ended) {
    const nodes = Object.keys(job.nodes).length, hour = Math.floor(job.ended / 3600) * 3600;
    const sizeClass = nodes > 16 ? "over 16 nodes" : nodes > 4 ? "5 to 16 nodes" : nodes > 1 ? "2 to 4 nodes" : "1 node";
    const key = `${hour} ${sizeClass}`;
    if (!sums.has(key)) sums.set(key, {at: hour, sizeClass, all: [], cpuHours: 0});
    sums.get(key).all.push(job.started - job.submitted);
    sums.get(key).cpuHours += Object.values(job.nodes).reduce((sum, one) => sum + one.cpu, 0) / 1000 * (job.ended - job.started) / 3600;
  }
  return [...sums.values()].map(({at, sizeClass, all, cpuHours}) => {
    all.sort((a, b) => a - b);
    return {at: iso(at), sizeClass, runs: all.length, cpuHours, gpuHours: 0, waitSeconds: all[all.length >> 1], waitP95Seconds: all[Math.floor(all.length * 0.95)]};
  });
}

function promises(ended, iso) {
  const sums = new Map();
  for (const job of ended) {
    const at = Math.floor(job.ended / 3600) * 3600, one = sums.get(at) || {at: iso(at), promised: 0, kept: 0, excused: 0};
    one.promised++;
    if (job.started <= job.promised + 5) one.kept++;
    sums.set(at, one);
  }
  return [...sums].sort(([a], [b]) => a - b).map(([, one]) => one);
}
