// All requests of the page: lists page by page, one job, actions, and the stream of changes.
// A demo (?demo=1) is answered from a recorded file instead (demo.js).

const ACTING = {"X-Fluxqueue-Window": "1"};

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let recorded = null;
/** Answer all requests from a recording from now on. */
export function useRecording(recording) { recorded = recording; }
export const isDemo = () => recorded !== null;

async function ask(path, options = {}) {
  if (recorded) return recorded.answer(path, options);
  let response;
  try {
    response = await fetch(path, {credentials: "same-origin", ...options,
                                  headers: {...ACTING, ...(options.headers || {})}});
  } catch {
    throw new Refused(0, "The server does not answer. This page tries again.");
  }
  if (response.status === 204) return null;
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.detail || response.statusText);
  return body;
}

const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  return given.length ? "?" + new URLSearchParams(given) : "";
};

export const get = (path, parameters = {}) => ask("/api/v1" + path + query(parameters));

export const post = (path, body = {}) => ask(path.startsWith("/log") ? path : "/api/v1" + path, {
  method: "POST", body: JSON.stringify(body), headers: {"Content-Type": "application/json"},
});

/** All items of a list, up to `most` of them. */
export async function list(path, parameters = {}, most = 5000) {
  const items = [];
  let next;
  do {
    const page = await get(path, {...parameters, limit: 500, continue: next});
    items.push(...page.items);
    next = page.continue;
  } while (next && items.length < most);
  return items;
}

/** Call `onChange` after every change of a job. Returns a function that ends it. */
export function follow(onChange, onState) {
  if (recorded) return recorded.follow(onChange, onState);
  const source = new EventSource("/api/v1/changes");
  source.addEventListener("change", (event) => onChange(JSON.parse(event.data)));
  source.addEventListener("reset", () => onChange(null));
  source.onopen = () => { onState(true); onChange(null); };
  source.onerror = () => onState(false);
  return () => source.close();
}
