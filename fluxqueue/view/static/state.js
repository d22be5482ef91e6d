// What the page knows of the cluster. It is read as a whole at the start, and the parts that a
// change can touch are read again, at most once per second. Views subscribe.

import {get, list} from "./api.js";
import {follow, Refused} from "./server.js";

const AGAIN_MS = 1000, RESTS = 3;
const HISTORY_S = 6 * 3600, HISTORY_MOST_S = 31 * 86_400;

export const state = {
  me: null, levels: [], nodes: [], coming: [], places: [], queue: [], starts: new Map(), queues: [], use: [],
  isLive: false, error: null, needsLogin: false, readAt: 0, isCut: false,
  historyS: HISTORY_S,
};

const listeners = new Set();
export const subscribe = (listener) => { listeners.add(listener); return () => listeners.delete(listener); };
const tell = () => listeners.forEach((listener) => listener());

let reading = null, isDirty = false, lastMs = 0, tookMs = 0;
const QUEUE_MOST = 5000;

async function read() {
  const who = state.me || await get("/whoami");
  state.me = who;
  if (who.seesNodes) {
    const [map, places] = await Promise.all([get("/map"), list("/places", {since: `${state.historyS}s`}, 20000)]);
    Object.assign(state, {levels: map.levels, nodes: map.nodes, coming: map.coming, places});
    // The first picture does not wait for a long queue.
    if (!state.readAt) { state.readAt = Date.now(); tell(); }
  }
  const [queue, starts, use, queues] = await Promise.all([
    list("/queue", {}, QUEUE_MOST), list("/forecast", {}, QUEUE_MOST), list("/queues/use"), get("/queues"),
  ]);
  Object.assign(state, {
    queue, use, queues: queues.items,
    starts: new Map(starts.map((one) => [one.jobid, one])),
    readAt: Date.now(), error: null, needsLogin: false, isCut: queue.length >= QUEUE_MOST,
  });
}

/** Read again, now or soon. Changes that come while it reads lead to one more reading. */
export async function refresh() {
  isDirty = true;
  if (reading) return reading;
  reading = (async () => {
    while (isDirty) {
      // A large queue is read less often, so that reading takes a quarter of the time at most.
      const pause = lastMs + Math.max(AGAIN_MS, RESTS * tookMs) - performance.now();
      if (pause > 0 && lastMs) await new Promise((resolve) => setTimeout(resolve, pause));
      isDirty = false;
      lastMs = performance.now();
      try {
        await read();
      } catch (error) {
        state.error = error.message;
        state.needsLogin = error instanceof Refused && error.status === 401;
        if (!(error instanceof Refused)) console.error(error);
      }
      tookMs = performance.now() - lastMs;
      tell();
    }
    reading = null;
  })();
  return reading;
}

/** Have ended work of the last `seconds`. It is read in ever larger parts while a user looks further back. */
export function lookBack(seconds) {
  if (seconds <= state.historyS || state.historyS >= HISTORY_MOST_S) return;
  while (state.historyS < seconds && state.historyS < HISTORY_MOST_S) state.historyS *= 2;
  refresh();
}

let end = null;
/** Begin to follow the cluster. */
export async function start() {
  end?.();
  await refresh();
  if (state.needsLogin) return;
  end = follow(() => refresh(), (isLive) => {
    state.isLive = isLive;
    tell();
  });
}
// Times pass although nothing changes. Nodes that come change no job.
const awaitsNodes = () => state.coming.length || state.queue.some((job) => ["Pending", "Provisioning"].includes(job.state));
setInterval(() => (state.isLive && awaitsNodes() ? refresh() : tell()), 10_000);
