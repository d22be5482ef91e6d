// The recorded day behind ?demo=1: what `fluxqueue sim` made of a day's jobs, played in minutes.
// It answers the requests of the page from that recording, so the views are those of a cluster.

const SPEED = 60, TICK_MS = 2000;

/** Load the recording: {nodes, jobs: [{jobid, name, user, queue, size, submitted, started, ended, until, nodes}]}. */
export async function recording() {
  const day = await (await fetch("/window/demo.json")).json();
  const began = Date.now();
  const first = day.playFrom * 1000, length = (day.playTo - day.playFrom) * 1000;
  // The day is shown as if it were today: its time now is the time of the clock.
  const position = () => first + ((Date.now() - began) * SPEED) % length;
  const iso = (seconds) => new Date(Date.now() + seconds * 1000 - position()).toISOString();
  return {
    answer: async (path, options = {}) => {
      if (path.endsWith("/replays")) return replay(position() / 1000);
      if ((options.method || "GET") !== "GET") throw new Error("This is a recording: nothing can be changed.");
      const url = new URL(path, location.href);
      return view(day, position() / 1000, iso, url.pathname.replace("/api/v1", ""), url.searchParams);
    },
    follow: (onChange, onState) => {
      onState(true);
      const timer = setInterval(() => onChange(null), TICK_MS);
      return () => clearInterval(timer);
    },
  };
}

/** The recorded replay, with its times as if it were today. */
async function replay(now) {
  const told = await (await fetch("/window/demo-replay.json")).json();
  const shift = Math.round(Date.now() / 1000 - now), later = (time) => time === null ? null : time + shift;
  const jobs = told.jobs.map((job) => job.map((one, n) => [5, 6, 7, 9, 10].includes(n) ? later(one) : one));
  return {...told, since: later(told.since), until: later(told.until), jobs};
}

function jobAt(day, job, now, iso, position) {
  const state = now >= job.ended ? "Completed" : now >= job.started ? "Running" : "Pending";
  return {
    jobid: job.jobid, namespace: job.user, name: job.name, kind: "Job", fluxJob: `${job.name}-job`, user: job.user,
    queue: "default", state, size: job.size, priority: 0, requeues: 0, position,
    reason: state === "Pending" ? (position > 1 ? `behind ${position - 1} jobs` : "waits for nodes") : "",
    nodes: state === "Pending" ? null : Object.keys(job.nodes).join(","), expectedStart: null, heldBy: null, blockedBy: null,
    submittedAt: iso(job.submitted), allocatedAt: now >= job.started ? iso(job.started) : null,
    startedAt: now >= job.started ? iso(job.started) : null, endedAt: now >= job.ended ? iso(job.ended) : null,
  };
}

const placeAt = (job, now, iso) => ({
  id: job.jobid, jobid: job.jobid, namespace: job.user, name: job.name, user: job.user, queue: "default", state: "Running",
  kind: now >= job.ended ? "ended" : "running", startsAt: iso(job.started), until: iso(job.until),
  endedAt: now >= job.ended ? iso(job.ended) : null, isExclusive: false, held: [], nodes: job.nodes,
});

function view(day, now, iso, path, parameters) {
  const here = day.jobs.filter((job) => job.submitted <= now);
  const waiting = here.filter((job) => now < job.started), running = here.filter((job) => now >= job.started && now < job.ended);
  const items = (found) => ({items: found});
  if (path === "/whoami") return {user: "demo", groups: [], seesAllNamespaces: true, seesNodes: true};
  if (path === "/map") return {levels: day.levels, nodes: day.nodes, coming: []};
  if (path === "/queue") return items([...running.map((job) => jobAt(day, job, now, iso, null)),
    ...waiting.map((job, n) => jobAt(day, job, now, iso, n + 1))]);
  if (path === "/forecast") return items(waiting.map((job) => ({jobid: job.jobid, expectedStart: iso(job.started), promisedStart: null, name: job.name, reason: ""})));
  if (path === "/places") return items(here.filter((job) => now >= job.started && job.ended > now - 6 * 3600).map((job) => placeAt(job, now, iso)));
  if (path === "/queues") return items([{name: "default", spec: {policy: day.policy}, priority: 0, fault: null}]);
  if (path === "/queues/use") return items([...new Set(here.map((job) => job.user))].sort().map((user) => {
    const mine = running.filter((job) => job.user === user);
    return {queue: "default", user, running: mine.length, waiting: waiting.filter((job) => job.user === user).length, held: 0,
      cpu: mine.reduce((sum, job) => sum + Object.values(job.nodes).reduce((all, one) => all + one.cpu, 0), 0),
      nodes: new Set(mine.flatMap((job) => Object.keys(job.nodes))).size, factor: null, points: null, usedHours: null};
  }));
  if (path === "/accounting/waits") return items(waits(here.filter((job) => job.ended <= now), iso));
  if (path === "/accounting/promises") return items(promises(here.filter((job) => job.ended <= now && job.promised), iso));
  const one = path.match(/^\/jobs\/(\d+)(\/\w+)?$/);
  const job = one && here.find((job) => job.jobid === Number(one[1]));
  if (job && !one[2]) return jobAt(day, job, now, iso, null);
  if (path === "/history") {
    const asked = here.find((job) => String(job.jobid) === parameters.get("job"));
    const lines = asked ? [["Pending", asked.submitted], ["Running", asked.started], ["Completed", asked.ended]] : [];
    return items(lines.filter(([, at]) => at <= now).map(([event, at], id) => ({id, at: iso(at), event, actor: "fluxqueue", detail: {}})));
  }
  return {item: path.endsWith("/object") ? {spec: {}, status: {}} : []};
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
